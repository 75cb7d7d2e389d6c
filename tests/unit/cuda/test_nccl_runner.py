"""Calls that NCCL is asked for: served, refused, or given way, on one rank and its double."""

import sys

import numpy
import pytest
from mpi4py import MPI

import hpccoll
from hpccoll.calls.facts import CallFacts
from hpccoll.comm.devices import choose_across_nodes
from hpccoll.cuda.nccl_runner import Nccl
from hpccoll.errors import ArgumentError, BufferArgumentError
from hpccoll.runtime.attributes import existing_context
from support.gpu.device import installed
from support.gpu.streams import Devices
from support.gpu.tensors import DeviceTensor, torch_on


@pytest.fixture
def machine():
    return Devices(2)


@pytest.fixture
def comm(machine):
    comm = hpccoll.Comm(MPI.COMM_SELF.Dup())
    yield comm
    machine.finish_all()
    comm.Free()


@pytest.fixture
def cupy(machine):
    with installed(False, machine) as cupy:
        yield cupy


def arrays(cupy, count=6):
    return cupy.asarray(numpy.arange(float(count))), cupy.empty(count)


@pytest.mark.parametrize("name", ["nccl", "nccl+rails", "nccl+leader"])
def test_it_serves_on_the_callers_stream(comm, cupy, machine, name):
    with cupy.cuda.Stream(non_blocking=True) as stream, comm.using(allreduce=name):
        source, sink = arrays(cupy)
        for number in range(3):
            source[...] = cupy.asarray(numpy.full(6, number))
            comm.Allreduce(source, sink)
            read = sink.copy()
            sink[...] = 77
            if name == "nccl":
                assert not stream.synchronized
            else:
                assert machine.held["communicators"] == 1
            assert list(cupy.asnumpy(read)) == [number] * 6
            stream.synchronized = 0
    assert comm._served == (name, 48)


@pytest.mark.parametrize("name", ["nccl", "nccl+rails", "nccl+leader"])
def test_tensors_of_torch_are_served_on_torchs_stream(comm, cupy, machine, monkeypatch, name):
    stream, other = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
    monkeypatch.setitem(sys.modules, "torch", torch_on(stream))
    with stream:
        source, sink = cupy.empty(4), cupy.empty(4)
        source[...] = cupy.asarray(numpy.arange(4.0))
    with other, comm.using(allreduce=name):  # CuPy's current stream is not torch's
        comm.Allreduce(DeviceTensor(source), DeviceTensor(sink))
    with stream:
        read = sink.copy()
        source[...] = sink[...] = 77
    stream.synchronize()
    assert list(read.raw) == [0, 1, 2, 3] and comm._served[0] == name
    assert not other.synchronized


def test_the_part_across_waits_for_the_null_stream_of_its_device(comm, cupy, machine):
    with cupy.cuda.Device(1):
        source, sink = arrays(cupy)
    waited = []
    machine.nulls[0].push(lambda: waited.append(0))
    machine.nulls[1].push(lambda: waited.append(1))
    with comm.using(allreduce="nccl+rails"):
        comm.Allreduce(source, sink)
    assert waited == [1]


def test_what_it_holds_goes_with_the_communicator(cupy, machine):
    comm = hpccoll.Comm(MPI.COMM_SELF.Dup())
    source, sink = arrays(cupy)
    with comm.using(allreduce="nccl"):
        for _ in range(100):
            comm.Allreduce(source, sink)
            cupy.cuda.get_current_stream().synchronize()
        ranks = existing_context(comm).service(Nccl).made["nccl"]
        assert len(ranks.queued.pending) == 1
        assert machine.held["communicators"] == 1 and machine.held["events"] <= 2
    comm.Free()
    assert not machine.held["communicators"]
    del ranks
    assert not machine.held["events"]


@pytest.mark.parametrize("name, make, error, what", [
    ("nccl", lambda c, x, y: c.Allreduce(numpy.ones(2), numpy.ones(2)), ArgumentError,
     "allreduce: rank 0.*GPU"),
    ("nccl", lambda c, x, y: c.Allreduce(x, numpy.ones(6)), ArgumentError,
     "allreduce.*rank 0.*host.*device"),
    ("nccl", lambda c, x, y: c.Allreduce(x.view("i8"), y.view("i8"), MPI.BAND), ArgumentError,
     "'band'"),
    ("nccl", lambda c, x, y: c.Allreduce(x.view("c16"), y.view("c16")), ArgumentError,
     "complex128"),
    ("nccl", lambda c, x, y: c.Reduce_scatter(x, y, [6]), ArgumentError, "reduce_scatter"),
    ("nccl", lambda c, x, y: c.Iallreduce(x, y), ArgumentError, "blocking calls only"),
    ("nccl", lambda c, x, y: c.Allreduce_init(x, y), ArgumentError, "blocking calls only"),
    (("nccl", {"k": 2}), lambda c, x, y: c.Allreduce(x, y), ArgumentError, "no parameters"),
])
def test_what_it_refuses(comm, cupy, name, make, error, what):
    source, sink = arrays(cupy)
    with comm.using(allreduce=name, reduce_scatter=name), pytest.raises(error, match=what):
        make(comm, source, sink)
    comm.Allreduce(source, sink)  # nothing is broken
    assert list(cupy.asnumpy(sink)) == list(range(6))


@pytest.mark.parametrize("preference, what", [
    ({"scan": "nccl"}, "nccl has no scan; it supports allgather, allreduce"),
    ({"bcast": "nccl+rails"}, "has no bcast; it supports allreduce"),
    ({"barrier": "nccl"}, "no barrier")])
def test_what_nobody_can_ask_for(comm, preference, what):
    with pytest.raises(ArgumentError, match=what.replace("+", r"\+")):
        comm.using(**preference)


def test_promises_it_cannot_keep(cupy):
    comm = hpccoll.Comm(MPI.COMM_SELF.Dup(), determinism="run")
    source, sink = arrays(cupy)
    with comm.using(allreduce="nccl"):
        comm.Allreduce(source, sink)  # one rank rounds nothing
    cupy.cuda.get_current_stream().synchronize()
    from hpccoll.runtime.planning.choice import Choice
    from hpccoll.tune.determinism import violation
    assert "NCCL guarantees no order" in violation(Choice("nccl"), CallFacts("allreduce",
                                                                         "allreduce"), "run")
    comm.Free()


def test_a_capture_goes_on(comm, cupy):
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream, comm.using(allreduce="nccl"):
        source, sink = arrays(cupy)
        stream.begin_capture()
        source[...] = sink
        with pytest.raises(BufferArgumentError, match="recvbuf: .*CUDA"):
            comm.Allreduce(source, sink)
        assert len(stream.end_capture()) == 1


def test_one_device_for_all_calls(comm, cupy):
    with comm.using(allreduce="nccl"):
        comm.Allreduce(*arrays(cupy))
        with cupy.cuda.Device(1):
            with pytest.raises(ArgumentError, match="GPU 1.*GPU 0"):
                comm.Allreduce(*arrays(cupy))
            sink = arrays(cupy)[1]
        with pytest.raises(BufferArgumentError, match="GPU"):
            comm.Allreduce(arrays(cupy)[0], sink)


def test_the_environment_gives_way(monkeypatch, cupy):
    monkeypatch.setenv("HPCCOLL_ALGORITHM", "allreduce=nccl")
    comm = hpccoll.Comm(MPI.COMM_SELF.Dup())
    x = numpy.ones(3)
    comm.Allreduce(MPI.IN_PLACE, x)
    assert comm._served[0] == "native" and list(x) == [1, 1, 1]
    source, sink = arrays(cupy)
    comm.Allreduce(source, sink)
    assert comm._served[0] == "nccl"
    comm.Allreduce(source.view("i8"), sink.view("i8"), MPI.BOR)
    assert comm._served[0] == "native"
    comm.Iallreduce(x, numpy.empty(3)).Wait()
    comm.Free()


def test_it_is_explained(comm):
    with comm.using(allreduce="nccl"):
        text = comm.explain("allreduce", "1M")
        assert "nccl (comm.using)" in text and "queued on the caller's stream" in text
    with comm.using(allreduce="nccl+rails"):
        text = comm.explain("allreduce", "1M", detail=True)
        assert "nccl+rails" in text and "across nodes by hpccoll's schedules" in text
        assert any(line.split()[:1] == ["nccl"] for line in text.splitlines())
    with comm.using(allreduce="nccl+leader"):
        assert "reduce by NCCL to the first rank" in comm.explain("allreduce", "1M")
    assert "nccl" not in comm.explain("allreduce", "1M", detail=True)


def test_the_algorithm_across_is_ours():
    facts = CallFacts("allreduce", "allreduce", operator="sum", exact=False,
                      dtype=numpy.dtype("f4"), kind="f", itemsize=4)
    assert hpccoll.algorithm_names()["allreduce"].count(choose_across_nodes(facts, 4, 1 << 20)) == 1
