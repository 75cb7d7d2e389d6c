"""Programs as they are written: what the text says happens, and what it forbids."""

from random import Random

import pytest

from hpccoll.algorithms import schedule
from hpccoll.ir.collectives import IN, OUT, TMP, block_counts
from hpccoll.ir.in_network import in_network
from hpccoll.ir.schedule import LEFT, Program, at, copy, recv, send
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
