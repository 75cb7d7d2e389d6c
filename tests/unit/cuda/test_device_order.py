"""Orders of streams, events and pinned memory: random calls, and whether broken ones are caught."""

import gc
import sys
from itertools import product
from types import SimpleNamespace

import numpy
import pytest
from mpi4py import MPI

import hpccoll
from hpccoll.comm import staged_calls
from hpccoll.cuda import device, staging
from hpccoll.errors import BufferArgumentError
from support.gpu.device import installed
from support.gpu.device_world import CALLS, DTYPES, RandomCall, make
from support.gpu.streams import CudaError, Devices, Stream
from support.gpu.tensors import DeviceTensor, torch_on


@pytest.fixture(autouse=True)
def flying(monkeypatch):
    """Memory that copies of this test still read, and none of another one's."""
    monkeypatch.setattr(staging, "_FLYING", staging.InUseMemory())
    return staging._FLYING


def held(machine, flying):
    """What is left when all is done and nobody reads it any more."""
    machine.finish_all()
    flying.keep(SimpleNamespace(done=True), numpy.empty(0))
    flying.keep(SimpleNamespace(done=True), numpy.empty(0))
    gc.collect()
    return +machine.held


@pytest.mark.long(every=5)
@pytest.mark.slow(every=10)
@pytest.mark.parametrize("direct", [True, False], ids=["direct", "staged"])
@pytest.mark.parametrize("name", CALLS)
def test_every_collective_on_any_number_of_ranks_and_any_type(name, direct):
    for size, dtype in product(range(1, 9), DTYPES):
        assert not make(RandomCall(size, name=name, size=size, dtype=dtype, direct=direct))


def test_random_calls():
    for seed in range(100):
        assert not make(RandomCall(seed)), seed


# -- requests, other libraries, faults, leaks ----------------------------------------------------
@pytest.mark.parametrize("cuda_aware", [True, False])
def test_every_start_waits_for_what_was_queued_before_it(cuda_aware):
    comm = hpccoll.Comm(MPI.COMM_SELF)
    with installed(cuda_aware) as cupy, comm.using(allreduce="ring"):
        source, sink = cupy.empty(6), cupy.empty(6)
        request = comm.Allreduce_init(source, sink)
        for number in range(3):
            source[...] = cupy.asarray(numpy.full(6, number))
            request.Start()
            request.Wait()
            assert list(cupy.asnumpy(sink)) == [number] * 6
        request.Free()


def test_tensors_are_used_on_the_stream_of_their_own_library(monkeypatch):
    machine = Devices()
    with installed(False, machine) as cupy:
        stream = cupy.cuda.Stream(non_blocking=True)
        monkeypatch.setitem(sys.modules, "torch", torch_on(stream))
        with stream:
            array = cupy.empty(4)
            array[...] = cupy.asarray(numpy.arange(4.0))
        tensor = DeviceTensor(array)
        flat, _, staged = device.borrow(tensor, device.as_cupy(tensor), "b")
        host, load, store = staged.mirror(flat)
        load()
        assert list(host) == [0, 1, 2, 3]
        host += 1
        waits = stream.synchronized
        store()
        assert stream.synchronized == waits  # the host does not wait, the stream does
        with stream:
            after = array.copy()
        stream.synchronize()
        assert list(after.raw) == [1, 2, 3, 4]


def capture(cuda_aware):
    """Call a collective while a stream is captured, and go on with the capture."""
    comm, machine = hpccoll.Comm(MPI.Intracomm(MPI.COMM_SELF.Dup())), Devices()
    with installed(cuda_aware, machine) as cupy, comm.using(allreduce="ring"):
        source, sink = cupy.asarray(numpy.arange(6.0)), cupy.empty(6)
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            comm.Allreduce(source, sink)
            stream.begin_capture()
            source[...] = sink
            for call in (comm.Allreduce, comm.Iallreduce, comm.Allreduce_init):
                with pytest.raises(BufferArgumentError, match="(send|recv)buf: .*CUDA"):
                    call(source, sink)
            assert len(stream.end_capture()) == 1  # the caller's work, and nothing else
            comm.Allreduce(source, sink)
        stream.synchronize()
        assert list(cupy.asnumpy(sink)) == list(range(6))
    comm.Free()


@pytest.mark.parametrize("cuda_aware", [True, False])
def test_a_captured_stream_is_refused_and_stays_captured(cuda_aware):
    capture(cuda_aware)


def test_the_native_method_waits_for_the_producer_in_every_call():
    comm = hpccoll.Comm(MPI.COMM_SELF)
    with installed(True) as cupy, comm.using(allreduce="native", bcast="native"):
        source, sink = cupy.empty(6), cupy.empty(6)
        for number in range(4):
            source[...] = cupy.asarray(numpy.full(6, number))
            comm.Allreduce(source, sink)
            assert list(sink.raw) == [number] * 6


@pytest.mark.parametrize("function", ["alloc_pinned_memory", "memcpyAsync", "eventSynchronize"])
def test_a_fault_is_told_and_leaves_nothing(function, flying, monkeypatch):
    monkeypatch.setattr(staged_calls, "MOST_BYTES", -1)  # by windows
    comm, machine = hpccoll.Comm(MPI.COMM_SELF), Devices()
    with installed(False, machine) as cupy, comm.using(allreduce="ring"):
        source, sink = cupy.asarray(numpy.arange(6.0)), cupy.empty(6)
        machine.faults[function] = 0
        with pytest.raises(CudaError, match="cudaErrorUnknown"):
            comm.Allreduce(source, sink)
        comm.Allreduce(source, sink)
        assert list(cupy.asnumpy(sink)) == list(range(6))
        del source, sink
    assert not held(machine, flying)


def test_a_fault_of_the_stream_is_told_where_the_library_moves_device_memory():
    comm, machine = hpccoll.Comm(MPI.COMM_SELF), Devices()
    with installed(True, machine) as cupy:
        source, sink = cupy.asarray(numpy.arange(6.0)), cupy.empty(6)
        machine.faults["streamSynchronize"] = 0
        with pytest.raises(CudaError, match="cudaErrorUnknown"):
            comm.Allreduce(source, sink)


@pytest.mark.parametrize("direct", [True, False], ids=["direct", "staged"])
def test_nothing_leaks(direct, flying):
    drawn = RandomCall(3, direct=direct, name="allreduce", size=2, stream="non_blocking")
    assert not make(drawn, 100)
    assert not held(drawn.machine, flying)


def test_memory_that_copies_still_read_is_bounded(monkeypatch):
    machine, flying = Devices(), staging.InUseMemory()
    monkeypatch.setattr(staging.InUseMemory, "LIMIT", 100)
    stream, events = Stream(machine, 0), []
    for _ in range(10):
        stream.push(lambda: None)
        events.append(stream.record())
        flying.keep(events[-1], numpy.empty(40, "u1"))
        assert sum(memory.nbytes for _, memory in flying.copies) <= 100
    assert events[0].task.done and not events[-1].task.done
