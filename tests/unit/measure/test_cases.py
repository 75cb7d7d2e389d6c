"""Cases: sizes, blocks, types."""

import sys

import numpy
import pytest
from mpi4py import MPI

from hpccoll.errors import ArgumentError, ArgumentTypeError
from hpccoll.ir.methods import METHODS
from hpccoll.measure.buffers import CaseBuffers
from hpccoll.measure.cases import UNEVEN, arguments, data_type, make
from support.folded import folded

FLOAT = numpy.dtype("f4")


@folded("collective", METHODS)
@folded("size", [1, 2, 3, 5])
def test_size_of_a_case(collective, size):
    case = make(collective, size, 4096 * size, FLOAT)
    assert case.nbytes == (0 if collective == "barrier" else 4096 * size)
    assert case.count * 4 == case.nbytes
    tiny = make(collective, size, 1, FLOAT)
    assert all(tiny.counts)
    if collective in UNEVEN and size > 2:
        uneven = make(collective, size, 12 * size, FLOAT, uneven=True)
        assert len(set(uneven.counts)) == 3


@pytest.mark.parametrize("collective, expected", [
    ("allreduce", 64), ("alltoall", 64), ("allgather", 64), ("gather", 64), ("reduce_scatter", 64)])
def test_osu_means_the_message(collective, expected):
    case = make(collective, 4, 64, FLOAT, osu=True)
    assert case.message == expected
    assert case.nbytes == 64 * (4 if collective in ("alltoall", "allgather", "gather") else 1)


@folded("collective", METHODS)
@folded("in_place", [False, True])
@folded("uneven", [False, True])
def test_blocks_fit_together(collective, in_place, uneven):
    """What all ranks give of a block is what all ranks want of it."""
    case = make(collective, 3, 600, FLOAT, root=1, in_place=in_place, uneven=uneven)
    for rank in range(3):
        memory = CaseBuffers(case, rank)
        memory.refill(0)
        assert memory.count_changed_input(0) == 0
        assert memory.source.size == sum(case.extent(b) for b in case.input_blocks(rank))
        assert memory.result.size == sum(case.extent(w.block) for w in case.expected_blocks(rank))
        for block, ranks in case.expected_blocks(rank):
            assert all(block in case.input_blocks(r) for r in ranks)


def test_one_rank_of_every_collective():
    """The arguments are what mpi4py takes, and a collective of one rank is right."""
    for collective in METHODS:
        for in_place in (False, True):
            case = make(collective, 1, 20_000, FLOAT, in_place=in_place)
            memory = CaseBuffers(case, 0)
            memory.refill(7)
            getattr(MPI.COMM_SELF, collective.capitalize())(
                *arguments(case, 0, memory.send, memory.recv))
            assert memory.wrong(7) == 0, collective
            assert memory.count_changed_input(7) == 0, collective


@pytest.mark.parametrize("text, op", [("nonsense", None), ("S4", None), ("O", None),
                                      ("float32", "band"), ("float32", "plus"),
                                      ("float32", "maxloc"), ("complex64", "max")])
def test_bad_types(text, op):
    with pytest.raises(ArgumentError):
        data_type(text, op)


def test_types(monkeypatch):
    assert data_type("float16", "sum") == "f2"
    assert data_type("MPI_INT", "bxor") == "i4"
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(ArgumentError, match=r"ml_dtypes.*'hpccoll\[bf16\]'"):
        data_type("bfloat16")


def test_bfloat16():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    assert data_type("bfloat16", "sum") == ml_dtypes.bfloat16
    with pytest.raises(ArgumentTypeError, match="MPI.BAND.*bfloat16"):
        data_type("bfloat16", "band")
