"""PAT: what it moves, and where."""

import pytest

from hpccoll.algorithms import schedule
from hpccoll.algorithms.flat import pat
from hpccoll.ir.collectives import slot_keys
from hpccoll.ir.extents import SlotLayout, pack_extents
from hpccoll.ir.lowering import lower
from hpccoll.ir.schedule import RECV, SEND


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


@pytest.mark.parametrize(("size", "blocks"), [(13, [6, 3, 2, 1]), (100, [50, 25, 12, 6, 3, 2, 1])])
def test_pat_moves_most_between_neighbours(size, blocks):
    for rank in (0, 1, size - 1):
        assert sent_by_round(schedule("reduce_scatter", "pat", size), rank) == blocks
        assert sent_by_round(schedule("allgather", "pat", size), rank) == blocks[::-1]
        assert sent_by_round(schedule("allreduce", "pat", size), rank) == blocks + blocks[::-1]
    steps = [step for steps in schedule("reduce_scatter", "pat", size).program(0).rounds
             for step in steps if step.kind == SEND]
    assert [step.peer for step in steps] == [2 ** d for d in range(len(blocks))]


def test_pat_reduces_from_one_slice_and_collects_round_one_gap():
    for size in (8, 13, 100):
        for steps in schedule("reduce_scatter", "pat", size).program(size - 1).rounds:
            assert all(len(step.spans) == 1 for step in steps if step.kind == SEND)
        for steps in schedule("allgather", "pat", size).program(size - 1).rounds:
            messages = [step for step in steps if step.kind in (SEND, RECV)]
            assert len(messages) <= 4 and all(len(step.spans) == 1 for step in messages)


def test_pat_layout_keeps_live_blocks_in_front():
    for size in range(1, 300):
        order = pat.layout(size)
        assert sorted(order) == list(range(size))
        for distance, tail, front in pat.slices(order):
            live = order[:tail.stop]
            assert sorted(live) == list(range(0, size, distance))
            moved = order[tail.start:tail.stop]
            assert all(offset // distance % 2 for offset in moved)
            met = [order[slot] for span in front for slot in range(span.start, span.stop)]
            assert met == [offset - distance for offset in moved]
            assert len(front) <= 2
