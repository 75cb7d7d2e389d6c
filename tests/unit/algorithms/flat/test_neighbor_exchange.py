"""Neighbour exchange: what a round moves."""

from hpccoll.algorithms import schedule
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


def length(span):
    return span.stop - span.start


def test_neighbor_exchange_moves_whole_pairs():
    assert sent_by_round(schedule("allgather", "neighbor_exchange", 8), 3) == [1, 2, 2, 2]
    program = schedule("allgather", "neighbor_exchange", 12).program(5)
    for steps in program.rounds[2:]:
        assert all(span.start % 2 == 0 and length(span) == 2
                   for step in steps for span in step.spans)
