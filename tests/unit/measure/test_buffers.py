"""Buffers of a case: filled, checked, and passed with the operator that is asked for."""

import numpy
import pytest
from mpi4py import MPI

from hpccoll.arrays import exact
from hpccoll.ir.methods import METHODS
from hpccoll.measure.buffers import CaseBuffers
from hpccoll.measure.cases import make

FLOAT = numpy.dtype("f4")


@pytest.mark.parametrize("collective", METHODS)
def test_an_operator_of_the_users_takes_the_place_of_mpis(collective):
    case = make(collective, 3, 960, FLOAT)
    op = MPI.Op.Create(lambda a, b, datatype: None, commute=False)
    try:
        usual, others = CaseBuffers(case, 1).arguments, CaseBuffers(case, 1, op=op).arguments
        assert len(usual) == len(others)
        assert [i for i, arg in enumerate(others) if arg is op] == [
            i for i, arg in enumerate(usual) if isinstance(arg, MPI.Op)]
        assert case.rule.reduces == any(arg is op for arg in others)
    finally:
        op.Free()


def test_wrong_and_changed_elements_are_counted():
    buffers = CaseBuffers(make("allreduce", 1, 400, FLOAT), 0)
    buffers.refill(0)
    assert buffers.wrong(0) == 100 and buffers.count_changed_input(0) == 0
    buffers.recv[...] = buffers.send
    assert buffers.wrong(0) == 0
    buffers.recv[3] += 1
    buffers.send[5:7] += 1
    assert (buffers.wrong(0), buffers.count_changed_input(0)) == (1, 2)


def test_in_place_the_input_is_restored():
    buffers = CaseBuffers(make("allreduce", 1, 400, FLOAT, in_place=True), 0)
    assert buffers.restorable and buffers.arguments[0] is MPI.IN_PLACE
    buffers.refill(2)
    before = buffers.recv.copy()
    exact.poison(buffers.recv)
    buffers.restore()
    assert (buffers.recv == before).all() and buffers.count_changed_input(2) == 0
