"""Proofs for 1,024 ranks, and programs for 4,096, within their time and memory.

``python tests/scale/measure.py`` prints the figures.
"""

import pytest
from scale.measure import MANY, PROVED, generate, many, programs, prove

#: A proof must take less, in processor seconds and in MiB.
SECONDS, MEBIBYTES = 60, 2048
#: PAT sorts blocks: 2p local copies on each of p ranks, each of them a step to prove.
LONGER = {"allreduce pat 1024": 120}
#: A program of one rank must take less, in seconds, if it names at most so many spans per rank.
PROGRAM_SECONDS, SPANS = 0.050, 5
#: Proofs that are always run: the two that were promised, and quick ones.
ALWAYS = {"allreduce circulant 1024", "allreduce rails 64x16", "allreduce recursive_doubling 1024",
          "allreduce leader 64x16", "bcast binomial 1024", "reduce binomial 1024",
          "barrier dissemination 1024"}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("title", [
    title if title in ALWAYS else pytest.param(title, marks=pytest.mark.slow) for title in PROVED])
def test_proof_for_1024_ranks(title):
    took = prove(title)
    print(f"{title}: {took.seconds:.1f} s, {took.mebibytes:.0f} MiB")
    assert took.seconds < LONGER.get(title, SECONDS)
    assert took.mebibytes < MEBIBYTES


@pytest.mark.parametrize(("collective", "name"), programs())
def test_program_of_one_of_4096_ranks(collective, name):
    """Best of some attempts: other work on the machine makes single ones slow."""
    big = many(collective, name)
    for rank in (0, MANY - 1):
        if generate(big, rank).spans > SPANS * MANY:
            pytest.skip("names more blocks than there are ranks")
        assert any(generate(big, rank).seconds < PROGRAM_SECONDS for _ in range(10))
