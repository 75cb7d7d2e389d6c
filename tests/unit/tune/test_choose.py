"""Choices: preferences that win, preferences that cannot, and measured times."""

import random

import numpy
import pytest
from mpi4py import MPI
from unit.tune.choosing import (
    HERE,
    LARGE,
    NATIVE,
    RING,
    SIZE,
    SMALL,
    allreduce,
    asks_for_the_place,
    describe,
    objection,
    probed,
    tuned,
)
from unit.tune.choosing import choose as choose_anywhere

from hpccoll.algorithms import schedule
from hpccoll.calls import resolve
from hpccoll.calls.facts import facts_of
from hpccoll.errors import ArgumentError
from hpccoll.ir.methods import BLOCKING, NONBLOCKING, PERSISTENT
from hpccoll.runtime.planning.choice import Choice
from hpccoll.tune.choose import Conditions, decide, range_of_choice
from hpccoll.tune.loading import JobTimes
from hpccoll.tune.rules import Place


def choose(call, size, wanted, from_environment, tuned=None, **more):
    return choose_anywhere(call, size, wanted, from_environment, tuned, place=HERE, **more)


def test_where_the_place_is_unknown_no_rule_holds():
    assert choose_anywhere(allreduce(), SIZE, None, True).is_native
    # Asking is collective: small calls of more ranks than rules are for do without.
    assert asks_for_the_place(allreduce(), SIZE) and asks_for_the_place(allreduce(SMALL), SIZE)
    assert not asks_for_the_place(allreduce(SMALL), 100)


def test_without_wishes_rules_decide_by_size():
    assert choose(allreduce(SMALL), SIZE, None, True).is_native
    large = choose_anywhere(allreduce(), SIZE, None, True, place=HERE._replace(compiled=True))
    assert not large.is_native and large.reason.startswith("rule: allreduce from ")
    assert choose(allreduce(), 1, None, True).is_native


@pytest.mark.parametrize("dtype, op, compiled", [
    ("f4", MPI.SUM, True), ("f2", MPI.SUM, True), ("g", MPI.SUM, True),
    ("i4", MPI.LAND, False), ("?", MPI.LAND, True)])
def test_rules_for_the_compiled_executor_are_for_what_it_runs(dtype, op, compiled):
    call = resolve.allreduce(2, 0, numpy.zeros(2, dtype), numpy.zeros(2, dtype), op)
    place = Place(True, False, compiled=True)
    chosen = choose_anywhere(call, 2, None, True, place=place)
    assert ("compiled" in chosen.reason) is compiled
    assert "compiled" not in choose_anywhere(
        call, 2, None, True, place=Place(True, False)).reason


@pytest.mark.parametrize("library, nbytes", [("MPICH", 16 << 10), ("Open MPI", 512 << 10)])
def test_pairs_are_left_to_mpi_until_calls_for_their_elements_pay(monkeypatch, library, nbytes):
    monkeypatch.setattr("hpccoll.tune.rules.vendor", lambda: library)
    monkeypatch.setattr("hpccoll.tune.choose.vendor", lambda: library)
    place = Place(True, False, compiled=True)
    for count, ours in ((nbytes // 16 - 1, False), (nbytes // 16, True)):
        pairs = numpy.zeros(2 * count)
        call = resolve.allreduce(2, 0, MPI.IN_PLACE, [pairs, count, MPI.DOUBLE_INT], MPI.MAXLOC)
        assert choose_anywhere(call, 2, None, True, place=place).is_native is not ours


def test_an_operator_of_the_user_is_left_to_mpi():
    op = MPI.Op.Create(lambda one, two, datatype: None, commute=True)
    for count in (1, 1 << 20):
        call = resolve.allreduce(2, 0, MPI.IN_PLACE, numpy.zeros(count), op)
        assert choose_anywhere(call, 2, None, True,
                               place=Place(True, False, compiled=True)).is_native
    op.Free()


def test_ranks_that_do_not_know_the_size_leave_it_to_mpi():
    told = resolve.gatherv(SIZE, 1, LARGE, None, 0)
    assert told.nbytes is None and choose(told, SIZE, None, True).is_native


def test_a_wish_wins():
    for preference in (Choice("pat"), Choice("native"), Choice("recursive_multiplying", {"k": 3})):
        assert choose(allreduce(SMALL), SIZE, preference, False) is preference
    automatic = choose(allreduce(SMALL), SIZE, Choice("auto"), False)
    assert automatic.is_native and automatic.reason.startswith("rule")


def test_a_wish_that_cannot_serve_raises_or_gives_way(left_only):
    call = allreduce(op=left_only)
    with pytest.raises(ArgumentError, match="ring.*allreduce.*order.*'auto'.*native"):
        choose(call, SIZE, Choice("ring"), False)
    instead = choose(call, SIZE, Choice("ring"), True)
    assert instead.is_native and "ring was requested, but it does not keep" in instead.reason


def test_rules_look_at_the_operator_too(left_only):
    chosen = choose(allreduce(op=left_only), SIZE, None, True)
    assert chosen.is_native or not objection(chosen, allreduce(op=left_only), SIZE)


@pytest.mark.parametrize("name, array, op, fits", [
    ("census", numpy.zeros(4), MPI.SUM, False), ("census", numpy.zeros(4, "i4"), MPI.SUM, True),
    ("census", numpy.zeros(4, "i4"), MPI.MAX, True), ("ring", numpy.zeros(4), MPI.SUM, True)])
def test_algorithms_whose_ranks_round_differently(name, array, op, fits):
    problem = objection(Choice(name), allreduce(array, op), SIZE)
    assert (problem == "") == fits and (fits or "may differ between ranks" in problem)


def test_algorithms_for_blocks_of_one_size():
    even = resolve.alltoall(2, 0, numpy.zeros(4), numpy.zeros(4))
    uneven = resolve.alltoallv(2, 0, [numpy.zeros(4), [1, 3]], [numpy.zeros(4), [1, 3]])
    assert objection(Choice("bruck"), even, 2) == ""
    assert objection(Choice("bruck"), uneven, 2) == "it requires blocks of the same size"
    assert objection(Choice("pairwise"), uneven, 2) == ""


@pytest.mark.parametrize("made, complaint", [
    (("bcast", "binomial", 4), "it is a schedule for bcast"),
    (("allreduce", "ring", 5), "it is for 5 ranks, the communicator has 4"),
    (("allreduce", "ring", 4), "")])
def test_finished_schedules_must_fit(made, complaint):
    assert objection(Choice(schedule(*made)), allreduce(), SIZE) == complaint


def test_finished_schedules_have_a_root():
    call = resolve.bcast(SIZE, 0, SMALL, 2)
    assert objection(Choice(schedule("bcast", "binomial", 4, root=2)), call, SIZE) == ""
    assert objection(Choice(schedule("bcast", "binomial", 4, root=1)), call, SIZE) == (
        "it is for root 1, the call has root 2")


def test_builders_are_taken_at_their_word_until_they_are_proved():
    assert objection(Choice(lambda rank, size: None), allreduce(), SIZE) == ""


# -- measured times ------------------------------------------------------------------------
def test_the_fastest_measured_candidate_wins():
    chosen = choose(allreduce(SMALL), SIZE, None, True, tuned(native=3e-6, ring=2e-6))
    assert chosen == Choice("ring", {}, 4096, "measured: 2 us in t.json")
    chosen = choose(allreduce(), SIZE, None, True, tuned(native=2, multiplying=1, ring=3))
    assert chosen[:3] == ("recursive_multiplying", {"k": 2}, 0)
    assert choose(allreduce(), SIZE, None, True, tuned(native=1, ring=2)).is_native


def test_the_next_best_serves_where_the_best_cannot(left_only):
    times = tuned(census=1, ring=2, multiplying=3, native=4)
    assert choose(allreduce(), SIZE, None, True, times).algorithm == "ring"
    assert choose(allreduce(op=left_only), SIZE, None, True, times).params == {"k": 2}
    integers = allreduce(numpy.zeros(4, "i4"))
    assert choose(integers, SIZE, None, True, times).algorithm == "census"


def test_rules_decide_where_nothing_was_measured(left_only):
    scan = resolve.scan(SIZE, 0, LARGE, LARGE.copy(), MPI.SUM)
    assert choose(scan, SIZE, None, True, tuned(ring=1)).reason.startswith("rule")
    chosen = choose(allreduce(op=left_only), SIZE, None, True, tuned(ring=1))
    assert chosen.is_native  # an operator of the user
    assert choose(allreduce(), SIZE, None, True, JobTimes()).reason.startswith("rule")
    assert choose(allreduce(), 1, None, True, tuned(ring=1)).is_native


def test_a_wish_wins_over_measured_times():
    preference = Choice("pat")
    assert choose(allreduce(), SIZE, preference, False, tuned(ring=1)) is preference
    assert choose(allreduce(), SIZE, Choice("auto"), False, tuned(ring=1)).algorithm == "ring"


def test_the_explanation_shows_times_and_where_they_come_from():
    def explained(times, detail=False):
        return describe("allreduce", 64, SIZE, None, False, None, times, detail=detail)

    text = explained(tuned(ring=2e-6, native=3e-6))
    first = ("allreduce of 64 B, 4 ranks: ring (measured: 2 us in t.json)\n"
             "measured times: from t.json\n")
    assert text.startswith(first) and "fastest: ring:segment=4096 2 us, native 3 us\n" in text
    assert len(text.splitlines()) <= 6
    detail = explained(tuned(ring=2e-6, native=3e-6), True)
    assert detail.startswith(first)
    lines = [line.removeprefix("*").split() for line in detail.splitlines()[3:6]]
    assert [line[0] for line in lines] == ["candidate", "ring:segment=4096", "native"]
    assert lines[1][-2:] == ["2", "us"] and "predicted" not in lines[0]
    assert detail.splitlines()[4].startswith("* ring") and "What each rank does" in detail
    assert "none; run 'hpccoll tune'" in explained(JobTimes())
    assert "loaded at the first collective" in explained(None)
    assert "none; t.json is not used: it is for others" in explained(
        JobTimes(note="t.json is not used: it is for others"))


def test_bfloat16_is_never_left_to_the_library():
    dtype = numpy.dtype(pytest.importorskip("ml_dtypes").bfloat16)
    small, large = (allreduce(numpy.zeros(count, dtype)) for count in (4, 1 << 20))
    assert choose(small, SIZE, None, False).algorithm == "recursive_doubling"
    assert "no such type" in choose(small, SIZE, None, False).reason
    assert not choose(large, SIZE, None, False).is_native
    with pytest.raises(ArgumentError, match="cannot reduce"):
        choose(small, SIZE, Choice("native"), False)
    chosen = choose(small, SIZE, Choice("native"), True)
    assert chosen.algorithm == "recursive_doubling" and "native was requested" in chosen.reason
    assert choose(small, 1, None, False).is_native
    # What is only moved may be served by anybody.
    moved = resolve.bcast(SIZE, 0, numpy.zeros(4, dtype), 0)
    assert choose(moved, SIZE, Choice("native"), False).is_native


# -- calls that must not wait ------------------------------------------------------------------
def gatherv(counts=(4,) * SIZE):
    """What the root of a Gatherv knows, which the other ranks do not."""
    array = numpy.zeros(sum(counts))
    return resolve.gatherv(SIZE, 0, numpy.zeros(counts[0]), [array, list(counts)], 0)


@pytest.mark.parametrize("form", [NONBLOCKING, PERSISTENT])
def test_calls_that_must_not_wait_are_native_unless_asked_for(form):
    assert choose(allreduce(), SIZE, None, True, form=form).is_native
    assert choose(allreduce(), SIZE, None, True, tuned(ring=1, native=2), form=form).is_native
    assert choose(allreduce(), SIZE, Choice("ring"), False, form=form).algorithm == "ring"
    assert choose(allreduce(), SIZE, Choice("ring"), False, form=form, progresses=False).is_native


@pytest.mark.parametrize("form", [NONBLOCKING, PERSISTENT])
def test_who_asks_for_auto_by_the_method_gets_what_a_blocking_call_gets(form):
    def chosen(call, tuned=None, **more):
        return choose(call, SIZE, Choice("auto"), False, tuned, form=form, **more)

    assert chosen(allreduce(SMALL)).is_native
    assert chosen(allreduce()) == choose(allreduce(), SIZE, None, True)
    assert chosen(allreduce(), tuned(ring=1, native=2)).algorithm == "ring"
    assert chosen(allreduce(), progresses=False).is_native
    assert chosen(gatherv()).is_native


def test_asking_the_root_for_counts_would_wait():
    with pytest.raises(ArgumentError, match="igatherv"):
        choose(gatherv(), SIZE, Choice("binomial"), False, form=NONBLOCKING)
    assert choose(gatherv(), SIZE, Choice("binomial"), True, form=NONBLOCKING).is_native
    for preference, form in (("linear", NONBLOCKING), ("binomial", PERSISTENT),
                             ("binomial", BLOCKING),
                             ("native", NONBLOCKING), ("native", BLOCKING)):
        assert choose(gatherv(), SIZE, Choice(preference), False, form=form).algorithm == preference


@pytest.mark.parametrize("form", [NONBLOCKING, PERSISTENT])
def test_promises_hold_for_calls_that_must_not_wait(form):
    def chosen(preference=None, **more):
        return choose(allreduce(), SIZE, preference, False, determinism="size", form=form, **more)

    assert chosen().algorithm == "rabenseifner"
    with pytest.raises(ArgumentError, match="guarantees"):
        chosen(Choice("native"))
    with pytest.raises(ArgumentError, match="THREAD_MULTIPLE"):
        chosen(progresses=False)
    assert choose(allreduce(numpy.zeros(4, "i4")), SIZE, None, True, determinism="size",
                  form=form, progresses=False).is_native


def crossing():
    """Times where native and ring are the fastest in turn, between the measured sizes too."""
    points = [(1 << power, {NATIVE: 1e-6 * power ** 2, RING: 1e-6 * (80 + 9 * (power % 5) * power)})
              for power in range(3, 22)]
    return JobTimes({("allreduce", True): tuple(points)}, "t.json")


@pytest.mark.slow
@pytest.mark.parametrize("times", [None, crossing(), probed(1.3)], ids=["rules", "times", "probe"])
@pytest.mark.parametrize("determinism", ["none", "size"])
def test_all_sizes_of_a_range_have_the_same_choice(times, determinism):
    source, conditions = random.Random(41), Conditions(SIZE, tuned=times, determinism=determinism)
    here, ends = HERE._replace(compiled=True), set()
    for _ in range(30):
        facts = facts_of(allreduce())._replace(nbytes=8 * source.randint(1, 1 << source.randint(
            1, 18)))
        least, end = range_of_choice(facts, conditions, here)
        assert least <= facts.nbytes < end
        key = decide(facts, conditions, here).key
        ends.add((least, end, key))
        for nbytes in {least, min(end, 1 << 23) - 1, *(source.randrange(max(least, 1), min(
                end, 1 << 23)) for _ in range(20))}:
            assert decide(facts._replace(nbytes=nbytes), conditions, here).key == key
    assert len({key for *_, key in ends}) > 1


def test_candidates_under_trial_have_no_range():
    assert range_of_choice(facts_of(allreduce()), Conditions(SIZE, tuned=JobTimes(online=True)),
                           HERE) is None
