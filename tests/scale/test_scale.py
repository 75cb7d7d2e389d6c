"""Proofs for 1,024 ranks, and programs for 4,096, within their memory and their work."""

import sys

import pytest
from scale.measure import MANY, PROVED, generate, many, programs, prove

#: A proof must take less, in MiB.
MEBIBYTES = 2048
#: Function calls that make a program of one rank, per rank of the schedule, if it names at most so
#: many spans per rank: work that grows with the own steps, not with what all ranks do together.
CALLS, SPANS = 100, 5
#: Proofs that make check runs: quick ones.
ALWAYS = {"bcast binomial 1024", "barrier dissemination 1024"}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("title", [
    title if title in ALWAYS else pytest.param(title, marks=pytest.mark.long) for title in PROVED])
def test_proof_for_1024_ranks(title):
    took = prove(title)
    print(f"{title}: {took.seconds:.1f} s, {took.mebibytes:.0f} MiB")
    assert took.mebibytes < MEBIBYTES


def calls(work):
    """Count the function calls that a piece of work makes."""
    count = 0

    def note(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.long(every=10)
@pytest.mark.slow(every=10)
@pytest.mark.parametrize(("collective", "name"), programs())
def test_program_of_one_of_4096_ranks(collective, name):
    big = many(collective, name)
    for rank in (0, MANY - 1):
        if generate(big, rank).spans > SPANS * MANY:
            pytest.skip("names more blocks than there are ranks")
        assert calls(lambda: generate(big, rank)) < CALLS * MANY
