"""Device memory without a device: both ways through the engine, on arrays that refuse the host."""

import contextlib
import sys
from types import SimpleNamespace

import numpy
import pytest
from mpi4py import MPI

import hpccoll
from hpccoll.calls import resolve
from hpccoll.calls.memory import is_staged
from hpccoll.calls.native import NativeOnly
from hpccoll.calls.specification import buffer_of, host_buffer
from hpccoll.config import Config
from hpccoll.cuda import device, staging
from hpccoll.errors import BufferArgumentError
from hpccoll.ir.topology import Topology
from hpccoll.machine.limits import DEDICATED
from hpccoll.runtime.bounded import BoundedDict
from hpccoll.runtime.planning import planner
from hpccoll.runtime.planning.choice import Choice
from hpccoll.testing.world import interleave
from hpccoll.transport.loopback import Loopback
from support.gpu.device import DlpackArray, Wire, installed
from support.gpu.streams import Devices
from support.no_guard import NoGuard

SIZE, COUNT = 4, 12
HOW = pytest.mark.parametrize("cuda_aware", [True, False], ids=["direct", "staged"])


def context(world, rank):
    """What the engine needs of a communicator."""
    wire = Wire(world.endpoint(rank))
    return SimpleNamespace(
        rank=rank, size=SIZE, endpoint=wire, remote=wire, plans=BoundedDict(9),
        config=Config(), limits=DEDICATED, scratch_bytes=0, topology=Topology.parse("2x2"),
        scratch=lambda nbytes: numpy.empty(nbytes, "u1"), guard=NoGuard(), phases=None)


@pytest.mark.parametrize("type_", ["f2", "bfloat16"])
@pytest.mark.parametrize("algorithm", ["allpairs", "linear", "recursive_multiplying", "ring"])
def test_sums_of_16_bit_floats_are_rounded_alike_in_any_memory(algorithm, type_):
    """Also where some ranks have it and others have not."""
    if type_ == "bfloat16":
        pytest.importorskip("ml_dtypes")
    dtype, results = numpy.dtype(type_), []
    terms = [numpy.random.default_rng(rank).standard_normal(COUNT).astype(dtype)
             for rank in range(SIZE)]
    for on_device in ((), (0, 2), range(SIZE)):
        with installed(True) as cupy:
            world, sinks, executions = Loopback(SIZE), [], []
            for rank in range(SIZE):
                namespace = cupy if rank in on_device else numpy
                sinks.append(namespace.empty(COUNT, dtype))
                made = resolve.allreduce(SIZE, rank, namespace.asarray(terms[rank]), sinks[-1],
                                       MPI.SUM)
                mine = context(world, rank)
                plan = planner.plan_for(mine, made, Choice(algorithm))
                executions.append(planner.prepare(mine, made, plan))
            interleave(executions)
            results += [getattr(sink, "raw", sink).copy() for sink in sinks]
    assert len({result.tobytes() for result in results}) == 1
    if algorithm == "linear":
        one, *others = (term.astype("f4") for term in terms)
        assert results[0].tobytes() == sum(others, one).astype(dtype).tobytes()


# -- a communicator -----------------------------------------------------------------------------
@HOW
def test_a_communicator_takes_device_arrays(cuda_aware):
    comm = hpccoll.Comm(MPI.COMM_SELF)
    with installed(cuda_aware) as cupy, comm.using(allreduce="ring", bcast="binomial"):
        for wrap in (lambda array: array, DlpackArray):
            source, sink = cupy.asarray(numpy.arange(6.0)), cupy.empty(6)
            comm.Allreduce(wrap(source), wrap(sink))
            assert list(cupy.asnumpy(sink)) == list(range(6))
            comm.Allreduce(MPI.IN_PLACE, [wrap(sink), 3, MPI.DOUBLE])
            comm.Bcast(wrap(sink))
            assert list(cupy.asnumpy(sink)) == list(range(6))


def test_operators_without_a_device_kernel_are_left_to_the_library():
    op = MPI.Op.Create(lambda one, two, datatype: None, commute=True)
    with installed(True) as cupy:
        source, sink = cupy.asarray(numpy.arange(6.0)), cupy.empty(6)
        for attempt in (lambda: resolve.allreduce(2, 0, source, sink, op),
                        lambda: resolve.reduce(2, 1, source, None, op, 0)):
            with pytest.raises(NativeOnly, match=r"Op\.Create.*device="):
                attempt()
        assert resolve.allreduce(2, 0, source, sink, MPI.SUM).op == MPI.SUM
    with installed(False) as cupy:  # staged: the processor can reach the copies
        assert resolve.reduce(2, 1, cupy.asarray(numpy.arange(6.0)), None, op, 0).op == op
    op.Free()


@HOW
def test_bfloat16_tensors_are_reduced_as_such(cuda_aware):
    comm, bfloat16 = hpccoll.Comm(MPI.COMM_SELF), pytest.importorskip("ml_dtypes").bfloat16
    with installed(cuda_aware) as cupy, comm.using(allreduce="ring"):
        array = cupy.asarray(numpy.arange(6).astype(bfloat16))
        tensor = SimpleNamespace(dtype="torch.bfloat16", __cuda_array_interface__={
            **array.view("i2").__cuda_array_interface__, "typestr": "<V2"})
        comm.Allreduce(MPI.IN_PLACE, tensor)
        comm.Allreduce(tensor, result := cupy.empty(6, bfloat16))
        assert list(cupy.asnumpy(result)) == list(range(6))


# -- what is recognised -------------------------------------------------------------------------


@HOW
def test_device_buffers_that_overlap_are_refused(cuda_aware):
    with installed(cuda_aware) as cupy:
        array = cupy.asarray(numpy.arange(6.0))
        with pytest.raises(BufferArgumentError, match="overlaps"):
            resolve.allreduce(SIZE, 0, array[:3], array[2:5], MPI.SUM)
        assert resolve.allreduce(SIZE, 0, array[:3], array[3:], MPI.SUM).sink.count == 3


def test_device_memory_is_used_where_it_lies_or_copied():
    with installed(True) as cupy:
        array = cupy.asarray(numpy.arange(4.0))
        buffer = buffer_of(array, "b")
        assert buffer.array.raw.base is array.raw or buffer.array.raw is array.raw
        assert buffer.namespace is cupy and buffer.store is None and not is_staged(array)
    with installed(False) as cupy:
        array = cupy.asarray(numpy.arange(4.0))
        assert is_staged(array) and is_staged([array, 4, MPI.DOUBLE])
        assert buffer_of(array, "b").store is None
        buffer = buffer_of(array, "b", writable=True)
        assert buffer.namespace is numpy and buffer.staged is not None
        host = host_buffer(buffer)
        host.load()
        assert list(host.array) == [0, 1, 2, 3] and host_buffer(host) is host
        host.array[...] = 7
        assert array.raw[0] == 0
        host.store()
        assert list(array.raw) == [7] * 4
        assert host_buffer(buffer_of(array, "b")).store is None


def test_calls_on_host_memory_never_look_for_cupy(monkeypatch):
    asked = []

    class Finder:
        """Notes who is looked for."""

        @staticmethod
        def find_spec(name, path=None, target=None):
            asked.append(name)

    monkeypatch.setattr(sys, "meta_path", [Finder, *sys.meta_path])
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    comm = hpccoll.Comm(MPI.COMM_SELF)
    source, sink = numpy.arange(6.0), numpy.empty(6)
    for algorithm in ("ring", "native", "auto"):
        with comm.using(allreduce=algorithm):
            for send in (source, memoryview(source), [source, 6, MPI.DOUBLE]):
                comm.Allreduce(send, sink)
                comm.Iallreduce(send, sink).Wait()
                comm.allreduce(source)
    assert "cupy" not in asked
    device.has_cupy.cache_clear()
    with contextlib.suppress(Exception):  # what claims to be a device array is looked at with it
        buffer_of(SimpleNamespace(__cuda_array_interface__={}), "b")
    device.has_cupy.cache_clear()
    assert "cupy" in asked


def test_without_cupy_it_is_the_native_methods_business(monkeypatch):
    with installed(True) as cupy:
        array = cupy.asarray(numpy.arange(4.0))
    monkeypatch.setitem(sys.modules, "cupy", None)
    device.has_cupy.cache_clear()
    try:
        assert not device.has_cupy() and not is_staged(array)
    finally:
        device.has_cupy.cache_clear()


@pytest.fixture
def elsewhere(monkeypatch):
    """Two devices, and an array of the one that is not current, whose caller uses stream 0."""
    def made(cuda_aware):
        monkeypatch.setattr(device, "_stream_of", lambda obj, array, cupy: (
            cupy.cuda.ExternalStream(0, array.device.id), True))
        cupy = installing.enter_context(installed(cuda_aware, Devices(2)))
        with cupy.cuda.Device(1):
            array = cupy.asarray(numpy.zeros(4))
            array[...] = cupy.asarray(numpy.ones(4))
        return cupy, array

    with contextlib.ExitStack() as installing:
        yield made


def test_the_null_stream_that_is_waited_for_is_that_of_the_array(elsewhere):
    cupy, array = elsewhere(True)
    flat, _, _ = device.borrow(array, array, "sendbuf")
    assert list(flat.raw) == [1] * 4
    with cupy.cuda.Device(1):
        perform, zeros = device.performer(flat, cupy), cupy.asarray(numpy.zeros(4))
    perform([(cupy.copyto, (flat, zeros))])
    assert list(flat.raw) == [0] * 4


def test_results_are_ordered_on_the_null_stream_of_the_array(elsewhere):
    cupy, array = elsewhere(False)
    flat, _, staged = device.borrow(array, array, "sendbuf")
    zeros = staging.allocate_pinned(cupy, array.nbytes)
    with cupy.cuda.Device(1):
        copies = cupy.cuda.Stream(non_blocking=True)
        copies.wait_event(staged.mark(staged.stream))
        flat.set(zeros.view("f8"), stream=copies)
        staged.underway[0] = staged.mark(copies), zeros
    staged.finish()
    with cupy.cuda.Device(1):
        read = array.copy()
        cupy.cuda.get_current_stream().synchronize()
    assert list(read.raw) == [0] * 4
