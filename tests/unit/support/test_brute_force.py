"""The yardstick of proofs: what it says of programs whose faults are known."""

import pytest

from hpccoll.algorithms import schedule
from hpccoll.ir.collectives import IN, OUT, TMP
from hpccoll.ir.extents import Extent, Local, LoweredProgram, Message, Phase, Segment
from hpccoll.proof.cases import lower_all
from support.brute_force import BruteForce
from support.mutate import chosen


def truth(collective, name, size, programs, case=0, **options):
    made = schedule(collective, name, size, **options)
    case = chosen(made)[case]
    lowered = [lower_all(made, made.collective, rank, case) for rank in range(size)]
    assert BruteForce(made, case).verdict(lowered).right
    return BruteForce(made, case).verdict(
        [programs.get(rank, lowered[rank]) for rank in range(size)])


def segment(*phases, scratch=0, landing=0):
    return [Segment(LoweredProgram(tuple(Phase(*phase) for phase in phases), scratch, landing), 0)]


TAKE = Local(Extent(OUT, 0, 1), Extent(IN, 0, 1))


@pytest.mark.parametrize("program, why", [
    (segment(((), (Message("recv", 2, Extent(OUT, 0, 1)),), ())), "2 is no other rank"),
    (segment(((), (Message("recv", 1, Extent(OUT, 0, 1)),), ())), "1 is no other rank"),
    (segment(((), (Message("recv", 0, Extent(OUT, 1, 1)),), ())), "out<1+1> does not exist"),
    (segment(((), (Message("recv", 0, Extent(IN, 0, 1)),), ())), "in<0+1> does not exist"),
    (segment(((), (Message("recv", 0, Extent(TMP, -1, 1)),), ()), scratch=2), "does not exist"),
    (segment(((), (Message("recv", 0, Extent(OUT, 0, 1)),
                   Message("send", 0, Extent(OUT, 0, 1))), ())),
     "two messages of a round use the same memory"),
    (segment(((Local(Extent(OUT, 0, 1), Extent(TMP, 0, 2)),), (), ()), scratch=2),
     "operands of different sizes"),
    (segment(((Local(Extent(TMP, 0, 2), Extent(TMP, 1, 2)),), (), ()), scratch=3),
     "overwrites a part of what it reads"),
    (segment(((Local(Extent(TMP, 0, 2), Extent(TMP, 2, 2)),), (), ()), scratch=3),
     "uses memory that does not exist"),
    (segment(((), (Message("recv", 0, Extent(TMP, 0, 1)),), ()), scratch=1, landing=1),
     "1 of 1 elements of block 0 are wrong"),
    (segment(), "stalled"),
    (segment(((), (Message("recv", 0, Extent(OUT, 0, 0)),), ())), "8 bytes"),
])
def test_what_is_wrong_and_why(program, why):
    verdict = truth("bcast", "linear", 2, {1: program})
    assert not verdict.right and why in verdict.why


def test_two_segments_may_not_meet():
    program = segment(((), (), (TAKE,))) * 2
    assert truth("allreduce", "linear", 1, {0: program}).why == (
        "rank 0: two segments use the same memory")


def test_barriers_hold_everybody_back():
    send, recv = (Message(kind, 1, Extent(TMP, 0, 0)) for kind in ("send", "recv"))
    early = truth("barrier", "linear", 2, {
        0: segment(((), (send,), ())), 1: segment(((), (recv._replace(peer=0),), ()))})
    assert early.why == "rank 0 leaves the barrier before rank 1 enters it"


def test_order_and_grouping_are_told_apart():
    assert truth("allreduce", "recursive_doubling", 4, {}) == (True, True, True, "")
    assert truth("allreduce", "ring", 3, {}) == (True, False, True, "")
    assert truth("allreduce", "census", 5, {})[:3] == (True, False, False)


def test_what_lands_is_gone_in_the_next_phase():
    receive = (), (Message("recv", 0, Extent(TMP, 0, 1)),), ()
    late = (), (), (Local(Extent(OUT, 0, 1), Extent(TMP, 0, 1)),)
    assert truth("bcast", "linear", 2, {1: segment(receive, late, scratch=1, landing=1)}).right
    assert not truth("bcast", "linear", 2, {1: segment(receive, late, scratch=1)}).right
