"""The strength of the proof on whole schedules: it may differ from no execution as written.

Here are some hundred mutants, others for every seed; ``python -m support.mutate_schedules``
judges 20,000.
"""

from collections import Counter
from random import Random

import pytest

from hpccoll.algorithms import schedule
from hpccoll.errors import ProofError
from hpccoll.ir.wellformed import program_of
from hpccoll.proof import slots, verifier
from hpccoll.proof.result import Proof
from support import mutate_schedules, reference
from support.brute_force import Verdict
from support.extra_schedules import extra_schedules
from support.mutate import Findings
from support.mutate_schedules import any_schedule, judge, suite, truth
from support.mutations import MUTATIONS


@pytest.mark.long(every=2)
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_proof_and_execution_agree(seed):
    found = suite(120, seed, 6)
    assert not found.disagreements, str(found)
    assert found.mutants.total() / 2 < found.wrong.total() < found.mutants.total()


@pytest.mark.slow
def test_every_kind_changes_something_and_leaves_the_original_alone():
    draw, seen = Random(1), Counter()
    assert len(MUTATIONS) >= 41
    for _ in range(150):
        made = any_schedule(draw, 5)
        programs = [program_of(made, rank) for rank in range(made.size)]
        for kind, mutate in MUTATIONS.items():
            changed = mutate(draw, programs)
            assert programs == [program_of(made, rank) for rank in range(made.size)]
            seen[kind] += changed is not None and changed != programs
    assert set(+seen) == set(MUTATIONS)


@pytest.mark.parametrize("kind", ["fewer sources", "fewer sinks", "other network", "spelt out"])
def test_a_second_change_finds_no_ranks_left(kind):
    made = next(made for made in extra_schedules(3) if made.algorithm == "spread")
    programs = [program_of(made, rank) for rank in range(3)]
    for _ in range(2):
        for first in ("fewer sources", "fewer sinks"):
            programs = MUTATIONS[first](Random(0), programs) or programs
    for seed in range(8):
        MUTATIONS[kind](Random(seed), programs)


@pytest.mark.slow
@pytest.mark.parametrize("right", [True, False])
def test_a_proof_that_believes_anything_or_nothing_is_found_out(monkeypatch, right):
    def verdict(mutant):
        if not right:
            raise ProofError("no")
        return Proof(True, True, 1, 1, 1)

    monkeypatch.setattr(mutate_schedules, "verify", verdict)
    found = suite(40, 5, 4)
    assert len(found.disagreements) >= found.wrong.total() > 20 if right else (
        len(found.disagreements) == found.mutants.total() - found.wrong.total() > 0)


def test_a_proof_that_is_blind_to_sizes_is_found_out(monkeypatch):
    monkeypatch.setattr(verifier, "cases", lambda *how: [])
    monkeypatch.setattr(slots.SlotMemory, "keys",
                        lambda self, spans: [0] * sum(s.stop - s.start for s in spans))
    draw, findings = Random(3), Findings(Counter(), Counter(), [])
    made = schedule("allgather", "ring", 5)
    programs = [program_of(made, rank) for rank in range(5)]
    for _ in range(20):
        changed = MUTATIONS["detour of another size"](draw, programs)
        judge(made, changed, "detour", findings, draw)
    assert len(findings.disagreements) == findings.wrong["detour"] > 10


def test_races_are_wrong_as_written():
    made = schedule("allgather", "ring", 4)
    programs = [program_of(made, rank) for rank in range(4)]
    assert truth(made, programs, Random(0), 3) == Verdict(True)
    changed = MUTATIONS["receive into what is sent"](Random(0), programs)
    found = reference.run(made, changed, [1] * 4, False, Random(0))
    assert not found.right and "meets another message" in found.why
