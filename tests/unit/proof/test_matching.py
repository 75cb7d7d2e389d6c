"""Proofs of messages and memory: matching, rules, symbols, cases."""

from dataclasses import replace
from pathlib import Path

import pytest

from hpccoll.algorithms import ALGORITHMS, schedule
from hpccoll.algorithms.outside import load
from hpccoll.errors import HpccollError, ProofError
from hpccoll.ir.collectives import ALLREDUCE, IN, OUT, TMP
from hpccoll.ir.extents import Extent, Local, LoweredProgram, Phase, Segment
from hpccoll.ir.schedule import Program, at, copy, recv, reduce, send
from hpccoll.proof.cases import BlockSizes, cases, lower_all, most_scratch_blocks
from hpccoll.proof.verifier import prove_segments, verify
from hpccoll.testing.model_check import Network, Run, wander
from hpccoll.testing.world import Problem
from support.folded import folded

# Lanes and single dependencies: what the proof accepts, and every slip it must find
LANES = str(Path(__file__).resolve().parents[3] / "examples" / "lanes.py")
TWO_WAYS, PIPELINE = load(f"{LANES}:TWO_WAYS"), load(f"{LANES}:PIPELINE")


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_lanes_are_proved_and_their_closed_forms_too(size):
    assert verify(schedule("allreduce", TWO_WAYS, size)).replicas_identical
    verify(schedule("bcast", PIPELINE, size))


def test_one_after_the_other_the_chain_takes_longer():
    made = schedule("bcast", PIPELINE, 5)
    serial = replace(made, rounds=None,
                     build=lambda rank: made.program(rank)._replace(after=()))
    assert (verify(made).rounds, verify(serial).rounds) == (6, 12)


def without(made, rank, number):
    """The same schedule, but one round of one rank waits for nothing."""
    def build(each):
        program = made.program(each)
        after = tuple(() if (each, n) == (rank, number) else numbers
                      for n, numbers in enumerate(program.after))
        return program._replace(after=after)
    return replace(made, build=build, rounds=None)


@pytest.mark.parametrize(("collective", "entry", "wrong", "right"), [
    ("allreduce", TWO_WAYS, 6, 18), ("bcast", PIPELINE, 3, 0)])
def test_without_any_single_wait_it_is_refused_or_right_anyway(collective, entry, wrong, right):
    # Rounds of a ring that send to the same rank wait for each other in any case.
    made = schedule(collective, entry, 3)
    refused = accepted = 0
    for rank in range(3):
        for number, numbers in enumerate(made.program(rank).after):
            if not numbers:
                continue
            slip = without(made, rank, number)
            try:
                verify(slip)
            except ProofError as error:
                assert (error.rank, "without waiting" in str(error)) == (rank, True)
                refused += 1
            else:
                problem = Problem(made.collective, 3, [made.nblocks], 0, "sum", "i8")
                assert not wander(Run(slip, problem, Network(3)), number)
                accepted += 1
    assert (refused, accepted) == (wrong, right)


def test_lanes_that_write_what_another_one_names():
    def build(rank, size):
        other = 1 - rank
        return Program(((copy(at(OUT, 0), at(IN, 0)), copy(at(TMP, 1), at(IN, 0))),
                        (send(other, at(OUT, 0)), recv(other, at(TMP, 0))),
                        (reduce(at(OUT, 0), at(TMP, 0)),)), (0, 0), after[rank])
    after = [((), (0,), (1,)), ((), (0,), (0,))]
    with pytest.raises(ProofError, match="memory.*round 1") as info:
        verify(schedule("allreduce", build, 2))
    assert (info.value.rank, info.value.round) == (1, 2)
    after[1] = ((), (0,), (1,))
    assert verify(schedule("allreduce", build, 2), ALLREDUCE).rounds == 1


def test_in_place_lanes_share_what_input_and_output_share():
    # Rank 1 sends in[0] in one lane, and another one takes its result, which may lie there.
    def build(rank, size):
        other = 1 - rank
        return Program(((copy(at(TMP, 1), at(IN, rank)),),
                        (send(other, at(IN, other)), recv(other, at(TMP, 0))),
                        (copy(at(OUT, 0), at(TMP, 1)),), (reduce(at(OUT, 0), at(TMP, 0)),)),
                       (rank, rank), ((), (), last, (1, 2)))
    last = (0,)
    with pytest.raises(ProofError, match="memory.*round 1") as caught:
        verify(schedule("reduce_scatter", build, 2))
    assert (caught.value.rank, caught.value.round) == (1, 2)
    last = (0, 1)
    verify(schedule("reduce_scatter", build, 2))


def test_lanes_that_wait_for_each_other_across_ranks():
    def build(rank, size):
        first, second = (send(1 - rank), recv(1 - rank)) if rank else (recv(1 - rank),
                                                                       send(1 - rank))
        return Program(((first,), (second,)), (), ((), (0,)))
    swapped = schedule("barrier", lambda rank, size: build(0, size)._replace(rounds=tuple(
        tuple(step._replace(peer=1 - rank) for step in steps)
        for steps in build(0, size).rounds)), 2)
    with pytest.raises(ProofError, match="synchronous") as caught:
        verify(swapped)
    assert caught.value.round == 0
    verify(schedule("barrier", build, 2))


def test_a_barrier_knows_only_what_its_lanes_have_waited_for():
    # Rank 1 tells rank 2 before it has heard of rank 0.
    def build(rank, size):
        rounds = {0: ((send(1),), (recv(1),)), 2: ((recv(1),), (send(1),)),
                  1: ((recv(0),), (send(2),), (recv(2),), (send(0),))}[rank]
        after = {0: ((), (0,)), 2: ((), (0,)), 1: ((), first, (1,), (0, 2))}[rank]
        return Program(rounds, (), after)
    first = (0,)
    verify(schedule("barrier", build, 3))
    first = ()
    with pytest.raises(ProofError, match=r"barrier.*ranks \[0\]") as info:
        verify(schedule("barrier", build, 3))
    assert info.value.rank == 2


# Memory rules: what messages of a round, and segments, may share
def proved(collective, size, *programs, scratch=(), **options):
    """Prove hand-made programs: a list of rounds for each rank."""
    def mine(rank, size, root=0):
        return Program(tuple(map(tuple, programs[rank])), scratch)
    return verify(schedule(collective, mine, size), **options)


def refused(complaint, collective, size, *programs, scratch=(), **options):
    with pytest.raises(ProofError, match=complaint) as caught:
        proved(collective, size, *programs, scratch=scratch, **options)
    assert f"{collective} mine size={size}" in str(caught.value)
    return caught.value


TAKE = copy(at(OUT, 0), at(IN, 0))


def test_two_receives_into_one_place():
    error = refused(r"'recv 1 out\[0\]'.*same round", "bcast", 3,
                    [[recv(1, at(OUT, 0)), recv(2, at(OUT, 0))]], [[]], [[]])
    assert (error.rank, error.round) == (0, 0)


def test_a_receive_into_what_is_being_sent():
    refused("same round", "allreduce", 2, *(
        [[TAKE, reduce(at(OUT, 0), at(IN, 0))], [send(1 - r, at(OUT, 0)), recv(1 - r, at(OUT, 0))]]
        for r in (0, 1)))


def test_two_sends_from_one_place_are_fine():
    proved("bcast", 3, [[send(1, at(OUT, 0)), send(2, at(OUT, 0))]],
           *([[recv(0, at(OUT, 0))]] for _ in (1, 2)))


def segments_of(*phases, scratch=0, landing=0):
    return [Segment(LoweredProgram(tuple(Phase(*phase) for phase in phases), scratch, landing), 0)]


def test_two_segments_in_one_place():
    made = schedule("allreduce", "linear", 1)
    case = BlockSizes(lambda key: 2, 1)
    one = segments_of(((), (), (Local(Extent(OUT, 0, 1), Extent(IN, 0, 1)),)))
    other = segments_of(((), (), (Local(Extent(OUT, 0, 2), Extent(IN, 0, 2)),)))
    with pytest.raises(ProofError, match="segments"):
        prove_segments(made, ALLREDUCE, case, [one + other])


def test_overwriting_a_part_of_what_is_read():
    made = schedule("allreduce", "linear", 1)
    shift = segments_of(((), (), (Local(Extent(OUT, 0, 2), Extent(OUT, 1, 2)),)))
    with pytest.raises(ProofError, match="overwrites"):
        prove_segments(made, ALLREDUCE, BlockSizes(lambda key: 3, 1), [shift])


# Cases: the samples of block sizes
def test_samples_cover_the_hard_sizes():
    ring = schedule("allreduce", "ring", 4)
    made = list(cases(ring, ring.collective))
    totals = {sum(map(c.size_of, range(c.keys))) for c in made}
    assert {4, 6, 9, 10} <= totals
    sizes = [[c.size_of(key) for key in range(4)] for c in made]
    assert any(len(set(each)) == 4 and all(each) for each in sizes), "all different"
    assert any(0 in each[1:-1] for each in sizes), "some empty in between"
    assert any(c.segment for c in made)
    for case in made:
        if case.in_place:
            assert sum(map(case.size_of, range(case.keys))), "in place is not vacuous"
    assert sum(case.in_place for case in made) == 2
    assert len(list(cases(schedule("allreduce", "linear", 200), ALLREDUCE))) == 1


@pytest.mark.slow
@folded("collective", [name for name in ALGORITHMS if name != "barrier"])
def test_no_rank_needs_more_scratch_than_counted(collective):
    """Also for uneven blocks, in place or not; and never more than four blocks for every rank."""
    for algorithm in ALGORITHMS[collective]:
        for size in (2, 3, 4, 8):
            try:
                made = schedule(collective, algorithm, size)
            except HpccollError:  # not for this number of ranks
                continue
            most, cut = most_scratch_blocks(made), 5
            assert most <= 4 * size
            sizes = [lambda key: 13] if made.uniform else [lambda key: 13, lambda key: 13 - key % 3]
            for size_of in sizes:
                for in_place in {False, bool(made.collective.in_place)}:
                    case = BlockSizes(size_of, 3, in_place, cut)
                    assert all(each.program.scratch <= most * cut for rank in range(size)
                               for each in lower_all(made, made.collective, rank, case))
