"""Inputs of measurements: cases, buffers, forms of calls and candidates."""

import sys

import numpy
import pytest
from mpi4py import MPI

from hpccoll.arrays import exact
from hpccoll.arrays.kernels import UFUNCS
from hpccoll.calls import resolve
from hpccoll.config import Config
from hpccoll.errors import ArgumentError, ArgumentTypeError
from hpccoll.ir.methods import METHODS
from hpccoll.ir.operators import OPERATORS
from hpccoll.measure import candidates, inputs
from hpccoll.measure.buffers import CaseBuffers, DeviceBuffers
from hpccoll.measure.call_forms import FORMS, LowerCase, NonblockingForm, check
from hpccoll.measure.cases import UNEVEN, arguments, data_type, make
from hpccoll.measure.rounds import SurveyPlan, points
from hpccoll.tune.cost_model import plausible_algorithms
from hpccoll.tune.table import Candidate
from support.folded import folded
from support.gpu.device import installed

# Cases: sizes, blocks, types
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


@pytest.mark.parametrize("word, collectives, in_place, peers, problem", [
    ("lower-case", ["alltoall"], False, False, "alltoall.*lower-case"),
    ("lower-case", ["allreduce"], True, False, "combined"),
    ("persistent", ["bcast"], False, True, "blocking calls only")])
def test_what_does_not_go_together(word, collectives, in_place, peers, problem):
    with pytest.raises(ArgumentError, match=problem):
        check(FORMS[word], collectives, in_place, peers)
    check(FORMS["blocking"], collectives, in_place, peers)


def test_objects_have_no_choice_of_algorithms():
    case = make("allreduce", 2, 4, numpy.dtype("f4"))
    memory = CaseBuffers(case, 0)
    chosen, refused = LowerCase.select([Candidate("native"), Candidate("ring")], case, memory,
                                       False)
    assert chosen == [Candidate("native")] and list(refused) == ["ring"]
    assert isinstance(LowerCase(memory, None).arguments[0], float)


def test_nonblocking_calls_are_native_unless_asked():
    case = make("allreduce", 2, 4096, numpy.dtype("f4"))
    assert NonblockingForm.auto_choice(case, Config()) == "native"
    asked = Config()._replace(algorithm={"allreduce": ("ring", {})})
    assert NonblockingForm.auto_choice(case, asked) == "ring"


# Buffers of a case: filled, checked, and passed with the operator that is asked for
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


def test_in_place_the_input_is_restored():
    buffers = CaseBuffers(make("allreduce", 1, 400, FLOAT, in_place=True), 0)
    assert buffers.restorable and buffers.arguments[0] is MPI.IN_PLACE
    buffers.refill(2)
    before = buffers.recv.copy()
    exact.poison(buffers.recv)
    buffers.restore()
    assert (buffers.recv == before).all() and buffers.count_changed_input(2) == 0


# Buffers on a device: passed as those on the host are
SIZE = 3


def blocks(case, rank, kind):
    """Which blocks a call on such buffers moves, and where they lie."""
    call = getattr(resolve, case.collective)(SIZE, rank, *kind(case, rank).arguments)
    return call.name, call.in_place, call.key


@pytest.mark.parametrize("in_place", [False, True], ids=["apart", "in place"])
@pytest.mark.parametrize("collective", UNEVEN)
def test_blocks_of_unlike_sizes_are_those_of_the_host(collective, in_place):
    case = make(collective, SIZE, 960, numpy.dtype("f4"), in_place=in_place, uneven=True, root=1)
    assert len(set(case.counts)) > 1
    for cuda_aware in (False, True):
        with installed(cuda_aware):
            for rank in range(SIZE):
                there = blocks(case, rank, DeviceBuffers)
                assert there == blocks(case, rank, CaseBuffers), rank


# Benchmark data whose result is exact
DTYPES = [numpy.dtype(code) for code in "efdgFDGbIq?"]


DEFINED = [(o.name, d) for o in OPERATORS.values() for d in DTYPES if o.defined_on(d.kind)]


@folded("op, dtype", DEFINED)
@folded("size", [1, 3, 16])
def test_any_order_gives_the_result(op, dtype, size):
    kernel = getattr(numpy, UFUNCS[op])
    parts = [inputs.contribution(op, dtype, r, size, 0, 5, 100) for r in range(size)]
    numpy.random.default_rng(size).shuffle(parts)
    total = parts[0]
    for part in parts[1:]:
        total = kernel(total, part).astype(dtype)
    expected = inputs.result(op, dtype, range(size), size, 0, 5, 100)
    assert inputs.wrong(total, expected, False) == 0
    if op in ("sum", "bxor") and size > 1:  # a contribution that is lost shows everywhere
        less = inputs.result(op, dtype, range(size - 1), size, 0, 5, 100)
        assert inputs.wrong(less, expected, False) > 90


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [0, 1, inputs.PERIOD - 1, inputs.PERIOD, 2 * inputs.PERIOD + 3])
def test_wrong_elements_are_counted(dtype, count):
    period = inputs.contribution(None, dtype, 1, 4, 2, 3, count)
    array = numpy.empty(count, dtype)
    inputs.fill(array, period)
    assert inputs.wrong(array, period, True) == 0
    if count:
        for spoilt in {0, count // 2, count - 1}:
            copy = array.copy()
            copy[spoilt:spoilt + 1].view("u1")[0] ^= 1
            assert inputs.wrong(copy, period, True) == 1


def test_data_differs():
    """Between ranks, blocks and iterations, so nothing stale or misplaced passes."""
    made = {(r, b, i): inputs.contribution("sum", FLOAT, r, 4, b, i, 64).tobytes()
            for r in range(4) for b in range(3) for i in range(3)}
    made |= {("moved", r, b, i): inputs.contribution(None, FLOAT, r, 4, b, i, 64).tobytes()
             for r in range(4) for b in range(3) for i in range(3)}
    assert len(set(made.values())) == len(made)


@pytest.mark.parametrize("text", ["nonsense", "ring,ring", "knomial:k", "knomial:k=x", "native:k=2",
                                  "knomial:k=-1"])
def test_bad_candidates(text):
    with pytest.raises(ArgumentError, match="--algorithm"):
        candidates.parse(text)


def test_candidates_that_cannot_serve_are_refused():
    case = make("allreduce", 1, 64, FLOAT)
    wanted = candidates.parse("all,chain,native")
    chosen, refused = candidates.select(wanted, case, CaseBuffers(case, 0), False)
    assert "ring" in [c.name for c in chosen]
    assert set(refused) == {"census", "chain"}
    exact = make("allreduce", 1, 64, numpy.dtype("i4"))
    assert "census" not in candidates.select(wanted, exact, CaseBuffers(exact, 0), False)[1]


def test_plausible_is_what_tune_would_measure():
    for nbytes in (64, 1 << 20):
        case = make("allreduce", 64, nbytes, FLOAT)
        chosen, refused = candidates.select(candidates.parse("auto,plausible,native"), case,
                                            CaseBuffers(case, 0), False)
        names = [c.name for c in chosen]
        assert names[0] == "auto" and names[-1] == "native"
        assert set(names[1:-1]) | set(refused) == set(plausible_algorithms("allreduce", 64, nbytes))
    assert "plausible" in candidates.WORDS
    with pytest.raises(ArgumentError, match="'plausible:k=2'"):
        candidates.parse("plausible:k=2")


def test_a_thorough_survey_has_operators_that_do_not_commute():
    found = list(points(SurveyPlan(("reduce_scatter", "bcast"), (4096,)), 4))
    assert [p.kind for p in found] == [
        ("reduce_scatter", True), ("reduce_scatter", False), ("bcast", True)]
    assert found[0].case.collective == "reduce_scatter_block"
