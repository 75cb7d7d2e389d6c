"""Calls on CUDA tensors use a communicator with the promise that all ranks pass device arrays."""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from mpi4py import MPI

import hpccoll
from support.gpu.device import installed
from support.gpu.streams import Devices

torch = pytest.importorskip("torch")
group_module = pytest.importorskip("hpccoll.torch.process_group.group")


class CudaTensor(torch.Tensor):
    """A tensor of the host that says that it is on a GPU."""

    is_cuda = True
    device = torch.device("cuda:0")


@pytest.fixture
def group(monkeypatch):
    """A group of one rank whose calls record their communicator and run nothing."""
    with installed(False, Devices()):
        made = group_module.Group.__new__(group_module.Group)
        made.comm, made.device_comm = hpccoll.Comm(MPI.COMM_SELF.Dup()), None
        made._devices, made.seen = ["cpu", "cuda"], []
        monkeypatch.setattr(group_module.Group, "_issue",
                            lambda self, name, run, options, tensors: run())
        for name in vars(group_module.collectives):
            if name in CALLS.values():
                monkeypatch.setattr(group_module.collectives, name,
                                    lambda comm, *given: made.seen.append(comm))
        monkeypatch.setattr(group_module, "allreduce_sparse",
                            lambda comm, *given: made.seen.append(comm))
        yield made
        made.comm.Free()


#: Method of the group -> function of the module ``collectives``.
CALLS = {"allreduce": "allreduce", "allreduce_coalesced": "allreduce_coalesced",
         "reduce": "reduce", "broadcast": "broadcast", "all_gather_single": "all_gather_single",
         "all_gather_single_coalesced": "all_gather_single", "allgather": "all_gather",
         "allgather_coalesced": "all_gather", "gather": "gather", "scatter": "scatter",
         "reduce_scatter": "reduce_scatter", "reduce_scatter_single": "reduce_scatter_single",
         "reduce_scatter_single_coalesced": "reduce_scatter_single",
         "all_to_all_single": "all_to_all_single", "alltoall": "all_to_all"}


def arguments(method, tensor):
    if method in ("allreduce", "allreduce_coalesced", "reduce", "broadcast"):
        return ([tensor],)
    if method.endswith("single_coalesced"):
        return [tensor], [tensor]
    if method in ("all_gather_single", "reduce_scatter_single"):
        return tensor, tensor
    if method in ("allgather", "allgather_coalesced"):
        return [[tensor]], [tensor]
    if method == "gather":
        return [], [tensor]
    if method == "all_to_all_single":
        return tensor, tensor, [], []
    return [tensor], [tensor] if method == "alltoall" else [[tensor]]


@pytest.mark.parametrize("method", CALLS)
def test_cuda_tensors_have_the_promise_and_others_not(group, method):
    for tensor, device in ((torch.ones(4), ""), (torch.ones(4).as_subclass(CudaTensor), "cuda"),
                           (torch.ones(4).as_subclass(CudaTensor), "cuda")):
        getattr(group, method)(*arguments(method, tensor))
        assert group.seen[-1]._device == device
        assert group.seen[-1] == group.comm
    assert group.seen[-1] is group.seen[-2]  # it is made once


def test_sparse_tensors_and_groups_without_cupy_have_no_promise(group):
    sparse = torch.ones(4).to_sparse()
    group.allreduce([sparse])
    group._devices = ["cpu"]
    group.broadcast([torch.ones(4).as_subclass(CudaTensor)])
    assert [comm._device for comm in group.seen] == ["", ""]


def test_a_synchronous_call_runs_on_the_stream_of_torch(group, monkeypatch):
    events = []

    @contextmanager
    def current(device):
        events.append(device)
        yield
        events.append("left")

    monkeypatch.setattr(group_module, "current_in_cupy", current)
    group.error, group.issued = None, 0
    group.lane, group.arrivals = SimpleNamespace(queue=[]), SimpleNamespace(mine=[0])
    for tensor in (torch.ones(4), torch.ones(4).as_subclass(CudaTensor)):
        group._start("call", lambda: events.append("run"), SimpleNamespace(asyncOp=False), [tensor])
    assert events == ["run", torch.device("cuda:0"), "run", "left"]
