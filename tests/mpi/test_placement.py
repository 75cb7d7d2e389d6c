"""Ranks that are not numbered node by node: order, errors, and how such nodes are found."""

from itertools import product

import numpy
import pytest
from mpi.cases import Calls
from mpi.nodes import dealt, shuffled
from mpi4py import MPI

import hpccoll
from hpccoll.errors import ArgumentError, ProofError
from hpccoll.machine.discovery import discover
from hpccoll.testing import exact

pytestmark = pytest.mark.mpi
WORLD = MPI.COMM_WORLD
SIZE = WORLD.size


@pytest.fixture(params=[dealt, shuffled], ids=["dealt", "shuffled"])
def comm(request):
    made = hpccoll.Comm(MPI.Intracomm(WORLD).Dup(), layout=str(request.param()))
    assert made.layout == request.param()
    yield made
    made.Free()


def affine():
    """Composition of affine maps: associative, and the order shows."""
    def compose(left, right, datatype):
        a, b = numpy.frombuffer(left, "c16"), numpy.frombuffer(right, "c16")
        b[...] = exact.affine(a, b)
    return MPI.Op.Create(compose, commute=False)


def test_an_operator_that_does_not_commute_gets_its_rank_order(comm):
    """Also after calls of the same shape in any order: their plans are others."""
    op = affine()
    with comm.using(allreduce="leader", reduce="leader"):
        for root, (kind, operator) in product((0, SIZE - 1), (("sum", MPI.SUM), ("affine", op))):
            for case in Calls(comm.rank, SIZE, "c16", 6, root, kind, operator).reductions():
                if case.method in ("Allreduce", "Reduce"):
                    case.fill()
                    getattr(comm, case.method)(*case.args)
                    case.check()
    op.Free()


def test_a_schedule_that_loses_rank_order_is_refused_for_such_an_operator(comm):
    if comm.layout.order is None:
        return
    op, made = affine(), hpccoll.schedule("allreduce", "leader", topology=comm.layout)
    given, out = numpy.ones(6, "c16"), numpy.zeros(6, "c16")
    with comm.using(allreduce=made):
        comm.Allreduce(given, out)
        assert (out == SIZE).all()
        with pytest.raises(ProofError, match="rank order"):
            comm.Allreduce(given, out, op)
    op.Free()


def test_explain_names_the_order(comm):
    assert hpccoll.Comm(comm).layout == comm.layout
    with comm.using(allreduce="leader"):
        text = comm.explain("allreduce", 1 << 20, detail=True)
    assert SIZE > 16 or f"topology={comm.layout}" in text


def test_nodes_that_ranks_are_dealt_out_over_are_found():
    near = WORLD.Split(WORLD.rank % 2, WORLD.rank)
    found = discover(WORLD, near, ("node",)).topology
    near.Free()
    assert WORLD.allgather(str(found)) == [str(found)] * SIZE
    if SIZE > 2:
        assert found == dealt()
        assert [set(group) for group in found.groups()] == [
            set(range(0, SIZE, 2)), set(range(1, SIZE, 2))]


@pytest.mark.parametrize("order", ["", "0,0", "0-999", "x"])
def test_a_bad_order_is_an_error_on_every_rank(order):
    with pytest.raises(ArgumentError, match="^layout: "):
        hpccoll.Comm(WORLD, layout=f"{SIZE}@{order}")
