"""Device memory that the MPI library cannot move, on a double, through real transports."""

import numpy
import pytest
from mpi4py import MPI

import hpccoll
from hpccoll.arrays import evidence
from hpccoll.arrays.ways import STAGED, Answer
from hpccoll.runtime import windows
from hpccoll.testing.device import installed
from hpccoll.testing.streams import Devices

pytestmark = pytest.mark.mpi
#: Elements: one window in one piece, one in several, and many segments.
COUNTS = 7, 3001, 40_000


@pytest.fixture
def device(world, monkeypatch):
    """A double of CuPy whose host is slow to wait, with a current stream."""
    monkeypatch.setattr(windows, "FAIR", 4096)
    with installed(False, Devices(seed=world.rank)) as cupy, cupy.cuda.Stream(non_blocking=True):
        yield cupy


def given(world, count, turn=0):
    return numpy.arange(count, dtype="i8") + world.rank + turn


def total(world, count, turn=0):
    return (numpy.arange(count) + turn) * world.size + world.size * (world.size - 1) // 2


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("algorithm", ["ring", "rabenseifner", "double_tree"])
def test_allreduce_in_every_form(world, device, algorithm, count):
    source, sink = device.empty(count, "i8"), device.empty(count, "i8")
    with world.using(allreduce=algorithm, segment_bytes=8192):
        forms = [lambda: world.Allreduce(source, sink),
                 lambda: world.Iallreduce(source, sink).Wait()]
        request = world.Allreduce_init(source, sink)
        for turn, run in enumerate([*forms, lambda: (request.Start(), request.Wait())] * 2):
            source[...] = device.asarray(given(world, count, turn))
            run()
            after = sink.copy()  # queued behind the result, which nobody has waited for
            sink[...] = source
            assert numpy.array_equal(device.asnumpy(after), total(world, count, turn))
        request.Free()
        source[...] = device.asarray(given(world, count))
        world.Allreduce(MPI.IN_PLACE, source)
        assert numpy.array_equal(device.asnumpy(source), total(world, count))


@pytest.mark.parametrize("count", COUNTS)
def test_ranks_with_and_without_devices_take_part_in_one_call(world, device, count):
    mine = device.asarray if world.rank % 2 else numpy.array
    source, sink = mine(given(world, count)), mine(numpy.zeros(count * world.size, "i8"))
    with world.using(allgather="ring", alltoall="pairwise", segment_bytes=4096):
        world.Allgather(source, sink)
        found = device.asnumpy(sink) if world.rank % 2 else sink
        assert numpy.array_equal(found, numpy.concatenate(
            [numpy.arange(count) + rank for rank in range(world.size)]))
        world.Alltoall(MPI.IN_PLACE, sink)
        found = device.asnumpy(sink) if world.rank % 2 else sink
        assert numpy.array_equal(found, numpy.tile(numpy.arange(count) + world.rank, world.size))


def test_blocks_of_any_size_and_what_lies_between_them(world, device):
    counts, displs = [100 * rank for rank in range(world.size)], []
    for rank in range(world.size):
        displs.append(sum(counts[:rank]) + rank)
    sink = device.asarray(numpy.full(sum(counts) + world.size, -1))
    source = device.asarray(numpy.full(counts[world.rank], world.rank))
    with world.using(allgather="ring"):
        world.Allgatherv(source, [sink, (counts, displs), MPI.INT64_T])
    wanted = numpy.full(sum(counts) + world.size, -1)
    for rank, (count, displ) in enumerate(zip(counts, displs)):
        wanted[displ:displ + count] = rank
    assert numpy.array_equal(device.asnumpy(sink), wanted)


def test_what_goes_in_one_piece(world, device):
    """The MPI library's own methods, derived datatypes, and sums on any number of ranks."""
    source, sink = device.asarray(given(world, 12)), device.asarray(numpy.full(12, -1))
    with world.using(allreduce="native", bcast="native"):
        world.Allreduce(source, sink)
        assert numpy.array_equal(device.asnumpy(sink), total(world, 12))
        world.Bcast([source, 6, MPI.INT64_T], root=world.size - 1)
    wanted = given(world, 12)
    wanted[:6] = numpy.arange(6) + world.size - 1
    assert numpy.array_equal(device.asnumpy(source), wanted)
    column = MPI.INT64_T.Create_vector(3, 1, 4).Commit()
    matrix = device.asarray(numpy.full((3, 4), world.rank))
    with world.using(bcast="binomial"):
        world.Bcast([matrix, 1, column], root=world.size - 1)
    wanted = numpy.full((3, 4), world.rank)
    wanted[:, 0] = world.size - 1
    assert numpy.array_equal(device.asnumpy(matrix), wanted)
    column.Free()
    reals, result = device.asarray(numpy.full(5, 0.1)), device.empty(5)
    hpccoll.Comm(world, determinism="any-p").Allreduce(reals, result)
    assert numpy.allclose(device.asnumpy(result), 0.1 * world.size)


def test_checks_see_what_is_on_the_device(world, device, monkeypatch):
    monkeypatch.setenv("HPCCOLL_CHECK", "nan,results")
    comm = hpccoll.Comm(world, checksums=True)
    source, sink = device.asarray(numpy.ones(9)), device.empty(9)
    comm.Allreduce(source, sink)
    assert list(device.asnumpy(sink)) == [world.size] * 9
    source[...] = device.asarray(numpy.full(9, numpy.nan))
    with pytest.raises(hpccoll.HpccollError, match="NaN"):
        comm.Allreduce(source, sink)


def test_all_ranks_agree_on_the_ways(world, monkeypatch):
    monkeypatch.setattr(evidence, "devices", lambda: (f"0000:0{world.rank}:00.0",))
    monkeypatch.setattr(evidence, "LOOKS", {name: lambda name=name: Answer(
        name == STAGED.name, f"{name} as rank 0 saw it") for name in evidence.LOOKS})
    comm = hpccoll.Comm(MPI.Intracomm(world).Dup())
    assert "Device arrays" not in comm.explain("allreduce", "1M")
    shown = comm.ways
    assert set(world.allgather(shown)) == {shown}
    assert shown.splitlines()[-1].startswith("staged yes: staged as rank 0 saw it")
    assert "ipc    no: " in comm.explain("allreduce", "1M")
    comm.Free()
