"""Device memory that the MPI library cannot move: messages, checks, what goes in one piece."""

import numpy
import pytest
from mpi4py import MPI

import hpccoll
from hpccoll.comm import device_messages, devices, staged_calls
from hpccoll.cuda import device_probes, windows
from hpccoll.cuda.device_paths import STAGED, Answer
from hpccoll.errors import BufferArgumentError
from support.gpu.device import installed
from support.gpu.streams import Devices

pytestmark = pytest.mark.mpi


@pytest.fixture(params=["host memory", "windows"])
def device(world, monkeypatch, request):
    """A double of CuPy whose host is slow to wait, with a current stream."""
    monkeypatch.setattr(windows, "FAIR", 4096)
    if request.param == "windows":
        monkeypatch.setattr(staged_calls, "MOST_BYTES", -1)
    # As they are where CuPy is installed.
    for name, method in device_messages.message_methods().items():
        monkeypatch.setattr(devices.DeviceMessages, name, method, raising=False)
    with installed(False, Devices(seed=world.rank)) as cupy, cupy.cuda.Stream(non_blocking=True):
        yield cupy


def given(world, count, turn=0):
    return numpy.arange(count, dtype="i8") + world.rank + turn


def total(world, count, turn=0):
    return (numpy.arange(count) + turn) * world.size + world.size * (world.size - 1) // 2


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


def test_the_first_call_of_a_communicator_may_be_begun(world, device):
    """By an algorithm of ours, although none was chosen; every start reads the memory again."""
    comm = hpccoll.Comm(MPI.Intracomm(world).Dup())
    source, sink = device.empty(12, "i8"), device.empty(12, "i8")
    for turn, make in enumerate([comm.Iallreduce, comm.Allreduce_init, comm.Iallreduce]):
        source[...] = device.asarray(given(world, 12, turn))
        request = make(source, sink)
        if turn == 1:
            request.Start()
        request.Wait()
        assert numpy.array_equal(device.asnumpy(sink), total(world, 12, turn))
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
