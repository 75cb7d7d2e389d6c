"""Choices: wishes that win, wishes that cannot, and rules all ranks follow alike."""

import numpy
import pytest
from mpi4py import MPI

from hpccoll import calls
from hpccoll.algorithms import ALGORITHMS, schedule
from hpccoll.errors import ArgumentError
from hpccoll.tune.choose import Choice, objection
from hpccoll.tune.choose import choose as choose_anywhere
from hpccoll.tune.describe import describe
from hpccoll.tune.model import Model, Terms, calibrated, fit, terms
from hpccoll.tune.plausible import plausible
from hpccoll.tune.rules import RULES, Place, Rule
from hpccoll.tune.table import Candidate
from hpccoll.tune.tuned import Tuned

SIZE = 4
HERE = Place(one_node=True, crowded=True)
SMALL, LARGE = numpy.zeros(8), numpy.zeros(1 << 20)


def allreduce(array=LARGE, op=MPI.SUM):
    return calls.allreduce(SIZE, 0, array, array.copy(), op)


def choose(call, size, wanted, from_environment, tuned=None, **more):
    return choose_anywhere(call, size, wanted, from_environment, tuned, where=lambda: HERE, **more)


@pytest.fixture
def left_only():
    """An operator that does not commute."""
    op = MPI.Op.Create(lambda one, two, datatype: None, commute=False)
    yield op
    op.Free()


def test_rules_name_algorithms_that_exist_and_can_serve():
    for rule in RULES:
        assert rule.nbytes[0] > 0 and (not rule.nbytes[1] or rule.nbytes[0] < rule.nbytes[1])
        schedule(rule.collective, rule.algorithm, 4)


@pytest.mark.parametrize("nbytes, size, fits", [
    (99, 2, False), (100, 2, True), (199, 2, True), (200, 2, False), (100, 3, False)])
def test_a_rule_has_limits(nbytes, size, fits):
    rule = Rule("allreduce", "ring", (100, 200), most_ranks=2)
    assert rule.fits("allreduce", nbytes, size, "MPICH") is fits
    assert not rule.fits("scan", nbytes, size, "MPICH")
    assert not rule.fits("allreduce", nbytes, size, "another library")
    assert rule._replace(vendors=()).fits("allreduce", nbytes, size, "another library") is fits


def test_a_rule_may_ask_for_large_shares():
    rule = Rule("allreduce", "ring", (1, 0), block=10)
    assert rule.fits("allreduce", 40, 4, "MPICH") and not rule.fits("allreduce", 40, 5, "MPICH")


def test_a_rule_may_ask_for_a_place():
    rule = Rule("allreduce", "ring", (1, 0), crowded=True)
    assert rule.fits_in(HERE)
    for other in (HERE._replace(one_node=False), HERE._replace(crowded=False)):
        assert not rule.fits_in(other)
        assert rule._replace(one_node=None, crowded=None).fits_in(other)


def test_where_the_place_is_unknown_no_rule_holds():
    assert choose_anywhere(allreduce(), SIZE, None, True).is_native
    asked = []
    choose_anywhere(allreduce(SMALL), SIZE, None, True, where=lambda: asked.append(1))
    assert not asked  # asking is collective: small calls do without


def test_without_wishes_rules_decide_by_size():
    assert choose(allreduce(SMALL), SIZE, None, True).is_native
    large = choose(allreduce(), SIZE, None, True)
    assert not large.is_native and large.reason.startswith("rule: allreduce from ")
    assert choose(allreduce(), 1, None, True).is_native


def test_ranks_that_do_not_know_the_size_leave_it_to_mpi():
    told = calls.gatherv(SIZE, 1, LARGE, None, 0)
    assert told.nbytes is None and choose(told, SIZE, None, True).is_native


def test_a_wish_wins():
    for wish in (Choice("pat"), Choice("native"), Choice("recursive_multiplying", {"k": 3})):
        assert choose(allreduce(SMALL), SIZE, wish, False) is wish
    automatic = choose(allreduce(SMALL), SIZE, Choice("auto"), False)
    assert automatic.is_native and automatic.reason.startswith("rule")


def test_a_wish_that_cannot_serve_raises_or_gives_way(left_only):
    call = allreduce(op=left_only)
    with pytest.raises(ArgumentError, match="ring cannot serve this allreduce: it does not keep "
                                            "rank order.*; choose one that can"):
        choose(call, SIZE, Choice("ring"), False)
    instead = choose(call, SIZE, Choice("ring"), True)
    assert instead.is_native and "ring was asked for, but it does not keep" in instead.reason


def test_rules_look_at_the_operator_too(left_only):
    chosen = choose(allreduce(op=left_only), SIZE, None, True)
    assert chosen.is_native or not objection(chosen, allreduce(op=left_only), SIZE)


@pytest.mark.parametrize("name, array, op, fits", [
    ("window", numpy.zeros(4), MPI.SUM, False), ("window", numpy.zeros(4, "i4"), MPI.SUM, True),
    ("window", numpy.zeros(4, "i4"), MPI.MAX, True), ("ring", numpy.zeros(4), MPI.SUM, True)])
def test_algorithms_whose_ranks_round_differently(name, array, op, fits):
    problem = objection(Choice(name), allreduce(array, op), SIZE)
    assert (problem == "") == fits and (fits or "may differ between ranks" in problem)


def test_algorithms_for_blocks_of_one_size():
    even = calls.alltoall(2, 0, numpy.zeros(4), numpy.zeros(4))
    uneven = calls.alltoallv(2, 0, [numpy.zeros(4), [1, 3]], [numpy.zeros(4), [1, 3]])
    assert objection(Choice("bruck"), even, 2) == ""
    assert objection(Choice("bruck"), uneven, 2) == "it needs blocks of one size"
    assert objection(Choice("pairwise"), uneven, 2) == ""


@pytest.mark.parametrize("made, complaint", [
    (("bcast", "binomial", 4), "it is a schedule for bcast"),
    (("allreduce", "ring", 5), "it is for 5 ranks, the communicator has 4"),
    (("allreduce", "ring", 4), "")])
def test_finished_schedules_must_fit(made, complaint):
    assert objection(Choice(schedule(*made)), allreduce(), SIZE) == complaint


def test_finished_schedules_have_a_root():
    call = calls.bcast(SIZE, 0, SMALL, 2)
    assert objection(Choice(schedule("bcast", "binomial", 4, root=2)), call, SIZE) == ""
    assert objection(Choice(schedule("bcast", "binomial", 4, root=1)), call, SIZE) == (
        "it is for root 1, the call has root 2")


def test_builders_are_taken_at_their_word_until_they_are_proved():
    assert objection(Choice(lambda rank, size: None), allreduce(), SIZE) == ""


# -- measured times ------------------------------------------------------------------------
NATIVE, RING, MULTIPLYING = Candidate("native"), Candidate("ring", (), 4096), Candidate(
    "recursive_multiplying", (("k", 2),))


def tuned(**times):
    """Times in seconds of candidates for an allreduce of any size."""
    candidates = {"native": NATIVE, "ring": RING, "multiplying": MULTIPLYING,
                  "window": Candidate("window")}
    return Tuned({("allreduce", True): ((8, {candidates[name]: seconds
                                             for name, seconds in times.items()}),)}, "t.json")


def test_the_fastest_measured_candidate_wins():
    chosen = choose(allreduce(SMALL), SIZE, None, True, tuned(native=3e-6, ring=2e-6))
    assert chosen == Choice("ring", {}, 4096, "measured: 2 us in t.json")
    chosen = choose(allreduce(), SIZE, None, True, tuned(native=2, multiplying=1, ring=3))
    assert chosen[:3] == ("recursive_multiplying", {"k": 2}, 0)
    assert choose(allreduce(), SIZE, None, True, tuned(native=1, ring=2)).is_native


def test_the_next_best_serves_where_the_best_cannot(left_only):
    times = tuned(window=1, ring=2, multiplying=3, native=4)
    assert choose(allreduce(), SIZE, None, True, times).algorithm == "ring"
    assert choose(allreduce(op=left_only), SIZE, None, True, times).params == {"k": 2}
    integers = allreduce(numpy.zeros(4, "i4"))
    assert choose(integers, SIZE, None, True, times).algorithm == "window"


def test_rules_decide_where_nothing_was_measured(left_only):
    scan = calls.scan(SIZE, 0, LARGE, LARGE.copy(), MPI.SUM)
    assert choose(scan, SIZE, None, True, tuned(ring=1)).reason.startswith("rule")
    chosen = choose(allreduce(op=left_only), SIZE, None, True, tuned(ring=1))
    assert chosen.algorithm == "allpairs"  # which keeps the order
    assert choose(allreduce(), SIZE, None, True, Tuned()).reason.startswith("rule")
    assert choose(allreduce(), 1, None, True, tuned(ring=1)).is_native


def test_a_wish_wins_over_measured_times():
    wish = Choice("pat")
    assert choose(allreduce(), SIZE, wish, False, tuned(ring=1)) is wish
    assert choose(allreduce(), SIZE, Choice("auto"), False, tuned(ring=1)).algorithm == "ring"


def test_the_explanation_shows_times_and_where_they_come_from():
    def explained(times):
        return describe("allreduce", 64, SIZE, None, False, None, times)

    text = explained(tuned(ring=2e-6, native=3e-6))
    assert text.startswith("allreduce, 64 bytes, 4 ranks: ring (measured: 2 us in t.json)\n"
                           "measured times: from t.json\n")
    lines = [line.split() for line in text.splitlines()[3:6]]
    assert [line[0] for line in lines] == ["candidate", "ring:segment=4096", "native"]
    assert lines[1][3:6] == ["-", "2", "us"] and lines[2][3:6] == ["-", "3", "us"]
    assert "none; 'hpccoll tune' makes them" in explained(Tuned())
    assert "looked for at the first collective" in explained(None)
    assert "none; t.json is not used: it is for others" in explained(
        Tuned(source="t.json", note="it is for others"))


# -- what to expect ------------------------------------------------------------------------
def test_constants_are_fitted_to_measured_times():
    names = ("ring", "recursive_doubling", "rabenseifner", "linear")
    truth = Model(3e-6, 2e-9)
    curve = tuple((nbytes, {Candidate(name): truth.seconds(
        terms("allreduce", Candidate(name), SIZE, nbytes)) for name in names})
        for nbytes in (8, 1 << 10, 1 << 20))
    times = Tuned({("allreduce", True): curve}, "t.json")
    for collective in ("allreduce", "bcast"):  # the second was not measured
        found = calibrated(times.curves, collective, SIZE)
        assert found == pytest.approx(truth, rel=1e-4)
    text = describe("allreduce", 1 << 20, SIZE, None, False, None, times)
    row = next(line.split() for line in text.splitlines() if line.startswith("ring "))
    assert row[3:7] == [row[3], "ms"] * 2 and float(row[3]) == pytest.approx(3.164, rel=1e-2)


def test_constants_are_not_negative():
    samples = [(Terms(1, 1000), 9.0), (Terms(2, 1000), 5.0), (Terms(3, 1000), 4.0),
               (Terms(4, 2000), 7.0)]
    assert min(fit(samples)) >= 0 and max(fit(samples)) > 0
    assert min(fit([(Terms(b, a), t) for (a, b), t in samples])) >= 0
    assert fit(samples[:3]) is None  # too few
    assert fit([(Terms(2, 4), 1.0)] * 9) is None  # all alike
    assert terms("bcast", Candidate("binary"), 4, 8) is None
    assert terms("bcast", NATIVE, 4, 8) is None
    assert terms("barrier", Candidate("linear"), 4, 0) == (2, 0)


# -- what is worth trying ------------------------------------------------------------------
@pytest.mark.parametrize("size, nbytes, names, missing", [
    (2, 8, ("recursive_doubling", "ring", "linear"), ("leader",)),
    (1024, 8, ("recursive_doubling",), ("ring", "leader")),
    (64, 64 << 20, ("ring", "rabenseifner"), ("linear",))])
def test_hopeless_algorithms_are_not_tried(size, nbytes, names, missing):
    found = plausible("allreduce", size, nbytes)
    assert set(names) <= set(found) and not set(missing) & set(found)


def test_something_is_left_to_try():
    for collective in ALGORITHMS:
        for size in (2, 3, 8, 100):
            assert plausible(collective, size, 0) and plausible(collective, size, 1 << 20)
    assert "leader" in plausible("allreduce", 4, 8, hierarchical=True)
