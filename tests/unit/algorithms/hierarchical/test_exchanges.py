"""Flat algorithms between the groups of a level."""

import pytest

from hpccoll.algorithms.hierarchical.composition import inside, levels
from hpccoll.algorithms.hierarchical.exchanges import (
    ALLGATHER,
    BCAST,
    REDUCE_SCATTER,
    backwards,
    exchange,
    on_vector,
    run_among_leaders,
)
from hpccoll.errors import ScheduleError
from hpccoll.ir.collectives import IN, OUT
from hpccoll.ir.passes import Piece
from hpccoll.ir.schedule import RECV, SEND, Program, at
from hpccoll.ir.topology import Topology

PAIRS = Topology.parse("3x2")


def messages(program):
    return [(step.kind, step.peer, step.spans, step.side) for steps in program.rounds
            for step in steps if step.kind in (SEND, RECV)]


def test_only_leaders_take_part():
    level = levels(PAIRS, 2)[0]
    assert messages(run_among_leaders(BCAST, level, 2, [(0,)], inside(OUT), root=5)) == [
        (RECV, 5, (at(OUT, 0),), "")]
    assert run_among_leaders(BCAST, level, 3, [(0,)], inside(OUT), root=5) == Program(())


def test_owners_exchange_their_blocks():
    level = levels(PAIRS, 3)[0]
    players = [[1, 3, 5]] * 3
    blocks = [[Piece(ranks, [number])] for number, ranks in enumerate(players)]
    forth = messages(exchange(ALLGATHER, level, blocks, inside(OUT)))
    back = messages(exchange(REDUCE_SCATTER, level, blocks, inside(OUT)))
    assert {peer for _, peer, *_ in forth} == {1, 5}
    turned = {(SEND if kind == RECV else RECV, peer, spans) for kind, peer, spans, _ in back}
    assert turned == {(kind, peer, spans) for kind, peer, spans, _ in forth}
    assert all(side for kind, *_, side in back if kind == RECV)


def test_what_reduces_has_no_way_back():
    with pytest.raises(ScheduleError, match="reverse"):
        backwards(REDUCE_SCATTER).build(0, 3)


def test_others_do_nothing_on_a_vector():
    place = dict.fromkeys((IN, OUT), lambda keys: (at(OUT, 0),))
    assert on_vector(BCAST, [4, 7], 5, place, 0) == Program(())
    assert messages(on_vector(BCAST, [4, 7], 4, place, 0)) == [(SEND, 7, (at(OUT, 0),), "")]
