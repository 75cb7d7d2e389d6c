"""Programs as they are written: what the text says happens, and what it forbids."""

from random import Random

import pytest

from hpccoll.algorithms import schedule
from hpccoll.ir.collectives import IN, OUT, TMP, block_counts
from hpccoll.ir.in_network import in_network
from hpccoll.ir.schedule import LEFT, RIGHT, Program, at, copy, recv, reduce, send
from hpccoll.ir.wellformed import keys_of, program_of
from hpccoll.proof.verifier import verify
from hpccoll.testing import every
from support.extra_schedules import extra_schedules
from support.reference import run

TAKE = copy(at(OUT, 0), at(IN, 0))


def ran(collective, *programs, sizes=(2,), scratch=(), in_place=False, nblocks=1):
    def mine(rank, size, root=0):
        return Program(tuple(map(tuple, programs[rank])), scratch)
    made = schedule(collective, mine, len(programs), nblocks=nblocks)
    held = [program_of(made, rank) for rank in range(len(programs))]
    return run(made, held, list(sizes), in_place, Random(1))


def swap(peer, side):
    return [[TAKE], [send(peer, at(OUT, 0)), recv(peer, at(OUT, 0), reduce=side)]]


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_the_table_is_right_as_written(size):
    draw = Random(size)
    for _, made in every(size, None if size < 4 else range(1, 2)):
        programs = [program_of(made, rank) for rank in range(size)]
        keys, proof = keys_of(made), verify(made)
        sizes = ([draw.randrange(1, 4)] * keys if made.uniform else
                 block_counts(draw.randrange(1, 3 * keys + 1), keys)
                 if made.collective.payload == "vector" else
                 [draw.choice((0, 1, 2)) for _ in range(keys)])
        for in_place in (False, True) if made.collective.in_place else (False,):
            found = run(made, programs, sizes, in_place, draw)
            assert found.right, (made.title, sizes, found.why)
            assert found.rank_order or not proof.rank_order, made.title
            assert found.identical or not proof.replicas_identical, made.title


def test_sides_and_order():
    assert ran("allreduce", swap(1, RIGHT), swap(0, LEFT)) == (True, True, True, "")
    assert ran("allreduce", swap(1, LEFT), swap(0, LEFT))[:3] == (True, False, True)


def test_grouping_shows():
    early = [[TAKE], [send(1, at(OUT, 0)), recv(1, at(TMP, 0)), recv(2, at(TMP, 1)),
                      send(2, at(OUT, 0)), reduce(at(TMP, 0), at(OUT, 0)),
                      reduce(at(TMP, 1), at(TMP, 0)), copy(at(OUT, 0), at(TMP, 1))]]
    late = [[TAKE], [recv(0, at(TMP, 0)), send(0, at(OUT, 0)), send(2, at(OUT, 0)),
                     recv(2, at(TMP, 1)), reduce(at(OUT, 0), at(TMP, 1), RIGHT),
                     reduce(at(OUT, 0), at(TMP, 0))]]
    third = [[TAKE], [send(0, at(OUT, 0)), recv(1, at(TMP, 1)), recv(0, at(TMP, 0)),
                      send(1, at(OUT, 0)), reduce(at(TMP, 1), at(TMP, 0)),
                      reduce(at(OUT, 0), at(TMP, 1))]]
    found = ran("allreduce", early, late, third, scratch=(0, 0))
    assert found.right and found.rank_order and not found.identical


@pytest.mark.parametrize("steps, why", [
    ([send(1, at(OUT, 0)), recv(1, at(OUT, 0))], "meets another message"),
    ([recv(1, at(OUT, 0), reduce=LEFT), recv(1, at(OUT, 0))], "meets another message"),
    ([recv(1, at(OUT, 0), at(OUT, 0))], "names memory twice"),
    ([recv(1, at(OUT, 0), at(OUT, 0), reduce=LEFT)], "names memory twice")])
def test_memory_of_one_round(steps, why):
    assert why in ran("allreduce", [[TAKE], steps], [[TAKE]]).why


def test_a_receive_may_be_added_to():
    pieces = [[recv(1, at(OUT, 0)), recv(1, at(OUT, 0), reduce=LEFT)]]
    assert ran("reduce", pieces, [[send(0, at(IN, 0)), send(0, at(IN, 0))]]).why.endswith("wrong")
    both = [[recv(1, at(OUT, 0)), recv(2, at(OUT, 0), reduce=LEFT)],
            [reduce(at(OUT, 0), at(IN, 0))]]
    assert ran("reduce", both, [[send(0, at(IN, 0))]], [[send(0, at(IN, 0))]]).right


def test_sends_carry_what_was_there_before():
    late = [[TAKE], [send(1, at(OUT, 0)), recv(1, at(OUT, 0), reduce=LEFT)]]
    assert ran("allreduce", late, swap(0, LEFT)).right


def test_sizes():
    def other(rank):
        return [[copy(at(OUT, 0), at(IN, 1)), copy(at(OUT, 1), at(IN, 0))]]
    assert "sides of different sizes" in ran("allreduce", other(0), sizes=(1, 2), nblocks=2).why
    give = [[send(1, at(IN, 0))]], [[recv(0, at(TMP, 0))]]
    assert "of another size" in ran("allreduce", *give, sizes=(1, 2), nblocks=2, scratch=(1,)).why


def test_overlapping_sides():
    shift = [[copy(at(TMP, 0, 3), at(IN, 0, 3)), copy(at(TMP, 0, 2), at(TMP, 1, 3))]]
    assert "overwrites a part" in ran("allreduce", shift, sizes=(1, 1, 1), nblocks=3,
                                      scratch=(0, 1, 2)).why


def test_deadlock_needs_no_buffering_to_show():
    stuck = ([[TAKE], [send(1 - r, at(OUT, 0))], [recv(1 - r, at(OUT, 0), reduce=LEFT)]]
             for r in (0, 1))
    assert ran("allreduce", *stuck).why == "deadlock"


def test_barriers_hold_everybody():
    assert ran("barrier", [[send(1), recv(1)]], [[send(0), recv(0)]], sizes=()).right
    assert "leaves before" in ran("barrier", [[send(1)]], [[recv(0)]], sizes=()).why
    apart = ran("barrier", [[send(1)], [recv(1)]], [[recv(0)], [send(0)]], sizes=())
    assert apart.right


def test_output_that_nobody_wants():
    found = ran("exscan", [[TAKE, send(1, at(IN, 0))]], [[recv(0, at(OUT, 0))]])
    assert "must be left alone" in found.why


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_lanes_and_operations_of_the_network_are_right_as_written(size):
    draw = Random(size)
    for made in extra_schedules(size):
        programs = [program_of(made, rank) for rank in range(size)]
        keys, proof = keys_of(made), verify(made)
        for in_place in (False, True) if made.collective.in_place else (False,):
            for _ in range(8):
                sizes = [3] * keys if made.uniform else [draw.randrange(3) for _ in range(keys)]
                if made.collective.payload == "vector":
                    sizes = block_counts(sum(sizes), keys)
                found = run(made, programs, sizes, in_place, draw)
                assert found.right, (made.title, sizes, found.why)
                assert found.rank_order or not proof.rank_order, made.title
                assert found.identical or not proof.replicas_identical, made.title


def late(after, first=(), second=()):
    """Rank 0 sends what it receives in an earlier round, if it waits for that."""
    here = Program(((copy(at(OUT, 0), at(IN, 0)),), (recv(1, at(OUT, 0), reduce=LEFT), *first),
                    (send(1, at(OUT, 0)), *second)), (), after)
    there = Program(((send(0, at(IN, 0)),), (recv(0, at(OUT, 0)),)))
    made = schedule("allreduce", lambda rank, size: (here, there)[rank], 2)
    return run(made, [program_of(made, rank) for rank in range(2)], [2], False, Random(1))


def test_rounds_wait_for_those_that_they_name_and_no_others():
    assert late(((), (0,), (1,))).right
    assert late(((), (0,), (0,))).why.endswith("rounds 1 and 2 share memory")
    assert late(((), (), (0, 1))).why.endswith("rounds 0 and 1 share memory")
    # Rank 1 takes turns; rank 0 may receive before or after it sends, if it does not wait.
    turns = Program(((send(1),), (recv(1),)), (), ((), ()))
    for after, right in ((((), ()), True), ((), False)):
        made = schedule("barrier", lambda rank, size, after=after: (
            turns._replace(after=after) if rank == 0 else
            Program(((send(0),), (recv(0),)))), 2)
        found = run(made, [program_of(made, rank) for rank in range(2)], [], False, Random(1))
        assert found.right is right, found


def test_the_network_waits_for_all_its_ends_and_reduces_in_any_order():
    both = in_network(range(3), range(3))
    give, get = send(both, at(OUT, 0)), recv(both, at(OUT, 0))
    good = [[TAKE], [give, get]]
    seen = {ran("allreduce", good, good, good, sizes=(2,))[:2] for _ in range(1)}
    assert seen <= {(True, False), (True, True)}
    assert not ran("allreduce", good, good, good, sizes=(9,)).rank_order
    assert ran("allreduce", good, good, [[TAKE], [give]]).why == "deadlock"
    assert "meets another message" in ran(
        "allreduce", [[TAKE], [give, recv(both, at(OUT, 0)), recv(1, at(OUT, 0))]], good, good).why
    other = [[TAKE], [give, recv(both, at(TMP, 0))]]
    assert ran("allreduce", good, good, other, scratch=(0,)).why.endswith("block 0 is wrong")
