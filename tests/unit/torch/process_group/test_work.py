"""PyTorch's process group: work, rendezvous, operators and devices."""

import re
import subprocess
import sys
import threading
import traceback
from contextlib import contextmanager
from datetime import timedelta
from types import SimpleNamespace

import pytest
from mpi4py import MPI

import hpccoll
from hpccoll.errors import ArgumentTypeError, GroupTimeout, PeerLost, ProcessGroupError
from hpccoll.errors.waits import RankStates, raisable
from support.gpu.device import installed
from support.gpu.streams import Devices

# Work: ends once, tells everybody, keeps the order; lanes and who runs what stands in them
torch = pytest.importorskip("torch")
work = pytest.importorskip("hpccoll.torch.process_group.work")


def pending(run=lambda: None, tensors=(), seconds=5.0):
    return work.GroupWork("call", run, list(tensors), seconds)


def test_the_finished_one():
    assert work.FINISHED.wait() and work.FINISHED.is_completed() and work.FINISHED.is_success()
    assert work.FINISHED.get_future().done() and work.FINISHED.result() == []


def test_an_error_reaches_everybody():
    def fail():
        raise ValueError("no")

    one = pending(fail)
    early = one.get_future()
    one.do()()
    assert one.is_completed() and not one.is_success()
    with pytest.raises(ValueError, match="no"):
        one.wait()
    for future in early, one.get_future():
        with pytest.raises(RuntimeError, match="ValueError: no"):  # C++ has the text alone
            future.wait()


def frames_of(error):
    return len(list(traceback.walk_tb(error.__traceback__)))


@pytest.mark.parametrize("stored", [ValueError("no"), GroupTimeout("call", 1.0),
                                    ProcessGroupError("broken"),
                                    PeerLost((1,), RankStates("lost"), "call")], ids=repr)
def test_an_error_that_is_raised_often_does_not_grow(stored):
    """Its frames would keep tensors alive; those of groups, lines and requests are raised so."""
    one, seen = pending(), []
    one.end(stored)
    for _ in range(5):
        with pytest.raises(type(stored), match=re.escape(str(stored))) as caught:
            one.wait()
        seen.append(frames_of(caught.value))
    assert len(set(seen)) == 1 and frames_of(stored) == 0


def test_an_error_that_cannot_be_copied_does_not_grow():
    class Odd(Exception):
        def __init__(self, one, two):
            super().__init__(f"{one} {two}")

    stored, seen = Odd(1, 2), []
    for _ in range(5):
        with pytest.raises(Odd) as caught:
            raise raisable(stored)
        seen.append(frames_of(caught.value))
    assert len(set(seen)) == 1


def test_the_time_of_a_group_is_up_once():
    one, told = pending(), []
    one.give_up, one.seconds = told.append, 0.01
    with pytest.raises(GroupTimeout, match="0.01"):
        one.wait()
    assert told == [one]
    one.end()  # too late
    with pytest.raises(RuntimeError):
        one.wait()
    assert len(told) == 1


def test_the_time_of_one_wait_is_up():
    one, told = pending(), []
    one.give_up = told.append
    with pytest.raises(GroupTimeout, match="0.01"):
        one.wait(timedelta(seconds=0.01))
    assert not told and not one.is_completed()
    one.end()
    assert one.wait(timedelta(seconds=0.01))


def test_together():
    several = [pending(tensors=[torch.ones(n)]) for n in (1, 2)]
    both = work.CoalescedWork(several)
    assert not both.is_completed()
    future = both.get_future()
    for one in several:
        one.do()()
    assert both.wait() and [len(tensor) for tensor in future.wait()] == [1, 2]


# Lanes: the order of issue, whoever runs the calls
lane = pytest.importorskip("hpccoll.torch.process_group.work_queue")


class Alone:
    """Arrivals of a rank that waits for nobody."""

    def __init__(self):
        self.mine = [0]

    def wait(self, number, needless):
        """Nobody else is there."""


@pytest.fixture
def one():
    made = lane.WorkQueue("test", Alone())
    yield made
    made.close()


def put(made, run, number=1):
    call = work.GroupWork("call", run, [], 5.0)
    call.number = number
    made.put(call)
    return call


def test_calls_run_in_the_order_of_issue(one):
    seen = []
    calls = [put(one, lambda n=n: seen.append(n), n) for n in range(20)]
    calls[-1].wait()
    assert seen == list(range(20)) and one.arrivals.mine == [19]
    one.drain()
    assert not one.is_busy


def test_whoever_waits_runs_what_is_left(one):
    gate, started, threads = threading.Event(), threading.Event(), []
    first = put(one, lambda: (started.set(), gate.wait(5)))
    started.wait(5)  # the lane's thread is at it
    second = put(one, lambda: threads.append(threading.current_thread()))
    gate.set()
    second.wait()
    assert first.is_completed() and len(threads) == 1


def test_an_error_is_that_calls_alone(one):
    bad, good = put(one, lambda: 1 / 0), put(one, lambda: None)
    good.wait()
    with pytest.raises(ZeroDivisionError):
        bad.wait()


def test_cleared_calls_are_over_and_never_run(one):
    gate, started, seen = threading.Event(), threading.Event(), []
    put(one, lambda: (started.set(), gate.wait(5)))
    started.wait(5)
    call = put(one, lambda: seen.append(1))
    one.clear(RuntimeError("aborted"))
    gate.set()
    with pytest.raises(RuntimeError, match="aborted"):
        call.wait()
    one.drain()
    assert not seen


@pytest.mark.parametrize("through", ["work", "future"])
def test_callbacks_may_call_the_group_and_wait(one, through):
    """As PowerSGD's hook does; they run on the lane's own thread, or on that of a waiter."""
    seen, gate = [], threading.Event()

    def again(future):
        call = put(one, lambda: seen.append(1))
        return call.wait() if through == "work" else call.get_future().wait()

    first = put(one, lambda: gate.wait(5))
    done = first.get_future().then(again)
    gate.set()
    done.wait()
    assert seen == [1]


def test_a_callback_may_wait_for_a_call_that_was_issued_before_it_ran(one):
    gate = threading.Event()
    first = put(one, lambda: gate.wait(5))
    second = put(one, lambda: None)
    late = second.get_future()
    done = first.get_future().then(lambda future: late.wait())
    gate.set()
    assert done.wait() == []


# Operators of torch as MPI's: which exist for which types, what is done before and after
operators = pytest.importorskip("hpccoll.torch.process_group.operators")
ReduceOp = torch.distributed.ReduceOp


def through_options(op):
    """As it arrives: another type than the one it was given as."""
    options = torch.distributed.AllreduceOptions()
    options.reduceOp = op
    return options.reduceOp


@pytest.mark.parametrize("name, mpi", [
    ("SUM", MPI.SUM), ("AVG", MPI.SUM), ("PRODUCT", MPI.PROD), ("MIN", MPI.MIN), ("MAX", MPI.MAX),
    ("BAND", MPI.BAND), ("BOR", MPI.BOR), ("BXOR", MPI.BXOR)])
def test_every_operator_is_found_in_both_forms(name, mpi):
    op = getattr(ReduceOp, name)
    for form in (op, through_options(op)):
        found = operators.operator_of(form, torch.int32)
        assert found.mpi == mpi and found.mean == (name == "AVG") and found.factor is None


def test_a_factor_is_carried_by_the_operator():
    op = through_options(torch.distributed._make_nccl_premul_sum(0.25))
    found = operators.operator_of(op, torch.float32)
    values = torch.tensor([4.0, 8.0])
    found.scale_input(values)
    assert values.tolist() == [1.0, 2.0] and found.mpi == MPI.SUM


@pytest.mark.parametrize("dtype, whole, wanted", [
    (torch.float32, [3.0, -3.0], [1.5, -1.5]), (torch.int64, [3, -3], [1, -1]),
    (torch.bfloat16, [3.0, -3.0], [1.5, -1.5])])
def test_means(dtype, whole, wanted):
    values = torch.tensor(whole, dtype=dtype)
    operators.operator_of(ReduceOp.AVG, dtype).scale_result(values, 2)
    assert values.tolist() == wanted


@pytest.mark.parametrize("name, dtype", [
    ("BAND", torch.float32), ("BXOR", torch.bfloat16), ("MIN", torch.complex64),
    ("AVG", torch.bool), ("PREMUL_SUM", torch.bool)])
def test_what_makes_no_sense(name, dtype):
    with pytest.raises(ArgumentTypeError, match=f"ReduceOp.{name} .*{dtype}"):
        operators.operator_of(getattr(ReduceOp, name), dtype)


@pytest.mark.parametrize("name, mpi", [("SUM", MPI.LOR), ("PRODUCT", MPI.LAND), ("MIN", MPI.LAND),
                                       ("MAX", MPI.LOR), ("BXOR", MPI.LXOR)])
def test_truth_values(name, mpi):
    assert operators.operator_of(getattr(ReduceOp, name), torch.bool).mpi == mpi


# How ranks find each other, and what is said where MPI did not start them; one rank here
rendezvous = pytest.importorskip("hpccoll.torch.process_group.rendezvous")
backend = pytest.importorskip("hpccoll.torch.backend")


def test_one_rank_meets_itself(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    store, rank, size = next(rendezvous.meet("mpi://"))
    assert (rank, size) == (0, 1)
    store.set("key", "value")
    assert store.get("key") == b"value"


@pytest.mark.parametrize("url", ["mpi://?rank=1&world_size=2", "mpi://?world_size=4"])
def test_other_ranks_than_mpis_are_refused(url):
    with pytest.raises(ProcessGroupError, match="from MPI"):
        next(rendezvous.meet(url))


def test_torchrun_is_recognised(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(ProcessGroupError, match="mpiexec -n 4"):
        next(rendezvous.meet("mpi://"))
    with pytest.raises(ProcessGroupError, match="torch.*4 ranks, MPI.*1.*torchrun"):
        backend.communicator(None, 0, 4, "0", 1.0)


def test_registering_twice_does_no_harm():
    for _ in range(2):
        backend.register()
        rendezvous.register_handler()
    assert "hpccoll" in torch.distributed.Backend.backend_list


def test_an_old_torch_is_refused(monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.3.1+cpu")
    with pytest.raises(ProcessGroupError, match="2.3.1.*2.4"):
        backend.register()


def test_importing_starts_no_mpi():
    code = "import sys, hpccoll.torch; sys.exit('mpi4py.MPI' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


# Calls on CUDA tensors use a communicator with the promise that all ranks pass device arrays
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
