"""Device memory that the MPI library cannot move, on a double, through real transports."""

import numpy
import pytest
from mpi4py import MPI

import hpccoll
from hpccoll.comm import devices, staged_calls
from hpccoll.cuda import device_probes, windows
from hpccoll.cuda.device_paths import STAGED, Answer
from hpccoll.errors import BufferArgumentError
from support.gpu.device import installed
from support.gpu.streams import Devices

pytestmark = pytest.mark.mpi
#: Elements: one window in one piece, one in several, and many segments.
COUNTS = 7, 3001, 40_000


@pytest.fixture(params=["host memory", "windows"])
def device(world, monkeypatch, request):
    """A double of CuPy whose host is slow to wait, with a current stream."""
    monkeypatch.setattr(windows, "FAIR", 4096)
    if request.param == "windows":
        monkeypatch.setattr(staged_calls, "MOST_BYTES", -1)
    for name, method in devices.message_methods().items():  # as they are where CuPy is installed
        monkeypatch.setattr(devices.DeviceMessages, name, method, raising=False)
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


#: Nonblocking and persistent calls with no algorithm asked for, and what each gives a rank of p.
BEGUN = {
    "allreduce": ("(given, out)", lambda p, r: sum(range(1, p + 1))),
    "bcast": ("(given, p - 1)", lambda p, r: p),
    "allgather": ("(given[:1], out)", lambda p, r: 1),
    "allgatherv": ("(given[:1], [out, [1] * p])", lambda p, r: 1),
    "alltoall": ("(given, out)", lambda p, r: 1),
    "reduce_scatter_block": ("(given, out[:1])", lambda p, r: sum(range(1, p + 1))),
    "scatter": ("(given if r == 0 else None, out[:1])", lambda p, r: 1)}


@pytest.mark.parametrize("name", BEGUN)
def test_calls_that_are_only_begun_take_an_algorithm_of_ours(world, device, name):
    """On a communicator that no other call has set up, too; every start reads the memory again."""
    comm, (p, r) = hpccoll.Comm(MPI.Intracomm(world).Dup()), (world.size, world.rank)
    arguments, wanted = BEGUN[name]
    for form in (f"I{name}", f"{name.capitalize()}_init", f"I{name}"):
        given, out = device.asarray(numpy.full(p, r + 1.0)), device.asarray(numpy.zeros(p))
        named = {"given": given, "out": out, "p": p, "r": r}
        request = getattr(comm, form)(*eval(arguments, named))
        if form.endswith("init"):
            request.Start()
        request.Wait()
        assert device.asnumpy(given if name == "bcast" else out)[0] == wanted(p, r)
        if form.endswith("init"):
            request.Free()
    comm.Free()


@pytest.mark.parametrize("count", [1, 40_000])
@pytest.mark.parametrize("far", [False, True], ids=["to a device", "to a host"])
def test_messages(world, device, count, far):
    """What is sent has been computed when it is copied; what came is there for the same stream."""
    right, left = (world.rank + 1) % world.size, (world.rank - 1) % world.size
    source, mine = device.empty(count, "i8"), numpy.array if far else device.asarray
    sink, seen = mine(numpy.zeros(count, "i8")), numpy.asarray if far else device.asnumpy
    for turn, pass_on in enumerate([
            lambda: world.Sendrecv(source, right, 3, sink, left, 3),
            lambda: world.Sendrecv(source, right, recvbuf=[sink, MPI.INT64_T], source=left),
            lambda: (world.Isend([source, count, MPI.INT64_T], right),
                     world.Recv(sink, left, status=status))[0].Wait()]):
        status = MPI.Status()
        source[...] = device.asarray(given(world, count, turn))
        pass_on()
        assert numpy.array_equal(seen(sink), numpy.arange(count) + left + turn)
    assert status.Get_source() == left
    world.Sendrecv_replace(source, right, 0, left)
    assert numpy.array_equal(device.asnumpy(source), numpy.arange(count) + left + 2)


def test_a_message_that_nobody_would_copy_later_is_refused(world, device):
    for call in (lambda x: world.Irecv(x, 0), lambda x: world.Recv_init(buf=x, source=0),
                 lambda x: world.Send_init([x, MPI.DOUBLE], 0)):
        with pytest.raises(BufferArgumentError, match="device memory"):
            call(device.empty(3))
    request = world.Irecv(numpy.zeros(1), MPI.PROC_NULL)
    request.Wait()


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
    monkeypatch.setattr(device_probes, "visible_devices", lambda: (f"0000:0{world.rank}:00.0",))
    monkeypatch.setattr(device_probes, "LOOKS", {name: lambda name=name: Answer(
        name == STAGED.name, f"{name} as rank 0 saw it") for name in device_probes.LOOKS})
    comm = hpccoll.Comm(MPI.Intracomm(world).Dup())
    assert "Device arrays" not in comm.explain("allreduce", "1M")
    shown = comm.ways
    assert set(world.allgather(shown)) == {shown}
    assert shown.splitlines()[-1].startswith("staged yes: staged as rank 0 saw it")
    assert "ipc    no: " in comm.explain("allreduce", "1M")
    comm.Free()
