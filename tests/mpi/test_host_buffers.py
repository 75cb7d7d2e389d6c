"""Host memory that is no NumPy array: the same calls, as fast as on arrays."""

import array

import numpy
import pytest
from mpi4py import MPI

from hpccoll.errors import ArgumentTypeError, BufferArgumentError
from support.python_calls import python_calls

pytestmark = pytest.mark.mpi
#: Calls of Python functions in a repeated call, at most; several hundred if it is resolved anew.
MOST_CALLS = 60


class Matrix(numpy.ndarray):
    """A subclass, as of a program."""


def tensor(count):
    torch = pytest.importorskip("torch")
    return torch.zeros(count, dtype=torch.float64)



BUFFERS = {"tensor": tensor, "subclass": lambda count: numpy.zeros(count).view(Matrix),
           "array": lambda count: array.array("d", [0.0] * count),
           "memoryview": lambda count: memoryview(numpy.zeros(count))}


@pytest.fixture(params=BUFFERS)
def make(request):
    return BUFFERS[request.param]


def view(buffer):
    """The array over a buffer."""
    return buffer.numpy() if hasattr(buffer, "numpy") else numpy.asarray(buffer)


@pytest.mark.parametrize("form", ["blocking", "nonblocking"])
def test_a_repeated_call_resolves_nothing(world, make, form):
    source, sink = make(8), make(8)

    def call():
        if form == "blocking":
            world.Allreduce([source, MPI.DOUBLE], sink)
        else:
            world.Iallreduce([source, MPI.DOUBLE], sink).Wait()
    # A call that has to wait for another rank makes more.
    assert min(len(python_calls(call)) for _ in range(30)) <= MOST_CALLS


def test_calls_in_every_form(world, make):
    size, rank = world.size, world.rank
    source, sink, blocks = make(3), make(3), make(3 * size)
    ranks = numpy.arange(size)[:, None]
    for turn in range(3):
        view(source)[:] = numpy.arange(3) + rank + turn
        expected = (numpy.arange(3) + ranks + turn)
        world.Allreduce(source, sink)
        assert (view(sink) == expected.sum(0)).all()
        world.Allreduce(MPI.IN_PLACE, sink)
        assert (view(sink) == size * expected.sum(0)).all()
        world.Allgatherv(source, [blocks, [3] * size, None, MPI.DOUBLE])
        assert (view(blocks) == expected.reshape(-1)).all()
        view(blocks)[:] = 0
        request = world.Iallgather(source, blocks)
        request.Wait()
        assert (view(blocks) == expected.reshape(-1)).all()
        world.Bcast([source, MPI.DOUBLE], root=numpy.int64(size - 1))
        assert (view(source) == expected[-1]).all()


def test_a_nonblocking_call_keeps_the_memory(world):
    torch = pytest.importorskip("torch")
    sink = torch.zeros(100_000)
    request = world.Iallreduce(torch.ones(100_000), sink)
    filler = [torch.full((100_000,), 7.0) for _ in range(20)]
    request.Wait()
    assert (sink == world.size).all() and len(filler) == 20


def test_ranks_with_arrays_and_ranks_with_tensors_take_part_in_one_call(world):
    torch = pytest.importorskip("torch")
    for turn in range(4):
        source = numpy.full(5, float(world.rank + turn))
        given = torch.from_numpy(source) if world.rank == turn % world.size else source
        sink = numpy.zeros(5)
        world.Allreduce(given, torch.from_numpy(sink) if world.rank % 2 else sink)
        assert (sink == sum(range(turn, turn + world.size))).all()


def test_checks_see_the_elements_of_a_tensor(world, monkeypatch):
    torch = pytest.importorskip("torch")
    from hpccoll import Comm
    monkeypatch.setenv("HPCCOLL_CHECK", "nan")
    comm = Comm(MPI.COMM_WORLD.Dup())
    comm.Barrier()
    source, sink = torch.ones(4), torch.zeros(4)
    comm.Allreduce(source, sink)
    source[2] = float("nan") if comm.rank == comm.size - 1 else 1
    with pytest.raises(ArithmeticError, match=f"rank {comm.size - 1}"):
        comm.Allreduce(source, sink)


def test_memory_that_cannot_be_used(world):
    torch = pytest.importorskip("torch")
    sink = torch.zeros(4, dtype=torch.float64)
    with pytest.raises(BufferArgumentError, match="read-only"):
        world.Allreduce(b"12345678", bytes(8))
    with pytest.raises(BufferArgumentError, match="contiguous"):
        world.Allreduce(torch.zeros(8, dtype=torch.float64)[::2], sink)
    with pytest.raises(BufferArgumentError, match="gradient"):
        world.Allreduce(torch.zeros(4, requires_grad=True), sink)
    world.Allreduce(torch.ones(4, dtype=torch.float64), sink)
    assert (sink == world.size).all()


@pytest.mark.parametrize("library", ["torch", "jax"])
def test_bfloat16_of_frameworks(world, library):
    """As NumPy's, in calls from the cache too."""
    pytest.importorskip("ml_dtypes")
    framework = pytest.importorskip("torch" if library == "torch" else "jax.numpy")
    torch = pytest.importorskip("torch")
    for _ in range(3):
        source = framework.full((70,), world.rank + 1.0, dtype=framework.bfloat16)
        sink = torch.zeros(70, dtype=torch.bfloat16)
        world.Allreduce(source, sink)
        assert (sink == world.size * (world.size + 1) / 2).all()
        parts = torch.zeros(world.size, 70, dtype=torch.bfloat16)
        world.Allgather(source, parts)
        assert (parts[:, 0] == torch.arange(1, world.size + 1)).all()


def test_float8_tensors_are_moved(world):
    torch = pytest.importorskip("torch")
    tensor = torch.full((5,), world.rank + 1.0).to(torch.float8_e5m2)
    world.Bcast(tensor, world.size - 1)
    assert (tensor.float() == world.size).all()
    with pytest.raises(ArgumentTypeError, match="float8_e5m2, which MPI cannot combine"):
        world.Allreduce(MPI.IN_PLACE, tensor)


def test_tensors_without_memory(world):
    """NumPy allocates memory for them, and a result in it would be lost."""
    torch = pytest.importorskip("torch")
    from torch._subclasses.fake_tensor import FakeTensorMode
    with FakeTensorMode():
        fake = torch.ones(4)
    for call in world.Bcast, world.Ibcast, world.Bcast_init:
        with pytest.raises(BufferArgumentError, match="FakeTensor has no memory"):
            call(fake, 0)
