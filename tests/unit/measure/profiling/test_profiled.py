"""Watched communicators: every call is counted, once, as what it is; nothing else changes."""

import numpy
import pytest
from mpi4py import MPI

import hpccoll
from hpccoll.measure.profiling.observer import OBSERVER
from hpccoll.measure.profiling.profiled import LOWER_CASE, profiled_class

A, B = numpy.ones(4), numpy.empty(4)


@pytest.fixture
def comm(monkeypatch):
    monkeypatch.setattr(OBSERVER, "records", [])
    monkeypatch.setenv("HPCCOLL_PROFILE", "yes")
    comm = hpccoll.Comm(MPI.Intracomm(MPI.COMM_SELF).Dup(), tuning="off")
    yield comm
    if comm != MPI.COMM_NULL:
        comm.Free()


def counted(comm):
    """How often each method was called, and on how many bytes."""
    [record] = OBSERVER.records
    return {(kind.title, kind.nbytes): record.sums()[number].calls
            for number, kind in enumerate(record.kinds)
            if number in record.sums() and not kind.title.endswith(" wait")}


def test_the_class_is_made_once_and_looks_like_the_other(comm):
    cls = type(comm)
    assert cls is profiled_class(hpccoll.Comm) and profiled_class(cls) is cls
    assert cls is not hpccoll.Comm and issubclass(cls, hpccoll.Comm)
    assert (cls.__name__, cls.__module__) == (hpccoll.Comm.__name__, hpccoll.Comm.__module__)
    assert cls.Allreduce.__doc__ == hpccoll.Comm.Allreduce.__doc__


def test_nobody_is_watched_unless_asked(monkeypatch):
    monkeypatch.delenv("HPCCOLL_PROFILE", raising=False)
    assert type(hpccoll.Comm(MPI.COMM_SELF)) is hpccoll.Comm
    monkeypatch.setenv("HPCCOLL_PROFILE", "yes")
    monkeypatch.setattr(OBSERVER, "paused", True)
    assert type(hpccoll.Comm(MPI.COMM_SELF)) is hpccoll.Comm


def test_communicators_made_from_it_are_watched_and_wrappers_share_a_record(comm):
    made = comm.Dup()
    assert type(made) is type(comm) and type(made.Create_cart([1])).__name__ == "Cart"
    made.Barrier()
    hpccoll.Comm(made).Barrier()
    assert counted(made) == {("barrier", 0): 2}
    made.Free()


@pytest.mark.parametrize("call, kind", [
    (lambda comm: comm.Allreduce(A, B), ("allreduce", 32)),
    (lambda comm: comm.Allreduce(MPI.IN_PLACE, B, op=MPI.MAX), ("allreduce", 32)),
    (lambda comm: comm.Bcast([A, 2, MPI.DOUBLE], root=0), ("bcast", 16)),
    (lambda comm: comm.Alltoallw([A, [0], [0], [MPI.DOUBLE]], [B, [0], [0], [MPI.DOUBLE]]),
     ("alltoallw", 32)),
    (lambda comm: comm.Iallreduce(A, B).Wait(), ("iallreduce", 32)),
    (lambda comm: comm.barrier(), ("barrier", 0)),
    (lambda comm: comm.allreduce(1), ("allreduce of objects", -1)),
    (lambda comm: comm.bcast("text", root=0), ("bcast of objects", -1)),
    (lambda comm: comm.allgather(obj := 1) and obj, ("allgather of objects", -1))])
def test_every_call_counts_once(comm, call, kind):
    for _ in range(3):
        call(comm)
    assert counted(comm) == {kind: 3}


@pytest.mark.parametrize("call, served", [
    (lambda comm: comm.bcast(1), "objects"), (lambda comm: comm.allgather(1), "native"),
    (lambda comm: comm.alltoall([1]), "native")])
def test_objects_of_mpi4py_count_as_native(comm, call, served):
    call(comm)
    [record] = OBSERVER.records
    assert [kind.served for kind in record.kinds] == [served]


def test_all_lower_case_collectives_are_watched():
    cls = profiled_class(hpccoll.Comm)
    assert "barrier" not in LOWER_CASE and all(name in vars(cls) for name in LOWER_CASE)


def test_requests_are_waited_for_and_persistent_ones_count_when_started(comm):
    request = comm.Allreduce_init(A, B)
    assert isinstance(request, MPI.Prequest)
    for _ in range(2):
        B[:] = 0
        request.Start()
        request.Wait()
        assert B.tolist() == A.tolist()
    request.Start()
    MPI.Request.Waitall([request])  # which knows nothing of it
    request.Free()
    assert counted(comm) == {("allreduce_init", 32): 3}
    assert OBSERVER.records[0].waited[0] > 0


def test_a_request_keeps_its_buffers(comm):
    """A native request was made anew, with the other's handle."""
    request = comm.Iallreduce(numpy.ones(1000), out := numpy.zeros(1000))
    request.Wait()
    assert request == MPI.REQUEST_NULL and out.sum() == 1000


def test_calls_that_fail_are_not_counted(comm):
    with pytest.raises(hpccoll.HpccollError):
        comm.Allreduce(A, B[:3])
    comm.Barrier()
    assert counted(comm) == {("barrier", 0): 1}
    comm.Free()
    with pytest.raises(hpccoll.HpccollError, match="freed"):
        comm.Barrier()


def test_sizes_types_roots_and_operators_are_told_apart(comm):
    for array, op in ((A, MPI.SUM), (A[:2], MPI.SUM), (A.astype("f4"), MPI.SUM), (A, MPI.MAX)):
        for _ in range(2):
            comm.Allreduce(MPI.IN_PLACE, array.copy(), op)
    kinds = [(kind.nbytes, kind.what) for kind in OBSERVER.records[0].kinds]
    assert kinds == [(32, "f8 sum"), (16, "f8 sum"), (16, "f4 sum"), (32, "f8 max")]
