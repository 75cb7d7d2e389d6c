"""Circulant skips: what is sent, and to whom."""

from math import ceil, log2

import pytest

from hpccoll.algorithms import schedule
from hpccoll.algorithms.flat import (
    bruck,
    circulant,
)
from hpccoll.ir.collectives import slot_keys
from hpccoll.ir.extents import SlotLayout, pack_extents
from hpccoll.ir.lowering import lower
from hpccoll.ir.schedule import SEND


def lowered(made, rank):
    """One rank's program on blocks of one element."""
    keys = slot_keys(made.collective, rank, made.size, made.root, made.nblocks)
    places = {buffer: pack_extents(buffer, [1] * len(held)) for buffer, held in keys.items()}
    return lower(made.program(rank), SlotLayout(places, lambda key: 1))


def sent_by_round(made, rank):
    """Blocks that one rank sends in each round with messages."""
    counts = [sum(m.extent.count for m in phase.messages if m.kind == SEND)
              for phase in lowered(made, rank).phases]
    return [count for count in counts if count]


@pytest.mark.parametrize(("size", "blocks"), [(13, [6, 3, 2, 1]), (100, [50, 25, 12, 6, 3, 2, 1]),
                                              (64, [32, 16, 8, 4, 2, 1])])
def test_circulant_halves_what_is_left(size, blocks):
    for rank in (0, 1, size - 1):
        assert sent_by_round(schedule("reduce_scatter", "circulant", size), rank) == blocks
        both = sent_by_round(schedule("allreduce", "circulant", size), rank)
        assert both == blocks + blocks[::-1]


def test_circulant_skips_leave_room_and_add_up():
    for size in range(2, 400):
        found = list(circulant.skips(size))
        assert len(found) == ceil(log2(size))
        assert found[0][0] == 1 and found[-1][1] == size
        assert all(0 < following - skip <= skip for skip, following in found)
        assert [following for _, following in found[:-1]] == [skip for skip, _ in found[1:]]


def test_circulant_alltoall_sends_no_more_than_bruck():
    assert [circulant.alltoall_sent(p) for p in (5, 9, 13, 64)] == [5, 12, 22, 192]
    for size in range(1, 300):
        assert circulant.alltoall_sent(size) <= bruck.alltoall_sent(size, 2)
