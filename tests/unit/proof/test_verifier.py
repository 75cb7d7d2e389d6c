"""The proof: what it accepts, and what it says about schedules that are wrong by hand."""

import itertools
import subprocess
import sys
import time

import pytest

from hpccoll.algorithms import Algorithm, schedule
from hpccoll.errors import ProofError
from hpccoll.ir.collectives import ALLREDUCE, COLLECTIVES, IN, OUT, TMP
from hpccoll.ir.extents import Extent, Local, LoweredProgram, Message, Phase, Segment
from hpccoll.ir.schedule import LEFT, RIGHT, Program, at, copy, recv, reduce, send
from hpccoll.proof import verifier
from hpccoll.proof.cases import BlockSizes, lower_all
from hpccoll.proof.verifier import programs_of, prove, prove_segments, verify
from hpccoll.testing import every

ONE = BlockSizes(lambda key: 1, 1)


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


def swap(peer, side):
    """Exchange with one partner, the textbook allreduce of two ranks."""
    return [[TAKE], [send(peer, at(OUT, 0)), recv(peer, at(OUT, 0), reduce=side)]]


def test_the_textbook_is_right():
    proof = proved("allreduce", 2, swap(1, RIGHT), swap(0, LEFT))
    assert proof == (True, True, 1, 1, 1, ())


def test_rank_order_is_seen_and_demanded():
    assert not proved("allreduce", 2, swap(1, LEFT), swap(0, LEFT)).rank_order
    with pytest.raises(ProofError, match="order"):
        proved("allreduce", 2, swap(1, LEFT), swap(0, LEFT), commutative=False)


def test_operands_may_be_swapped_where_replicas_are_compared():
    assert proved("allreduce", 2, swap(1, LEFT), swap(0, LEFT)).replicas_identical


def test_different_association_is_seen():
    # Rank 0 adds 1 and then 2, rank 2 adds 1 to 2 first: not the same bits in floating point.
    both = [[TAKE], [send(1, at(OUT, 0)), send(2, at(OUT, 0)), recv(1, at(TMP, 0)),
                     recv(2, at(TMP, 1))], [reduce(at(OUT, 0), at(TMP, 0), RIGHT)],
            [reduce(at(OUT, 0), at(TMP, 1), RIGHT)]]
    middle = [[TAKE], [send(0, at(OUT, 0)), send(2, at(OUT, 0)), recv(0, at(TMP, 0)),
                       recv(2, at(TMP, 1))], [reduce(at(OUT, 0), at(TMP, 0), LEFT)],
              [reduce(at(OUT, 0), at(TMP, 1), RIGHT)]]
    last = [[TAKE], [send(0, at(OUT, 0)), send(1, at(OUT, 0)), recv(0, at(TMP, 0)),
                     recv(1, at(TMP, 1))], [reduce(at(OUT, 0), at(TMP, 1), LEFT)],
            [reduce(at(OUT, 0), at(TMP, 0), LEFT)]]
    proof = proved("allreduce", 3, both, middle, last, scratch=(0, 0))
    assert proof.rank_order and not proof.replicas_identical


def test_a_contribution_taken_twice():
    error = refused(r"out\[0\] \(block 0, element 0\).*rank 1's block 0, rank 0's block 0, "
                    r"rank 0's block 0 .*ranks \[0, 1\]",
                    "allreduce", 2, [*swap(1, LEFT), [reduce(at(OUT, 0), at(IN, 0), RIGHT)]],
                    swap(0, LEFT))
    assert (error.rank, error.round) == (0, None)


def test_a_contribution_that_is_missing():
    error = refused(r"out\[0\] \(block 0, element 0\).*rank 0's block 0 instead",
                    "allreduce", 2, [[TAKE], [send(1, at(OUT, 0)), recv(1, at(TMP, 0))]],
                    swap(0, LEFT), scratch=(0,))
    assert error.rank == 0


def test_a_block_in_the_wrong_place():
    def build(rank, size):
        return Program(((copy(at(OUT, 1 - rank), at(IN, 0)),),
                        (send(1 - rank, at(OUT, 1 - rank)), recv(1 - rank, at(OUT, rank)))))
    with pytest.raises(ProofError, match="sizes.*block 0.*block 1"):
        verify(schedule("allgather", build, 2))
    made = schedule("allgather", build, 2)
    with pytest.raises(ProofError, match=r"rank \d's block \d instead"):
        prove(made, made.collective, ONE._replace(keys=2))


def test_a_result_that_is_never_written():
    refused(r"out\[0\] \(block 0, element 0\).*never written", "allreduce", 2,
            [[send(1, at(IN, 0))]], [[recv(0, at(OUT, 0))], [reduce(at(OUT, 0), at(IN, 0))]])


def test_scratch_nobody_filled_spoils_the_result():
    refused("never written", "allreduce", 1, [[TAKE, reduce(at(OUT, 0), at(TMP, 0))]],
            scratch=(0,))


def test_deadlock_of_two_who_send_first():
    error = refused("deadlock.*rank 1 never receives this message; ranks 0-1 wait",
                    "allreduce", 2, *(
                        [[TAKE], [send(1 - r, at(OUT, 0))],
                         [recv(1 - r, at(OUT, 0), reduce=LEFT)]] for r in (0, 1)))
    assert (error.rank, error.round, error.step) == (0, 1, "send 1 out[0]")


def test_a_message_nobody_receives():
    error = refused("deadlock", "allreduce", 2, [*swap(1, LEFT), [send(1, at(OUT, 0))]],
                    swap(0, LEFT))
    assert (error.rank, error.round, error.step) == (0, 2, "send 1 out[0]")


def test_messages_of_different_sizes():
    def build(rank, size):
        spans = at(OUT, 0, 2 - rank)
        return Program(((copy(at(OUT, 0, 2), at(IN, 0, 2)),),
                        (send(1 - rank, spans), recv(1 - rank, at(OUT, 0, 2), reduce=LEFT))))
    with pytest.raises(ProofError, match=r"'send 0 \S+'.*rank 1") as info:
        verify(schedule("allreduce", build, 2, nblocks=2))
    assert info.value.rank == 0


@pytest.mark.parametrize("steps, complaint", [
    ([recv(1, at(IN, 0))], r"in\[0\].*read-only"),
    ([copy(at(OUT, 1), at(IN, 0))], r"out\[1\].*1 slots"),
    ([copy(at(TMP, 0), at(IN, 0))], r"tmp\[0\].*0 slots"),
    ([send(0, at(IN, 0))], "0 .*another rank"),
    ([send(2, at(IN, 0))], "2 .*another rank"),
    ([send(-1, at(IN, 0))], "-1 .*another rank")])
def test_memory_and_ranks_that_do_not_exist(steps, complaint):
    assert refused(complaint, "allreduce", 2, [steps], [[TAKE]]).rank == 0


def test_output_nobody_asked_for():
    # Rank 0 of an exscan has a receive buffer that must be left alone.
    refused("output.*written", "exscan", 2,
            [[TAKE, send(1, at(IN, 0))]], [[recv(0, at(OUT, 0))]])


def test_a_copy_between_blocks_of_different_sizes():
    def build(rank, size):
        return Program(((copy(at(OUT, 0), at(IN, 1)), copy(at(OUT, 1), at(IN, 0))),))
    with pytest.raises(ProofError, match="operands.*block 1.*block 0"):
        verify(schedule("allreduce", build, 1, nblocks=2))
    with pytest.raises(ProofError, match="operands"):
        prove(schedule("allreduce", build, 1, nblocks=2), ALLREDUCE, BlockSizes(lambda key: key, 2))


def test_in_place_memory_that_is_saved_too_late():
    # Not in place this is right; in place out[0] is the start of the input.
    def build(rank, size):
        other = 1 - rank
        return Program(((copy(at(OUT, 0), at(IN, rank)),),
                        (send(other, at(IN, other)), recv(other, at(OUT, 0), reduce=LEFT))))
    made = schedule("reduce_scatter", build, 2)
    prove(made, made.collective, BlockSizes(lambda key: 1, 2))
    with pytest.raises(ProofError, match="instead") as caught:
        prove(made, made.collective, BlockSizes(lambda key: 1, 2, True))
    assert caught.value.rank == 0  # rank 1 has sent it its own block


def test_a_barrier_somebody_may_leave_early():
    refused(r"barrier.*ranks \[1\]", "barrier", 2,
            [[send(1)]], [[recv(0)]])
    proved("barrier", 2, [[send(1), recv(1)]], [[send(0), recv(0)]])


def test_knowledge_travels_with_messages_sent_later():
    # 2 hears of 0 by way of 1 only if 1 waits for 0 before it sends.
    early = [[recv(1), send(1)]], [[send(0), recv(0), send(2), recv(2)]], [[recv(1), send(1)]]
    refused("barrier", "barrier", 3, *early)
    proved("barrier", 3, [[send(1)], [recv(1)]], [[recv(0), recv(2)], [send(0), send(2)]],
           [[send(1)], [recv(1)]])


@pytest.mark.parametrize("rounds, sent, complaint", [
    (2, 1, "1 rounds.*2"),
    (1, 3, "1 blocks.*3")])
def test_closed_forms_are_checked(rounds, sent, complaint):
    entry = Algorithm(lambda rank, size: Program(tuple(map(tuple, swap(1 - rank, LEFT)))),
                      rounds=lambda p: rounds, sent=lambda p: sent)
    with pytest.raises(ProofError, match=complaint):
        verify(schedule("allreduce", entry, 2))


def test_another_collective_can_be_asked_for():
    ring = schedule("allreduce", "recursive_doubling", 3)
    verify(ring, ALLREDUCE)
    with pytest.raises(ProofError):
        verify(ring, COLLECTIVES["scan"])


def segments_of(*phases, scratch=0, landing=0):
    return [Segment(LoweredProgram(tuple(Phase(*phase) for phase in phases), scratch, landing), 0)]


@pytest.mark.parametrize("case", [ONE, ONE._replace(in_place=True)])
def test_input_that_is_overwritten(case):
    # The root of a scatter keeps its send buffer, in place or not.
    made = schedule("scatter", "linear", 2)
    programs = [lower_all(made, made.collective, rank, case._replace(keys=2)) for rank in (0, 1)]
    phase = Phase((), (), (Local(Extent(IN, 1, 1), Extent(IN, 0, 1)),))
    segment = programs[0][0]
    phases = (*segment.program.phases, phase)
    spoiled = segment._replace(program=segment.program._replace(phases=phases))
    prove_segments(made, made.collective, case._replace(keys=2), programs)
    with pytest.raises(ProofError, match="overwritten"):
        prove_segments(made, made.collective, case._replace(keys=2), [[spoiled], programs[1]])


def test_what_lands_is_gone_after_the_phase():
    made = schedule("bcast", "linear", 2)
    root = segments_of(((), (Message("send", 1, Extent(OUT, 0, 1)),), ()))
    late = segments_of(((), (Message("recv", 0, Extent(TMP, 0, 1)),), ()),
                    ((), (), (Local(Extent(OUT, 0, 1), Extent(TMP, 0, 1)),)), scratch=1)
    with pytest.raises(ProofError, match="never written"):
        prove_segments(made, made.collective, ONE, [root, late])
    kept = [segment._replace(program=segment.program._replace(landing=1)) for segment in late]
    prove_segments(made, made.collective, ONE, [root, kept])


@pytest.mark.parametrize("size", range(1, 6))
def test_every_algorithm_keeps_its_promises(size):
    for entry, made in every(size, None if size < 5 else range(3, 4)):
        proof = verify(made, commutative=not entry.rank_order)
        if made.collective.name == "allreduce" and not entry.exact_only:
            assert proof.replicas_identical, made.title


# Builders that may not return
def alone(rank, size):
    return Program(((copy(at(OUT, 0), at(IN, 0)),),))


def test_programs_of_all_ranks():
    made = schedule("allreduce", "ring", 4)
    assert programs_of(made) == [made.program(rank) for rank in range(4)]


@pytest.mark.parametrize("loop", [
    lambda: [None for _ in itertools.count() if False],
    lambda: next(each for each in itertools.count() if each < 0)])
def test_a_builder_that_never_returns(monkeypatch, loop):
    monkeypatch.setattr(verifier, "MOST_SECONDS", 0.2)

    def build(rank, size):
        return alone(rank, size) if rank == 0 else loop()

    start = time.monotonic()
    with pytest.raises(ProofError, match="builder.*0.2") as caught:
        verify(schedule("allreduce", build, 2))
    assert caught.value.rank == 1 and time.monotonic() - start < 30


@pytest.mark.slow
def test_a_builder_that_catches_everything_is_told_again(monkeypatch):
    monkeypatch.setattr(verifier, "MOST_SECONDS", 0.2)
    caught = []

    def build(rank, size):
        while len(caught) < 2:
            try:
                while True:
                    pass
            except BaseException as error:
                caught.append(error)
        return alone(rank, size)

    assert programs_of(schedule("allreduce", build, 1)) == [alone(0, 1)]
    assert len(caught) == 2


def test_the_process_is_as_before_afterwards():
    """An exception taken back by a null pointer hangs every profiler of CPython 3.11 for ever."""
    subprocess.run([sys.executable, "-c", """
import cProfile, itertools
from hpccoll.algorithms import schedule
from hpccoll.errors import ProofError
from hpccoll.proof import verifier
from hpccoll.proof.verifier import verify
verifier.MOST_SECONDS = 0.1
try:
    verify(schedule("allreduce", lambda rank, size: [0 for _ in itertools.count() if False], 1))
except ProofError:
    cProfile.run("sum(range(1000))")
"""], check=True, timeout=30, stdout=subprocess.DEVNULL)


def test_each_rank_has_its_own_time(monkeypatch):
    monkeypatch.setattr(verifier, "MOST_SECONDS", 0.5)

    def slow(rank, size):
        time.sleep(0.2)
        return alone(rank, size)

    assert len(programs_of(schedule("allreduce", slow, 4))) == 4


def test_nothing_is_left_behind(monkeypatch):
    import threading
    before = threading.active_count()
    programs_of(schedule("allreduce", "ring", 4))
    with pytest.raises(ProofError):
        programs_of(schedule("allreduce", lambda rank, size: 1 // 0, 4))
    assert threading.active_count() == before
