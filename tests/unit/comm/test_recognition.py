"""Which calls the compiled executor recognises, without ranks."""

import inspect
import sys

import numpy
import pytest
from mpi4py import MPI

from hpccoll.comm.blocking import (
    ALLGATHERV,
    ALLREDUCE,
    ALLTOALLV,
    BCAST,
    GATHERV,
    REDUCE_SCATTER,
    SCATTERV,
    BlockingMixin,
)
from hpccoll.comm.nonblocking import NonblockingMixin
from hpccoll.comm.persistent import PersistentMixin
from hpccoll.comm.recognition import new_calls, note
from hpccoll.ir.methods import FORMS, PERSISTENT, TABLE
from hpccoll.runtime.execution.built import BUILT
from support.folded import folded

A, B = numpy.ones(4), numpy.empty(4)


@folded("form, name", [(form, name) for form in FORMS for name in TABLE])
def test_methods_are_those_of_the_table(form, name):
    title = form.format(name)
    cls = dict(zip(FORMS, (BlockingMixin, NonblockingMixin, PersistentMixin)))[form]
    method, row = getattr(cls, title.capitalize()), vars(sys.modules[cls.__module__])[title.upper()]
    assert method.__name__ == title.capitalize() and method.__doc__
    assert row.title == title and title.upper() in inspect.unwrap(method).__code__.co_names
    info = ["info"] if form == PERSISTENT else []
    assert list(inspect.signature(method).parameters) == ["self", *row.arguments, *info]
    assert list(inspect.signature(row.resolve).parameters) == ["size", "rank", *row.arguments]


@pytest.mark.skipif(not BUILT, reason="the compiled executor was not built")
def test_what_is_noted():
    calls, own = new_calls(), MPI.Op.Create(lambda one, two, datatype: None)
    derived = MPI.DOUBLE.Create_contiguous(2)
    for method, args, told in (
            (ALLREDUCE, (A, B, MPI.SUM), True), (ALLREDUCE, (MPI.IN_PLACE, B, MPI.SUM), True),
            (ALLREDUCE, ([A, MPI.DOUBLE], [B, 4, MPI.DOUBLE], MPI.SUM), True),
            (ALLREDUCE, (A, B, own), False), (ALLREDUCE, ([A, derived], B, MPI.SUM), False),
            (ALLREDUCE, (A[::2], B[:2], MPI.SUM), False), (BCAST, (B, 1), True),
            (BCAST, (b"text", 1), False), (REDUCE_SCATTER, (A, B[:2], [2, 2], MPI.SUM), True),
            (ALLGATHERV, (A, [B, [4], [0], MPI.DOUBLE]), True), (GATHERV, (A, B, 0), True),
            (GATHERV, (A, None, 0), True), (GATHERV, (A, (B, [4]), 0), True),
            (GATHERV, (A, (B, ([4], [0])), 0), True), (GATHERV, (A, [B, [4.0]], 0), False),
            (GATHERV, (A, [B, [4], [0], derived], 0), False),
            # A count and a stride; a list is two counts.
            (GATHERV, (A, [B, (1, 2)], 0), True), (GATHERV, (A, [B, [1, 2]], 0), True),
            (GATHERV, (A, (B, (1, 2), "d"), 0), False),
            (SCATTERV, ([A, numpy.array([4]), None, MPI.DOUBLE], B, 0), True),
            (SCATTERV, ([A, numpy.array([3], "u4"), None, MPI.DOUBLE], B, 0), True),
            (SCATTERV, ([A, numpy.array([3.0]), None, MPI.DOUBLE], B, 0), False),
            (ALLTOALLV, ([A, [4], [0], MPI.DOUBLE], [B, [4], [0], MPI.DOUBLE]), True)):
        before = len(calls)
        assert note(calls, method, args, method.native) is told, args
        assert len(calls) == before + told
    derived.Free(), own.Free()


@pytest.mark.skipif(not BUILT, reason="the compiled executor was not built")
def test_counts_are_compared_by_their_values():
    """Lists that change are other counts; a list, a tuple and arrays of the same ones are not."""
    calls, counts = new_calls(), [1, 2]

    def noted(spec):
        before = len(calls)
        assert note(calls, GATHERV, (A, spec, 0), GATHERV.native)
        return len(calls) > before

    assert noted([B, counts, [0, 1], MPI.DOUBLE])
    for same in ((1, 2), [1, 2], numpy.array([1, 2], "i4"), numpy.array([1, 2], "i8")):
        assert not noted([B, same, [0, 1], MPI.DOUBLE])
        assert not noted((B, (same, (0, 1)), MPI.DOUBLE))
    counts[1] = 1
    assert noted([B, counts, [0, 1], MPI.DOUBLE])
    for other in ([B, [1, 2], [0, 2], MPI.DOUBLE], [B, [1, 2], None, MPI.DOUBLE],
                  [B, [1, 2, 0], [0, 1], MPI.DOUBLE], [B, [1, 2], [0, 1]],
                  [B, [1, 2], [0, 1], MPI.LONG], [B, 1, MPI.DOUBLE], [B, [1, 2]]):
        assert noted(other) and not noted(other)
    many = list(range(1000))
    assert noted([B, many, MPI.DOUBLE]) and not noted([B, list(many), MPI.DOUBLE])
    many[900] += 1  # beyond what is hashed
    assert noted([B, many, MPI.DOUBLE])


def test_without_the_compiled_executor_methods_stand_for_themselves(monkeypatch):
    monkeypatch.setattr("hpccoll.comm.recognition.BUILT", False)
    from hpccoll.comm.recognition import recognise_calls
    assert recognise_calls(note) is note and new_calls() is None
