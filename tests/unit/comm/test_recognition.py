"""Which calls the compiled executor recognises, without ranks."""

import inspect

import numpy
import pytest
from mpi4py import MPI

from hpccoll.comm.blocking import Blocking
from hpccoll.comm.methods import ALLGATHERV, ALLREDUCE, BCAST, GATHERV, REDUCE_SCATTER
from hpccoll.comm.recognition import ROLES, new_calls, note
from hpccoll.runtime.compiled import BUILT

A, B = numpy.ones(4), numpy.empty(4)


@pytest.mark.parametrize("name", ROLES)
def test_methods_keep_their_names_and_parameters(name):
    method = getattr(Blocking, name.capitalize())
    assert method.__name__ == name.capitalize() and method.__doc__
    parameters = list(inspect.signature(method).parameters)
    assert parameters[0] == "self" and len(parameters) == len(ROLES[name]) + 1
    expected = {"s": "sendbuf", "r": "recvbuf", "b": "buf", "o": "op", "n": "root",
                "c": "recvcounts"}
    assert parameters[1:] == [expected[role] for role in ROLES[name]]


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
            (ALLGATHERV, (A, [B, [4], [0], MPI.DOUBLE]), False), (GATHERV, (A, B, 0), False)):
        before = len(calls)
        assert note(calls, method, args, method.native) is told, args
        assert len(calls) == before + told
    derived.Free(), own.Free()


def test_without_the_compiled_executor_methods_stand_for_themselves(monkeypatch):
    monkeypatch.setattr("hpccoll.comm.recognition.BUILT", False)
    from hpccoll.comm.recognition import recognised
    assert recognised(note) is note and new_calls() is None
