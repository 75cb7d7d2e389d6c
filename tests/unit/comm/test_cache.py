"""The cache of calls, without ranks: keys, choices, and what it forgets."""

import numpy
import pytest
from mpi4py import MPI

from hpccoll.calls.facts import CallFacts
from hpccoll.comm import cache as caches
from hpccoll.comm.blocking import (
    ALLREDUCE,
    BARRIER,
    BCAST,
    GATHERV,
    REDUCE,
    REDUCE_SCATTER,
)
from hpccoll.comm.cache import CallCache, parts_of
from hpccoll.runtime.planning.choice import Choice

A, B = numpy.ones(4), numpy.empty(4)


def test_parts_are_what_lookups_get():
    """Stored under one key and looked up by another, a call would never be found again."""
    nothing, buf, root = parts_of(BCAST, (A, 2))
    assert nothing is None and buf is A and root == 2
    sendbuf, recvbuf, extra = parts_of(REDUCE, (A, B, MPI.SUM, 3))
    assert sendbuf is A and recvbuf is B and extra == (id(MPI.SUM), 3)
    assert parts_of(ALLREDUCE, (A, B, MPI.MAX))[2] == id(MPI.MAX)
    assert parts_of(BCAST, (A, numpy.int64(2)))[2] == 2
    extra = parts_of(REDUCE_SCATTER, (A, B, [2, numpy.int64(1)], MPI.SUM))[2]
    assert extra == ((2, 1), id(MPI.SUM))
    for kind in ("i2", "u4", "i8", "u8"):
        for counts in (numpy.array([2, 1], kind), numpy.array([[2, 0], [1, 0]], kind)[:, 0]):
            assert parts_of(REDUCE_SCATTER, (A, B, counts, MPI.SUM))[2] == extra
    for wrong in (None, "SUM", 1.5):
        with pytest.raises((TypeError, ValueError)):  # for those who check arguments
            parts_of(ALLREDUCE, (A, B, wrong))


def test_what_cannot_repeat_has_no_key():
    own = MPI.Op.Create(lambda one, two, datatype: None)
    cache = CallCache()
    cache.store(ALLREDUCE, (A, B, own), ALLREDUCE.native)  # its id may come to mean another one
    cache.store(ALLREDUCE, (A[::2], B[:2], MPI.SUM), ALLREDUCE.native)
    assert not cache
    cache.store(GATHERV, (A, [B, [4]], 0), GATHERV.native)
    cache.store(BARRIER, (), BARRIER.native)
    assert len(cache) == 2 and cache[BARRIER] is BARRIER.native
    own.Free()


def test_choices_are_known_until_there_are_too_many(monkeypatch):
    monkeypatch.setattr(caches, "MOST_CALLS", 3)
    cache = CallCache()
    for nbytes in range(3):
        cache.remember(ALLREDUCE, CallFacts("allreduce", "allreduce", nbytes), Choice("ring"))
    assert cache.choices[ALLREDUCE, CallFacts("allreduce", "allreduce", 2)].name == "ring"
    assert (BCAST, CallFacts("allreduce", "allreduce", 2)) not in cache.choices
    cache.remember(ALLREDUCE, CallFacts("allreduce", "allreduce", 9), Choice("pat"))
    assert len(cache.choices) == 1
