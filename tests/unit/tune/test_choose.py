"""Choices: wishes that win, wishes that cannot, and rules all ranks follow alike."""

import itertools
from random import Random

import numpy
import pytest
from mpi4py import MPI
from unit.tune.choosing import asks_for_the_place, describe, native_below, objection
from unit.tune.choosing import choose as choose_anywhere

from hpccoll.algorithms import ALGORITHMS, schedule
from hpccoll.calls import resolve
from hpccoll.errors import ArgumentError
from hpccoll.ir.topology import Topology
from hpccoll.runtime.choice import Choice
from hpccoll.tune.choose import EVERY
from hpccoll.tune.cost_model import MOST_RANKS, Model, calibrated, closed_form, fit, terms
from hpccoll.tune.loading import Tuned
from hpccoll.tune.pruning import plausible
from hpccoll.tune.ranking import BEYOND, PROBED_TIE, TIE, UNMEASURED
from hpccoll.tune.rules import RULES, Place, Rule
from hpccoll.tune.table import Candidate

SIZE = 4
HERE = Place(one_node=True, oversubscribed=True)
SMALL, LARGE = numpy.zeros(2), numpy.zeros(1 << 20)


def allreduce(array=LARGE, op=MPI.SUM):
    return resolve.allreduce(SIZE, 0, array, array.copy(), op)


def choose(call, size, wanted, from_environment, tuned=None, **more):
    return choose_anywhere(call, size, wanted, from_environment, tuned, place=HERE, **more)


@pytest.fixture
def left_only():
    """An operator that does not commute."""
    op = MPI.Op.Create(lambda one, two, datatype: None, commute=False)
    yield op
    op.Free()


def test_rules_name_algorithms_that_exist_and_can_serve():
    for rule in RULES:
        assert rule.nbytes[0] > 0 or rule.collective == "barrier"
        assert not rule.nbytes[1] or rule.nbytes[0] < rule.nbytes[1]
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


def test_a_rule_may_ask_for_numbers_of_ranks():
    rule = Rule("allreduce", "ring", (1, 0), most_ranks=4, least_ranks=3)
    assert [size for size in range(1, 8) if rule.fits("allreduce", 8, size, "MPICH")] == [3, 4]
    assert str(rule) == ("allreduce from 1 bytes, from 3 ranks, up to 4 ranks, on one node, "
                         "with MPICH or Open MPI")


@pytest.mark.parametrize("collective, nbytes, ranks, oversubscribed, serves", [
    ("scan", 64, 2, False, "recursive_doubling"), ("scan", 64, 4, True, "census"),
    ("scan", 4 << 20, 3, True, "linear"), ("exscan", 64, 3, True, "census"),
    ("scan", 64, 3, False, "native"), ("gather", 64, 4, True, "linear"),
    ("gather", 64, 3, True, "native"), ("gather", 64, 2, False, "native"),
    ("scatter", 64, 3, True, "linear"), ("scatter", 64, 5, True, "native")])
def test_rules_for_what_is_slow_in_mpich(monkeypatch, collective, nbytes, ranks, oversubscribed, serves):
    monkeypatch.setattr("hpccoll.tune.choose.vendor", lambda: "MPICH")
    call = KINDS[collective](ranks, numpy.zeros(nbytes // 4 * ranks, "f4"))
    place = Place(one_node=True, oversubscribed=oversubscribed)
    assert choose_anywhere(call, ranks, None, True, place=place).algorithm == serves


def test_a_rule_may_ask_for_a_place():
    rule = Rule("allreduce", "ring", (1, 0), oversubscribed=True, in_order=True)
    assert rule.fits_in(HERE)
    for other in (HERE._replace(one_node=False), HERE._replace(oversubscribed=False),
                  HERE._replace(in_order=False)):
        assert not rule.fits_in(other)
        assert rule._replace(one_node=None, oversubscribed=None, in_order=None).fits_in(other)
    assert "sharing processors, numbered node by node" in str(rule)


def test_rails_have_short_messages_without_a_fabric():
    def chosen(place):
        return choose_anywhere(allreduce(), SIZE, None, True, place=place)

    apart = Place(one_node=False, oversubscribed=True)
    with_tcp, with_fabric = chosen(apart), chosen(apart._replace(fabric=True))
    assert with_tcp.algorithm == with_fabric.algorithm == "rails"
    assert with_tcp.segment_bytes == 48 << 10 and with_fabric.segment_bytes != 48 << 10
    assert with_tcp.reason.endswith("on several nodes, without a fabric, with MPICH or Open MPI")


def test_chains_are_for_ranks_in_order():
    def chosen(place):
        call = resolve.reduce(SIZE, 0, LARGE, LARGE.copy(), MPI.SUM, 0)
        return choose_anywhere(call, SIZE, None, True, place=place).algorithm

    apart = Place(one_node=False, oversubscribed=True)
    assert chosen(apart) == "chain" and chosen(apart._replace(in_order=False)) == "leader"


@pytest.mark.parametrize("library, dealt", [("MPICH", "native"), ("Open MPI", "leader")])
def test_a_bcast_between_nodes(monkeypatch, library, dealt):
    monkeypatch.setattr("hpccoll.tune.choose.vendor", lambda: library)

    def chosen(**place):
        call = resolve.bcast(SIZE, 0, LARGE, 0)
        return choose_anywhere(call, SIZE, None, True,
                               place=Place(False, True, **place)).algorithm

    assert chosen() == chosen(fabric=True) == "chain"
    assert chosen(in_order=False) == dealt


@pytest.mark.parametrize("library", ["MPICH", "Open MPI"])
@pytest.mark.parametrize("collective", ["bcast", "reduce"])
def test_no_rule_makes_long_chains(collective, library):
    def chains(size):
        return [rule for rule in RULES if rule.algorithm == "chain"
                and rule.fits(collective, 1 << 30, size, library)]

    assert chains(8) and not chains(9)


def test_where_the_place_is_unknown_no_rule_holds():
    assert choose_anywhere(allreduce(), SIZE, None, True).is_native
    # Asking is collective: small calls do without.
    assert asks_for_the_place(allreduce(), SIZE) and not asks_for_the_place(allreduce(SMALL), SIZE)


def test_without_wishes_rules_decide_by_size():
    assert choose(allreduce(SMALL), SIZE, None, True).is_native
    large = choose(allreduce(), SIZE, None, True)
    assert not large.is_native and large.reason.startswith("rule: allreduce from ")
    assert choose(allreduce(), 1, None, True).is_native


def test_ranks_that_do_not_know_the_size_leave_it_to_mpi():
    told = resolve.gatherv(SIZE, 1, LARGE, None, 0)
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
    ("census", numpy.zeros(4), MPI.SUM, False), ("census", numpy.zeros(4, "i4"), MPI.SUM, True),
    ("census", numpy.zeros(4, "i4"), MPI.MAX, True), ("ring", numpy.zeros(4), MPI.SUM, True)])
def test_algorithms_whose_ranks_round_differently(name, array, op, fits):
    problem = objection(Choice(name), allreduce(array, op), SIZE)
    assert (problem == "") == fits and (fits or "may differ between ranks" in problem)


def test_algorithms_for_blocks_of_one_size():
    even = resolve.alltoall(2, 0, numpy.zeros(4), numpy.zeros(4))
    uneven = resolve.alltoallv(2, 0, [numpy.zeros(4), [1, 3]], [numpy.zeros(4), [1, 3]])
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
    call = resolve.bcast(SIZE, 0, SMALL, 2)
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
                  "census": Candidate("census")}
    return Tuned({("allreduce", True): ((8, {candidates[name]: seconds
                                             for name, seconds in times.items()}),)}, "t.json")


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
    assert chosen.algorithm == "allpairs"  # which keeps the order
    assert choose(allreduce(), SIZE, None, True, Tuned()).reason.startswith("rule")
    assert choose(allreduce(), 1, None, True, tuned(ring=1)).is_native


# -- small calls, which are the library's whatever they are -----------------------------------
KINDS = {
    "allreduce": lambda size, buffer: resolve.allreduce(size, 0, buffer, buffer.copy(), MPI.SUM),
    "reduce": lambda size, buffer: resolve.reduce(size, 0, buffer, buffer.copy(), MPI.SUM, 0),
    "bcast": lambda size, buffer: resolve.bcast(size, 0, buffer, 0),
    "alltoall": lambda size, buffer: resolve.alltoall(size, 0, buffer, buffer.copy()),
    "allgather": lambda size, buffer: resolve.allgather(size, 0, buffer[:buffer.size // size],
                                                      buffer.copy()),
    "reduce_scatter": lambda size, buffer: resolve.reduce_scatter_block(
        size, 0, buffer, buffer[:buffer.size // size].copy(), MPI.SUM),
    "gather": lambda size, buffer: resolve.gather(size, 0, buffer[:buffer.size // size],
                                                buffer.copy(), 0),
    "scatter": lambda size, buffer: resolve.scatter(size, 0, buffer,
                                                  buffer[:buffer.size // size].copy(), 0),
    "scan": lambda size, buffer: resolve.scan(size, 0, buffer, buffer.copy(), MPI.SUM),
    "exscan": lambda size, buffer: resolve.exscan(size, 0, buffer, buffer.copy(), MPI.SUM)}


@pytest.mark.parametrize("library", ["MPICH", "Open MPI", "Intel MPI", "another"])
@pytest.mark.parametrize("collective", KINDS)
def test_below_its_first_rule_a_collective_is_native(monkeypatch, library, collective):
    monkeypatch.setattr("hpccoll.tune.choose.vendor", lambda: library)
    places = [None, *(Place(*bits) for bits in itertools.product((True, False), repeat=4))]
    for size, place in itertools.product((2, 3, 4, 8), places):
        end = native_below(collective, size, None, None, "none", place)
        around = [(end + n) // size for n in (-1, 0, size)] if end < 1 << 22 else []
        for items in {1, 4, 200, *(1 << n for n in range(16)), *filter(None, around)}:
            call = KINDS[collective](size, numpy.zeros(items * size, "u1"))
            for there in places if place is None else [place]:
                chosen = choose_anywhere(call, size, None, False, place=there)
                assert chosen.is_native or call.nbytes >= end
                if call.nbytes == end and place is not None:
                    assert not chosen.is_native


def test_what_is_asked_for_decides_small_calls_too():
    def below(wish=None, tuned=None, determinism="none", size=SIZE):
        return native_below("allreduce", size, wish, tuned, determinism, HERE)

    few = below()
    assert below(Choice("auto")) == below(tuned=Tuned()) == few < EVERY
    assert below(Choice("native")) == below(size=1) == EVERY
    assert below(Choice("ring")) == below(determinism="run") == below(tuned=Tuned(online=True)) == 0
    assert below(tuned=probed(native=0.01)) == 0
    assert below(tuned=tuned(native=1, ring=2)) == EVERY
    assert below(tuned=tuned(native=2, ring=1)) == below(tuned=tuned(ring=1)) == 0
    # Level but for rounding: better not to be sure.
    assert below(tuned=tuned(native=1, census=TIE)) == 0


def test_below_the_first_size_at_which_another_was_measured_faster():
    random = Random(5)
    for _ in range(200):
        sizes = sorted(random.sample(range(1, 4000), 4))
        curves = {("allreduce", commutes): tuple(
            (nbytes, {c: random.choice((1.0, 1.5, 2.0, 3.0))
                      for c in (NATIVE, RING, Candidate("census"))[:random.choice((1, 2, 2, 3))]})
            for nbytes in sizes) for commutes in (True, False)}
        table = Tuned(curves)
        end = native_below("allreduce", SIZE, None, table, "none", None)
        assert end in (0, EVERY, *(nbytes + 1 for nbytes in sizes))
        for nbytes in (1, *sizes, *(n + 1 for n in sizes), random.randrange(1, 5000), 10_000):
            for commutes in (True, False):
                assert nbytes >= end or (
                    table.ranking("allreduce", commutes, nbytes)[0].candidate == NATIVE)


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
    truth = Model((1e-6, 2e-6, 2e-9, 1e-9))
    curve = tuple((nbytes, {Candidate(name): truth.seconds(
        terms("allreduce", Candidate(name), SIZE, nbytes)) for name in names})
        for nbytes in (8, 1 << 10, 1 << 20))
    times = Tuned({("allreduce", True): curve}, "t.json")
    for collective in ("allreduce", "bcast"):  # the second was not measured
        found = calibrated(times.curves, collective, SIZE)
        assert found.costs == pytest.approx(truth.costs, rel=1e-4)
        assert found.miss == pytest.approx(1, rel=1e-4)
    text = describe("allreduce", 1 << 20, SIZE, None, False, None, times)
    row = next(line.split() for line in text.splitlines() if line.startswith("ring "))
    assert row[3:7] == [row[3], "ms"] * 2 and float(row[3]) == pytest.approx(3.95, rel=1e-2)
    assert ("predicted times: 1 us a message, 2 us a round, 2 ns a byte, 1 ns a reduced byte; up "
            "to 1.0") in text


def test_constants_are_not_negative():
    samples = [((1, 1000), 9.0), ((2, 1000), 5.0), ((3, 1000), 4.0), ((4, 2000), 7.0)]
    for mirrored in (samples, [((b, a), t) for (a, b), t in samples]):
        found = fit(mirrored)
        assert min(found.costs) >= 0 and max(found.costs) > 0 and found.miss > 1
        assert found.miss == pytest.approx(max(t / found.seconds(x) for x, t in mirrored), rel=1e-3)
    assert fit(samples[:3]) is None  # too few
    assert fit([((2, 4), 1.0)] * 9) is None  # all alike
    assert fit([(known, 1e-300) for known, _ in samples]) is None  # absurd


@pytest.mark.parametrize("collective, name, layout, expected", [
    ("allreduce", "ring", "4", (6, 6, 600, 300)),
    ("allreduce", "allpairs", "4", (6, 2, 600, 300)),
    ("allreduce", "recursive_doubling", "4", (2, 2, 800, 800)),
    ("gather", "linear", "4", (3, 1, 300, 0)),  # what the root receives
    ("barrier", "linear", "4", (3, 2, 0, 0)),
    ("bcast", "binary", "4", None), ("bcast", "native", "4", None),
    ("allreduce", "ring", "2x2", (6, 6, 600, 300, 6, 600)),
    ("allreduce", "ring", "2x2@0,2,1,3", (6, 6, 600, 300, 6, 1200)),
    ("allreduce", "recursive_doubling", "2x4", (3, 3, 2400, 2400, 1, 3200)),
    ("allreduce", "leader", "2x4", (3, 5, 2400, 2400, 1, 800)),
    ("allreduce", "rails", "2x4", (6, 6, 1400, 700, 2, 800)),
    ("allreduce", "rails", "2x2x2", (6, 6, 1400, 700, 2, 800, 4, 1200)),
    ("allreduce", "ring", "2x40", (158, 158, 15800, 7900, 158, 15800))])
def test_terms_count_what_a_schedule_does(collective, name, layout, expected):
    """Messages, rounds, bytes and reduced bytes; rounds and bytes out of groups."""
    topology = Topology.parse(layout)
    found = terms(collective, Candidate(name), topology.size, 100 * topology.size, topology)
    assert found == (expected and pytest.approx(expected))


def test_terms_of_ranks_that_are_not_looked_at():
    """Those between the first and the last of a group send alike, and all of them count."""
    topology = Topology.parse("2x32")
    found = terms("allreduce", Candidate("recursive_doubling"), 64, 100, topology)
    assert found == pytest.approx((6, 6, 600, 600, 1, 3200))
    many = terms("allreduce", Candidate("ring"), MOST_RANKS + 1, 8)
    assert many is None and closed_form("allreduce", Candidate("ring"), MOST_RANKS + 1, 8)


# -- by a probe ----------------------------------------------------------------------------
MODEL = Model((1e-7, 1e-6, 1e-9, 0.0))
KNOWN = ("ring", "recursive_doubling")


def probed(native, names=KNOWN, factors=(1.0,)):
    """What a probe tells where the model holds, up to factors; native takes so many times ring."""
    points = []
    for nbytes in (64, 4096, 1 << 18):
        times = {Candidate(name): factor * MODEL.seconds(
            terms("allreduce", Candidate(name), SIZE, nbytes))
            for name, factor in zip(names, [*factors, 1.0, 1.0, 1.0, 1.0])}
        points.append((nbytes, times | {NATIVE: native * times[Candidate("ring")]}))
    return Tuned(source="t.json", probed={("allreduce", True): tuple(points)},
                 topology=Topology(SIZE))


def test_a_probe_decides_among_what_it_measured():
    array = numpy.zeros(32 << 10)
    small = choose(allreduce(SMALL), SIZE, None, True, probed(native=0.3))
    assert small.is_native and small.reason == "measured: 2.01 us in t.json"
    fast = choose(allreduce(array), SIZE, None, True, probed(native=2, names=(
        "ring", "recursive_doubling", "rabenseifner", "allpairs")))
    assert fast.algorithm in ("allpairs", "rabenseifner", "ring")
    assert fast.reason.startswith("measured: ")
    names = ("ring", "recursive_doubling", "recursive_multiplying", "linear", "allpairs")
    ring, *others = (MODEL.seconds(terms("allreduce", Candidate(name), SIZE, 64)) for name in names)
    for tie in (PROBED_TIE * 1.01, PROBED_TIE * 0.99):
        chosen = choose(allreduce(SMALL), SIZE, None, True, probed(min(others) / ring / tie, names))
        assert chosen.is_native == (tie > PROBED_TIE)


def test_what_was_not_measured_must_be_expected_to_be_much_faster():
    names = ("ring", "rabenseifner", "linear")
    tuned = probed(native=1.0, names=names)
    ranking = tuned.ranking("allreduce", True, 64)
    measured = {timed.candidate.name for timed in ranking if not timed.predicted}
    assert measured == {"native", *names}
    # One round in place of six, four and two: clearly below what was measured.
    assert ranking[0].predicted and terms("allreduce", ranking[0].candidate, SIZE, 64)[1] == 1
    chosen = choose(allreduce(SMALL), SIZE, None, True, tuned)
    assert chosen.reason.startswith("predicted: 1.") and chosen.reason.endswith(" us by t.json")
    best = ranking[0].seconds / UNMEASURED
    ring = next(t.seconds for t in ranking if t.candidate.name == "ring")
    for native, first in ((1.02, True), (0.98, False)):
        tuned = probed(native=native * best / PROBED_TIE / ring, names=names)
        assert tuned.ranking("allreduce", True, 64)[0].predicted is first


def test_a_model_that_was_wrong_is_trusted_less():
    names = ("ring", "rabenseifner", "linear")
    assert probed(1.0, names).ranking("allreduce", True, 64)[0].predicted
    doubtful = probed(1.0, names, factors=(4.0,))
    assert doubtful.model("allreduce", SIZE, Topology(SIZE)).miss > 1.5
    assert not doubtful.ranking("allreduce", True, 64)[0].predicted


def test_a_probe_is_silent_about_much_larger_calls_and_where_native_is_missing():
    tuned = probed(native=1.0)
    largest = 1 << 18
    assert tuned.ranking("allreduce", True, BEYOND * largest) == tuned.ranking(
        "allreduce", True, largest)
    assert tuned.ranking("allreduce", True, BEYOND * largest + 1) == ()
    assert tuned.ranking("allreduce", True, 1) == tuned.ranking("allreduce", True, 64)
    assert choose(allreduce(), SIZE, None, True, tuned).reason.startswith("rule")
    curves = {("allreduce", True): ((64, {Candidate("ring"): 1e-6}),)}
    assert Tuned(probed=curves, topology=Topology(SIZE)).ranking("allreduce", True, 64) == ()


def test_what_was_measured_in_full_wins_over_a_probe():
    both = Tuned({("allreduce", True): ((8, {RING: 1e-6, NATIVE: 2e-6}),)}, "t.json",
                 probed=probed(0.1).probed, topology=Topology(SIZE))
    assert choose(allreduce(SMALL), SIZE, None, True, both).algorithm == "ring"
    text = describe("allreduce", 64, SIZE, None, False, None, both)
    assert "measured times: from t.json\n" in text


def test_the_explanation_of_a_probe(left_only):
    tuned = probed(native=1.0)
    text = describe("allreduce", 64, SIZE, None, False, None, tuned)
    assert "of a few candidates, by a probe, from t.json; 'hpccoll tune' makes them all" in text
    assert "\npredicted times: " in text and " ns a reduced byte; up to 1.0 times" in text
    rows = {line.split()[0]: line.split() for line in text.splitlines()[5:] if line}
    assert rows["native"][3] == "-" and rows["ring"][3:5] == rows["ring"][5:7]
    assert rows["allpairs"][4:6] == ["us", "-"]
    # What keeps the order is chosen out of the same times.
    chosen = choose(allreduce(SMALL, left_only), SIZE, None, True, probed(native=9.0))
    assert chosen.algorithm == "recursive_doubling"


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
    for collective in ("allreduce", "allgather", "reduce_scatter"):
        found = plausible(collective, 64, 1 << 20, hierarchical=True)
        assert found.index("rails") < min(map(found.index, ("circulant", "pat", "swing")))


def test_bfloat16_is_never_left_to_the_library():
    dtype = numpy.dtype(pytest.importorskip("ml_dtypes").bfloat16)
    small, large = (allreduce(numpy.zeros(count, dtype)) for count in (4, 1 << 20))
    assert choose(small, SIZE, None, False).algorithm == "recursive_doubling"
    assert "no such type" in choose(small, SIZE, None, False).reason
    assert choose(large, SIZE, None, False).algorithm == "allpairs"
    with pytest.raises(ArgumentError, match="cannot combine elements of this type"):
        choose(small, SIZE, Choice("native"), False)
    chosen = choose(small, SIZE, Choice("native"), True)
    assert chosen.algorithm == "recursive_doubling" and "native was asked for" in chosen.reason
    assert choose(small, 1, None, False).is_native
    # What is only moved may be served by anybody.
    moved = resolve.bcast(SIZE, 0, numpy.zeros(4, dtype), 0)
    assert choose(moved, SIZE, Choice("native"), False).is_native
