"""The strength of the proof: on no mutant may it differ from what really happens.

Here every schedule gets a few mutants of one choice of block sizes, others each time the table of
algorithms changes; ``python -m support.mutate`` judges all of them.
"""

from collections import Counter

import pytest

from hpccoll.algorithms import schedule
from support import mutate
from support.brute_force import Verdict
from support.mutate import Findings, chosen, judge, suite


@pytest.mark.long(every=3)
@pytest.mark.slow
@pytest.mark.parametrize("size, most, roots", [
    (1, 5, None), (2, 20, None), (3, 16, None), (4, 6, range(1, 2)), (5, 5, range(3, 4))])
def test_proof_and_truth_agree(size, most, roots):
    found = suite([size], most, roots)
    assert not found.disagreements, str(found)
    assert size == 1 or found.wrong.total() > found.mutants.total() / 3


@pytest.mark.slow
@pytest.mark.parametrize("collective, name, size", [
    ("allreduce", "ring", 3), ("reduce_scatter", "recursive_halving", 3), ("scan", "census", 3),
    ("barrier", "dissemination", 4), ("alltoall", "bruck", 3), ("gather", "binomial", 4)])
def test_all_mutants_of_some(collective, name, size):
    made, found = schedule(collective, name, size), Findings(Counter(), Counter(), [])
    judge(made, chosen(made)[0], found)
    assert not found.disagreements, str(found)
    assert {"drop", "duplicate", "redirect", "turn", "drop both"} <= set(found.mutants)


@pytest.mark.long
@pytest.mark.slow
def test_every_kind_of_mutant_occurs():
    kinds, wrong = Counter(), Counter()
    for name in ("ring", "recursive_doubling", "rabenseifner"):
        made, found = schedule("allreduce", name, 3), Findings(kinds, wrong, [])
        for case in chosen(made):
            judge(made, case, found, 60)
        assert not found.disagreements
    assert set(kinds) == {
        "alias", "double reduce", "drop", "drop both", "duplicate", "forget", "grow", "merge",
        "redirect", "reorder", "resize", "retag", "scribble", "shift", "shift both", "shrink",
        "shrink both", "split", "swap", "swap operands", "turn", "unchanged"}
    # Most changes do harm, and those that never do are known to.
    assert not wrong["unchanged"] and not wrong["swap operands"]
    for kind in ("redirect", "turn", "grow", "shrink", "drop both", "shift both"):
        assert wrong[kind] == kinds[kind], kind


@pytest.mark.slow
def test_a_proof_that_believes_anything_is_found_out(monkeypatch):
    monkeypatch.setattr(mutate, "proof", lambda *how: Verdict(True, True, True))
    found = suite([2], 1)
    assert len(found.disagreements) > found.wrong.total() > 0
