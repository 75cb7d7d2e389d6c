"""Promises: which algorithms keep them, by the bits that they make of rounded sums."""

import numpy
import pytest
from mpi4py import MPI
from unit.tune.choosing import choose, describe

from hpccoll.algorithms import ALGORITHMS, schedule
from hpccoll.algorithms.flat.linear import FAN
from hpccoll.algorithms.table import reproducible
from hpccoll.calls import resolve
from hpccoll.calls.call import Call
from hpccoll.calls.facts import facts_of
from hpccoll.config import DETERMINISM
from hpccoll.errors import ArgumentError
from hpccoll.ir.collectives import COLLECTIVES, OUT
from hpccoll.runtime.execution.executor import Execution, Memory
from hpccoll.runtime.planning.choice import Choice
from hpccoll.testing.world import Problem, Seat, interleave
from hpccoll.transport.loopback import Loopback
from hpccoll.tune.choose import Conditions, instead_of_native
from hpccoll.tune.determinism import (
    LONG,
    LONGEST,
    check_served,
    inaccurate,
    restricts_choice,
    violation,
)
from hpccoll.tune.loading import JobTimes
from hpccoll.tune.table import Candidate

REDUCING = [name for name, collective in COLLECTIVES.items() if collective.reduces]
#: Different sums in neighbouring elements; they repeat, so that every block has some of each.
LANES = 16


class Rounding(Problem):
    """Sums of floats that every order rounds otherwise; equal in elements ``LANES`` apart."""

    def input_blocks(self, rank):
        random = numpy.random.default_rng(rank)
        lanes = random.standard_normal(LANES) * 10.0 ** random.integers(-3, 4, LANES)
        return self._cut(numpy.resize(lanes.astype("f4"), sum(self.sizes)))


class Counting(Problem):
    """The terms that were added one after the other at most."""

    def input_blocks(self, rank):
        return self._cut(numpy.zeros(sum(self.sizes), "i8"))


def results(made, problem=Rounding, count=3, dtype="f4", kernel=None):
    """What every rank gets, rank by rank."""
    p = made.size
    sizes = [count * LANES] * p if made.collective.payload == "blocks" else [count * LANES * p]
    seats = [Seat(made, problem(made.collective, p, sizes, made.root, "sum", dtype), rank)
             for rank in range(p)]
    world = Loopback(p)
    executions = [seat.execution(world.endpoint(seat.rank), kernel=kernel) for seat in seats]
    for seat in seats:
        seat.fill()
    interleave(executions)
    return [numpy.concatenate([seat.memory[OUT].array[start:start + len(block)]
                               for start, block in zip(seat.outputs, seat.wanted)] or [[]])
            for seat in seats]


def lanes_of(result):
    """The bits of the lanes of a result; ``None`` if elements of one lane differ."""
    bits = result.astype("f4").view("u4")
    return bits[:LANES].tolist() if (bits == numpy.resize(bits[:LANES], bits.size)).all() else None


@pytest.mark.slow(every=10)
@pytest.mark.parametrize("size", [2, 3, 4, 5, 6, 7, 8, 13, 16, 17])
@pytest.mark.parametrize("collective", REDUCING)
def test_reproducible_algorithms_have_one_order_for_all_elements(collective, size):
    for root in {0, size - 1} if COLLECTIVES[collective].rooted else {0}:
        seen = set()
        for name in reproducible(collective):
            assert not ALGORITHMS[collective][name].hierarchical
            assert ALGORITHMS[collective][name].rank_order
            for count in (1, 5):
                found = [lanes_of(r) for r in results(schedule(collective, name, size, root=root),
                                                      count=count) if r.size]
                assert None not in found, name
                if collective in ("allreduce", "reduce_scatter"):
                    assert len(set(map(str, found))) == 1
                seen.add(str(found))
        assert len(seen) == 1


@pytest.mark.parametrize("collective, name", [
    ("allreduce", "ring"), ("allreduce", "circulant"), ("allreduce", "double_tree"),
    ("reduce", "double_tree"), ("reduce_scatter", "ring"), ("reduce_scatter", "pat")])
def test_others_have_orders_that_depend_on_the_place(collective, name):
    """This also shows that the data above would find it."""
    found = [lanes_of(r) for r in results(schedule(collective, name, 6, root=3)) if r.size]
    assert None in found or len(set(map(str, found))) > 1


@pytest.mark.long(every=3)
@pytest.mark.slow
@pytest.mark.parametrize("collective, name", [
    (collective, name) for collective, table in ALGORITHMS.items()
    for name, entry in table.items() if entry.chain])
def test_what_is_said_of_chains_is_how_often_they_are_rounded(collective, name):
    """Narrow numbers count how often they were rounded; wide ones only pass it on."""
    size = 3 * FAN if name == "linear" and "scan" not in collective else 2 * LONGEST
    made = schedule(collective, name, size)
    sizes = [1] * size if made.collective.payload == "blocks" else [size]
    world, seats = Loopback(size), []
    for rank in range(size):
        seats.append(Seat(made, Counting(made.collective, size, sizes, dtype="i8"), rank))
    executions = []
    for seat in seats:
        arrays = {buffer: memory.array for buffer, memory in seat.memory.items()}
        executions.append(Execution(seat.plan, world.endpoint(seat.rank), Memory(
            arrays, seat.scratch.array, rounding, numpy, None, lambda count: numpy.empty(count)),
            0))
        seat.fill()
    interleave(executions)
    most = max(int(seat.memory[OUT].array.max()) for seat in seats
               if any(map(len, seat.wanted)))
    call = Call(collective, collective, datatype=MPI.Datatype.fromcode("e"), op=MPI.SUM, nbytes=8)
    assert (not inaccurate(Choice(name), facts_of(call), size)) == (most < LONGEST), most
    assert most <= ALGORITHMS[collective][name].rounds(size)


def rounding(left, right, into, rounded=None):
    into[...] = numpy.maximum(left, right) + (into.dtype == "i8")
    if rounded is not None:
        rounded[...] = into + 1


# -- the choice ----------------------------------------------------------------------------
def allreduce(count=4, dtype="f4", op=MPI.SUM):
    array = numpy.zeros(count, dtype)
    return resolve.allreduce(4, 0, array, array.copy(), op)


def table(**times):
    return JobTimes({("allreduce",
                      True): ((8, {Candidate(name): t for name, t in times.items()}),)})


def test_what_promises_are_about():
    assert not restricts_choice("none", facts_of(allreduce()))
    for determinism in DETERMINISM[1:]:
        assert restricts_choice(determinism, facts_of(allreduce()))
        assert restricts_choice(determinism, facts_of(allreduce(dtype="c8", op=MPI.PROD)))
        assert not restricts_choice(determinism, facts_of(allreduce(dtype="i4")))
        assert not restricts_choice(determinism, facts_of(resolve.bcast(4, 0, numpy.zeros(4), 0)))


@pytest.mark.parametrize("determinism, algorithm, keeps", [
    ("run", "native", False), ("run", "ring", True), ("run", "rails", True),
    ("size", "native", False), ("size", "ring", False), ("size", "rabenseifner", True),
    ("size", "leader", False), ("layout", "recursive_doubling", True), ("layout", "leader", False),
    ("run", lambda rank, size: None, True), ("size", lambda rank, size: None, False),
    ("run", schedule("allreduce", "ring", 4), True),
    ("layout", schedule("allreduce", "recursive_doubling", 4), False)])
def test_breaches(determinism, algorithm, keeps):
    problem = violation(Choice(algorithm), facts_of(allreduce()), determinism)
    assert (problem == "") == keeps and (keeps or determinism in problem)


@pytest.mark.parametrize("determinism", ["size", "layout"])
def test_only_steady_algorithms_are_chosen(determinism):
    for times in (None, JobTimes(), JobTimes(online=True), table(ring=1.0, native=2.0)):
        small, large = (choose(allreduce(count), 4, None, True, times, determinism)
                        for count in (4, LONG))
        assert (small.algorithm, large.algorithm) == ("recursive_doubling", "rabenseifner")
        assert small.reason == f"determinism '{determinism}'"
    times = table(ring=1.0, rabenseifner=2.0, recursive_doubling=3.0)
    assert choose(allreduce(), 4, None, True, times, determinism).algorithm == "rabenseifner"


def test_run_takes_the_fastest_of_ours():
    assert choose(allreduce(), 4, None, True, None, "run").algorithm == "recursive_doubling"
    times = table(native=1.0, ring=2.0)
    assert choose(allreduce(), 4, None, True, times, "run").algorithm == "ring"
    assert choose(allreduce(dtype="i4"), 4, None, True, times, "run").is_native
    assert choose(allreduce(), 4, None, True, JobTimes(online=True), "run"
                  ).algorithm == "recursive_doubling"
    assert choose(allreduce(), 1, None, True, times, "run").is_native


def test_wishes_that_break_a_promise():
    with pytest.raises(ArgumentError, match="ring.*allreduce.*order"):
        choose(allreduce(), 4, Choice("ring"), False, None, "size")
    with pytest.raises(ArgumentError, match="native.*allreduce.*MPI library"):
        choose(allreduce(), 4, Choice("native"), False, None, "run")
    instead = choose(allreduce(), 4, Choice("ring"), True, None, "size")
    assert instead.algorithm == "recursive_doubling" and "ring was requested" in instead.reason
    assert choose(allreduce(), 4, Choice("ring"), False, None, "run").algorithm == "ring"
    assert choose(allreduce(dtype="i4"), 4, Choice("ring"), False, None, "size") == Choice("ring")


def test_what_only_mpi_can_serve():
    user = MPI.Op.Create(lambda one, two, datatype: None)
    for op, refused in ((MPI.SUM, True), (MPI.MAXLOC, True), (user, True), (MPI.BAND, False),
                        (MPI.LOR, False)):
        check_served(None, "reduce", ("x", op), "none")
        check_served(allreduce(), "reduce", ("x", op), "run")
        if refused:
            with pytest.raises(ArgumentError, match="'run'.*reduce"):
                check_served(None, "reduce", ("x", op), "run")
        else:
            check_served(None, "reduce", ("x", op), "run")
    check_served(None, "bcast", ("x", 0), "run")
    user.Free()


def test_the_explanation_names_the_promise(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    text = describe("allreduce", 64, 4, None, False, None, None, "size", detail=True)
    assert text.startswith("allreduce of 64 B, 4 ranks: recursive_doubling (determinism 'size')")
    rows = {line.strip("* ").split()[0]: line for line in text.split("\n\n")[1].splitlines()}
    assert "an MPI library guarantees no order" in rows["native"]
    assert "its order of evaluation depends on more" in rows["ring"]
    assert "no:" not in rows["rabenseifner"] and rows["recursive_doubling"].startswith("* ")


# -- accuracy ------------------------------------------------------------------------------
@pytest.mark.parametrize("size, dtype, op, chosen", [
    (64, "f2", MPI.SUM, "rabenseifner"), (LONGEST, "f2", MPI.SUM, "ring"),
    (64, "f4", MPI.SUM, "ring"), (64, "i2", MPI.SUM, "ring"), (64, "f2", MPI.PROD, "rabenseifner"),
    (64, "bfloat16", MPI.SUM, "rabenseifner")])
def test_low_precision_avoids_long_chains(size, dtype, op, chosen):
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    array = numpy.zeros(64, dtype)
    call = resolve.allreduce(size, 0, array, array.copy(), op)
    times = table(ring=1.0, rabenseifner=2.0)
    assert choose(call, size, None, True, times).algorithm == chosen
    # Whoever asks for a chain gets it.
    assert choose(call, size, Choice("ring"), False, times).algorithm == "ring"


# -- checksums -----------------------------------------------------------------------------
def test_what_is_native_is_ours_where_messages_are_to_be_checked():
    def chosen(call, size=4, preference=None, form="{}"):
        return instead_of_native(facts_of(call), Conditions(size, preference, form=form), "why")

    x = numpy.zeros(64)
    found = chosen(resolve.bcast(4, 0, x, 0))
    assert found.name in ALGORITHMS["bcast"] and found.reason == "why"
    user = MPI.Op.Create(lambda one, two, datatype: None, commute=False)
    ordered = chosen(resolve.allreduce(4, 0, x, x.copy(), user))
    assert ALGORITHMS["allreduce"][ordered.name].rank_order
    user.Free()
    assert chosen(resolve.barrier(4, 0)) is None
    assert chosen(resolve.bcast(4, 0, x, 0), preference=Choice("native")) is None


def test_sums_of_any_number_of_ranks_are_explained():
    text = describe("allreduce", 64, 4, None, False, None, None, "any-p")
    assert text.startswith("allreduce of 384 B, 4 ranks: ")
    assert "determinism 'any-p': a float32 sum is sent as 24 bytes of integers" in text
    assert "determinism 'any-p'" not in describe("bcast", 64, 4, None, False, None, None, "any-p")
