"""Messages that are damaged, lost, doubled or overtaken: named with checksums, never wrong.

All bits of all messages of all algorithms on four ranks take minutes:
``python -m hpccoll.testing.fault_injection``; here are a few algorithms whole, and one bit of each
message of the others. Seen to fail where checksums are compared and numbers are not. Without
checksums the same harm gives wrong results, which the last tests see.
"""

from collections import Counter

import pytest

from hpccoll.algorithms import schedule
from hpccoll.testing import every
from hpccoll.testing.fault_injection import (
    DOUBLE,
    FLIP,
    HARMLESS,
    LOSE,
    NAMED,
    SWAP,
    WRONG,
    Harm,
    Havoc,
    describe_run,
    harms_of,
    small,
)
from hpccoll.testing.model_check import Network, Run
from hpccoll.testing.world import Problem


def run_of(made, buffered, checked=True, calls=1, rank_order=False):
    return Run(made, small(made, rank_order), Havoc(made.size, buffered), checked, calls=calls)


def judged(run, chosen=lambda harm: True):
    return Counter((harm.kind, describe_run(run, harm)) for harm in list(harms_of(run))
                   if chosen(harm))


@pytest.mark.long(every=6)
@pytest.mark.slow
@pytest.mark.parametrize("buffered", [False, True])
@pytest.mark.parametrize("collective, name", [
    ("allreduce", "recursive_doubling"), ("bcast", "chain"), ("alltoall", "bruck"),
    ("barrier", "dissemination"), ("reduce", "binomial"), ("scan", "census")])
def test_every_bit_of_every_message(collective, name, buffered):
    found = judged(run_of(schedule(collective, name, 4, root=1), buffered))
    assert {key for key, count in found.items() if count} <= {
        (FLIP, NAMED), (LOSE, NAMED), (DOUBLE, NAMED), (SWAP, NAMED), (SWAP, HARMLESS)}
    # What is overtaken by nothing is not harmed: the last companion on each edge.
    assert found[FLIP, NAMED] >= 128 and found[SWAP, HARMLESS] <= found[SWAP, NAMED]


@pytest.mark.long(every=4)
@pytest.mark.slow
@pytest.mark.parametrize("first", range(4))
def test_one_bit_of_every_message_of_every_algorithm(first):
    found = Counter()
    for number, (entry, made) in list(enumerate(every(4, range(2, 3))))[first::4]:
        run = run_of(made, bool(number % 2), rank_order=entry.rank_order)
        found += judged(run, lambda harm, number=number: harm.kind in (LOSE, DOUBLE)
                        or harm.kind == FLIP and harm.bit == (7 * number + harm.number) % 16)
    assert set(found) == {(LOSE, NAMED), (DOUBLE, NAMED), (FLIP, NAMED)}
    assert found[FLIP, NAMED] > 250


@pytest.mark.parametrize("buffered", [False, True])
def test_a_doubled_message_is_not_taken_for_that_of_the_next_collective(buffered):
    for name in "ring", "recursive_doubling":
        run = run_of(schedule("allreduce", name, 4), buffered, calls=2)
        found = judged(run, lambda harm: harm.kind in (DOUBLE, LOSE))
        assert set(found) == {(DOUBLE, NAMED), (LOSE, NAMED)}


def test_without_harm_nothing_is_named():
    run = run_of(schedule("allreduce", "ring", 3), False)
    assert describe_run(run, Harm(FLIP, (0, 1, 0), 99)) == HARMLESS


def test_without_checksums_results_are_wrong():
    """So the harm is real, and a checksum that believes anything would be found out."""
    found = judged(run_of(schedule("allreduce", "ring", 4), True, checked=False))
    assert found[FLIP, WRONG] > 300 and found[DOUBLE, WRONG] and found[SWAP, WRONG]
    assert not found[FLIP, NAMED]


def test_a_network_that_does_no_harm_has_no_verdict():
    made = schedule("allreduce", "ring", 2)
    run = Run(made, Problem(made.collective, 2, [2]), Network(2))
    with pytest.raises(TypeError, match="faults"):
        describe_run(run, Harm(LOSE, (0, 1, 0), 1))
    with pytest.raises(TypeError, match="faults"):
        list(harms_of(run))
