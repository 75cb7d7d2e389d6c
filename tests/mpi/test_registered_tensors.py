"""CUDA tensors in registered memory on real ranks, each with doubles of CUDA and PyTorch."""

import sys
from math import inf

import numpy
import pytest
from mpi.ipc_case import RANK, SIZE, community, counted, cupy, folder, given, machine
from mpi4py import MPI

from hpccoll.errors import ArgumentError
from support.gpu.tensors import torch_cuda, torch_with

pytestmark = pytest.mark.mpi(min_size=2)
__all__ = ["cupy", "folder", "machine"]


@pytest.fixture
def torch(cupy, machine, monkeypatch):
    """A double of PyTorch whose tensors are on the double of the device."""
    module = torch_with(cupy, machine)
    monkeypatch.setitem(sys.modules, "torch", module)
    return module


@pytest.mark.long(every=3)
@pytest.mark.parametrize("kind", ["float32", "bfloat16", "i8", float])
@pytest.mark.parametrize("shape", [(), 0, 5, (3, 4)])
def test_tensors_are_read_in_place(cupy, torch, monkeypatch, kind, shape):
    comm = community()
    dtype = getattr(torch, kind) if str(kind).endswith(("32", "16")) else kind
    values = pytest.importorskip("ml_dtypes").bfloat16 if kind == "bfloat16" else (
        getattr(dtype, "raw", dtype))
    x, y = comm.zeros(shape, dtype, xp=torch), comm.empty(shape, dtype, xp=torch)
    assert isinstance(x, torch.Tensor) and isinstance(x.dtype, torch.dtype)
    assert x.array.shape == numpy.empty(shape).shape
    with comm.using(allreduce="ring"), counted(monkeypatch) as found:
        for turn in range(2):
            x.array.reshape(-1).view(values)[...] = cupy.asarray(
                given(x.array.size, values, turn))
            comm.Allreduce(x, y)
            wanted = sum(given(x.array.size, values, turn, rank) for rank in range(SIZE))
            assert (cupy.asnumpy(y.array).reshape(-1).view(values) == wanted).all()
        assert len(found) == 2 * (x.array.size > 0)
    comm.Free()


def test_tensors_without_a_device_are_errors_on_all_ranks(cupy, torch):
    comm = community()
    torch.cuda.is_available = lambda: RANK != SIZE - 1
    with pytest.raises(ArgumentError, match=f"xp: is torch, but rank {SIZE - 1} has no GPU"):
        comm.empty(3, torch.float32, xp=torch)
    torch.cuda.is_available = lambda: True
    with pytest.raises(ArgumentError, match="dtype: PyTorch has no type 'M8'"):
        comm.empty(3, "M8", xp=torch)
    if RANK == 0:
        cupy.cuda.runtime.getDeviceCount = lambda: 0
    with pytest.raises(ArgumentError, match="xp: is cupy, but rank 0 has no GPU"):
        comm.empty(3, xp=cupy)
    comm.Free()


def test_where_ranks_cannot_read_tensors_they_are_ordinary(cupy, torch, machine):
    comm = community()
    if RANK == SIZE - 1:
        machine.faults["ipcOpenMemHandle"] = -inf
    with pytest.warns(RuntimeWarning, match=f"rank {SIZE - 1} .*ipcOpenMemHandle"):
        x = comm.zeros(9, torch.float32, xp=torch)
    x[...] = RANK
    comm.Allreduce(MPI.IN_PLACE, x)
    assert (cupy.asnumpy(x.array) == SIZE * (SIZE - 1) / 2).all()
    comm.Free()


class HostView:
    """Memory of the double as NumPy takes it, with the object that keeps it."""

    def __init__(self, view):
        self.view, self.__array_interface__ = view, view.array.raw.__array_interface__


def test_tensors_of_a_process_group(cupy, machine, monkeypatch):
    """Real tensors, over memory of the double."""
    torch = pytest.importorskip("torch")
    module = pytest.importorskip("hpccoll.torch.process_group.registered")
    for name, function in vars(torch_cuda(machine)).items():
        monkeypatch.setattr(torch.cuda, name, function)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: machine.device)
    monkeypatch.setattr(torch, "as_tensor", lambda view, device: torch.from_numpy(
        numpy.asarray(HostView(view))))
    comm, gpu = community(), torch.device("cuda")
    memory = module.RegisteredMemory(comm)
    with cupy.cuda.Stream(non_blocking=True):
        tensor = memory.tensor(3000, torch.bfloat16, gpu)
        block, = memory.blocks["cuda", 8192]
        assert (tensor.shape, tensor.dtype) == ((3000,), torch.bfloat16)
        assert tensor.data_ptr() == block.raw.ctypes.data
        block[...] = cupy.asarray(numpy.zeros(8192, "u1"))
    del tensor
    with cupy.cuda.Stream(non_blocking=True), counted(monkeypatch) as found:
        tensor = memory.tensor(2500, torch.float16, gpu)  # after the work of the one before
        block[...] = cupy.asarray(numpy.full(8192, 7, "u1"))
        machine.finish_all()
        assert (tensor.view(torch.uint8) == 7).all() and len(memory.blocks["cuda", 8192]) == 1
        with comm.using(allreduce="ring"):
            comm.Allreduce(MPI.IN_PLACE, [module.DeviceView(block[:5000]), MPI.UINT8_T])
        assert len(found) == 1 and (cupy.asnumpy(block)[:5000] == 7 * SIZE).all()
    assert memory.tensor(0, torch.float32, gpu).numel() == 0
    for device, problem in ("cuda:2", "PyTorch sees 2 GPUs"), ("cuda:1", "are on cuda:0"):
        with pytest.raises(ArgumentError, match=problem):
            memory.tensor(3, torch.float32, torch.device(device))
    comm.Free()
