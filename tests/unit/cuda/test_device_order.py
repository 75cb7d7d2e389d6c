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
from hpccoll.cuda.windows import WindowedBuffer
from hpccoll.errors import BufferArgumentError
from hpccoll.runtime.planning import planner
from support.gpu.device import DeviceArray, installed
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


# -- what breaks it ------------------------------------------------------------------------------
def without_waiting(obj, array, cupy):
    """A stream of CuPy's that is not the caller's."""
    with array.device:
        return cupy.cuda.Stream(non_blocking=True), True


def on_the_threads_stream(array, namespace):
    """Kernels on whatever stream, and device, the thread that runs them has."""
    stream = namespace.cuda.get_current_stream() if hasattr(namespace, "cuda") else None

    def perform(actions):
        for function, operands in actions:
            function(*operands)
        stream.synchronize()

    return perform if stream else None


def not_waiting_for_kernels(array, namespace):
    """Kernels that are queued, and messages that do not wait for them."""
    perform = PERFORMER(array, namespace)

    def queue(actions):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Stream, "synchronize", lambda stream: None)
            perform(actions)

    return perform and queue


def on_a_stream_of_its_own(*which):
    """Windows whose copies come after nothing that the caller has queued."""
    def made(self, plan, array, staged, *names):
        WINDOWED(self, plan, array, staged, *names)
        for name in which:
            with staged.device:
                setattr(self, name, staged.cupy.cuda.Stream(non_blocking=True))

    return made


def ahead_of_everything(self, number):
    """Loads of a segment whose window another one is using."""
    for each in range(number, min(number + self.prefetch + 2, len(self.plan.segments))):
        if each not in self.arrived:
            self._load(each)


def forgetting_stores(self, number, phase):
    """Results on their way that nobody knows of who uses the window next."""
    PASSED(self, number, phase)
    self.stored.clear()


def only_keeping(self):
    """Results that nothing waits for."""
    for copy in self.underway.values():
        staging.keep(*copy)


def storing_at_once(self, number, phase):
    """Results that go back when the first phase that writes some of them is over."""
    group = self.moves[number].gives[phase]
    if group >= 0 and self.left[number][group]:
        self.left[number][group] = 1
        PASSED(self, number, phase)
        self.left[number][group] = 0


SET, PERFORMER, STREAM_OF = DeviceArray.set, device.performer, device._stream_of
WINDOWED, PASSED = WindowedBuffer.__init__, WindowedBuffer.queue_stores
#: Calls in segments, of several groups of copies each.
SMALL = {"fair": 1}

#: What is broken: where, what is there instead, and a call that it breaks.
BREAKS = {
    "the producer's stream is not waited for":
        (device, "_stream_of", without_waiting, {"direct": True, "name": "bcast"}),
    "another stream than the caller's copies": (device, "_stream_of", without_waiting, {}),
    "a phase begins before the copy that it needs is complete":
        (WindowedBuffer, "can_start", lambda self, number, phase: True, {}),
    "copies to the host do not wait for the producer":
        (WindowedBuffer, "__init__", on_a_stream_of_its_own("inward"), SMALL),
    "results do not wait for earlier work on their memory":
        (WindowedBuffer, "__init__", on_a_stream_of_its_own("outward"), {**SMALL, "name": "bcast"}),
    "the caller's stream does not wait for the results":
        (staging.StagedBuffer, "finish", only_keeping, {}),
    "a window is used again before its results have left it":
        (WindowedBuffer, "queue_stores", forgetting_stores, {**SMALL, "name": "bcast", "ahead": 0}),
    "a window is loaded while another segment uses it":
        (WindowedBuffer, "begin", ahead_of_everything, {**SMALL, "name": "allreduce in place"}),
    "results leave before they are complete":
        (WindowedBuffer, "queue_stores", storing_at_once,
         {"name": "alltoall in place", "early": 1}),
    "an exchange in place overwrites what it has not read":
        (WindowedBuffer, "__init__", lambda *args: WINDOWED(*args[:5]),
         {**SMALL, "name": "alltoall in place", "size": 5, "segment_bytes": 99, "early": 1}),
    "pinned memory is given back before its event":
        (staging.InUseMemory, "keep", lambda *copy: None, {}),
    "results are copied on another stream":
        (DeviceArray, "set", lambda a, host, stream: SET(
            a, host, Stream(a.machine, a.number, non_blocking=True)), {}),
    "results that any stream may read are not waited for":
        (device, "_stream_of", lambda *what: (STREAM_OF(*what)[0], True), {"stream": "null"}),
    "kernels run on the thread's own stream":
        (planner, "performer", on_the_threads_stream, {"direct": True, "elsewhere": True}),
    "messages do not wait for kernels":
        (planner, "performer", not_waiting_for_kernels, {"direct": True}),
    "scratch memory lies on the current device":
        (planner, "allocator_like", lambda array, namespace, allocate: allocate,
         {"direct": True, "away": True, "devices": 2}),
}


@pytest.mark.parametrize("what", BREAKS)
def test_a_broken_variant_is_caught(what, monkeypatch):
    where, name, instead, fixed = BREAKS[what]
    drawn = {"name": "allreduce", "size": 4, "dtype": "f4", "direct": False, "elsewhere": False,
             "away": False, "stream": "non_blocking", "devices": 1, "segment_bytes": 8,
             "fair": 1 << 20, "ahead": 1 << 20, "early": None, **fixed}

    def found():
        try:
            return make(RandomCall(1, **drawn, machine=Devices(drawn["devices"], drawn["early"])))
        except CudaError as error:
            return str(error)

    assert not found()
    monkeypatch.setattr(where, name, instead)
    assert found()


def test_an_address_of_device_memory_is_none_of_the_hosts():
    with installed(False) as cupy:
        address = cupy.empty(3).__cuda_array_interface__["data"][0]
    assert address >> 47  # what no process of this processor can have


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


@pytest.mark.parametrize("cuda_aware", [True, False])
def test_a_capture_that_is_not_looked_for_would_be_broken(cuda_aware, monkeypatch):
    monkeypatch.setattr(Stream, "is_capturing", lambda stream: False)
    with pytest.raises(CudaError, match="Capture"):
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
