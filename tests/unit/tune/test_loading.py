"""Candidates by measured and expected times; what a probe decides."""

import numpy
from unit.tune.choosing import HERE, MODEL, NATIVE, RING, SIZE, SMALL, allreduce, describe, probed
from unit.tune.choosing import choose as choose_anywhere

from hpccoll.ir.topology import Topology
from hpccoll.tune.cost_model import terms
from hpccoll.tune.loading import BEYOND, PROBED_TIE, UNMEASURED, JobTimes
from hpccoll.tune.table import Candidate


def choose(call, size, wanted, from_environment, tuned=None, **more):
    return choose_anywhere(call, size, wanted, from_environment, tuned, place=HERE, **more)


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
    assert JobTimes(probed=curves, topology=Topology(SIZE)).ranking("allreduce", True, 64) == ()


def test_what_was_measured_in_full_wins_over_a_probe():
    both = JobTimes({("allreduce", True): ((8, {RING: 1e-6, NATIVE: 2e-6}),)}, "t.json",
                    probed=probed(0.1).probed, topology=Topology(SIZE))
    assert choose(allreduce(SMALL), SIZE, None, True, both).algorithm == "ring"
    text = describe("allreduce", 64, SIZE, None, False, None, both)
    assert "measured times: from t.json\n" in text


def test_the_explanation_of_a_probe(left_only, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    tuned = probed(native=1.0)
    text = describe("allreduce", 64, SIZE, None, False, None, tuned, detail=True)
    assert "of a few candidates, by a probe, from t.json; run 'hpccoll tune' for all" in text
    assert "\npredicted times: " in text and " a reduced byte; up to 1.0 times" in text
    rows = {line.strip("* ").split()[0]: line.strip("* ").split() for line in
            text.splitlines()[5:] if line}
    assert rows["native"][3] == "-" and rows["ring"][4:6] == rows["ring"][6:8]
    assert rows["allpairs"][5:7] == ["us", "-"]
    # What keeps the order is chosen out of the same times.
    chosen = choose(allreduce(SMALL, left_only), SIZE, None, True, probed(native=9.0))
    assert chosen.algorithm == "recursive_doubling"
