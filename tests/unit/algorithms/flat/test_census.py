"""Census: how windows grow."""

from math import ceil, log2

import pytest

from hpccoll.algorithms import schedule
from hpccoll.algorithms.flat import census
from hpccoll.ir.collectives import slot_keys
from hpccoll.ir.extents import SlotLayout, pack_extents
from hpccoll.ir.lowering import lower


def lowered(made, rank):
    """One rank's program on blocks of one element."""
    keys = slot_keys(made.collective, rank, made.size, made.root, made.nblocks)
    places = {buffer: pack_extents(buffer, [1] * len(held)) for buffer, held in keys.items()}
    return lower(made.program(rank), SlotLayout(places, lambda key: 1))


def covered(moves):
    window_size = 0
    for bit in moves:
        window_size = 2 * window_size + bit
    return window_size


def test_window_moves():
    for size in range(2, 400):
        fewest = ceil(log2(size))
        assert len(census.circle(size)) == len(census.line(size)) == fewest
        assert covered(census.circle(size)) == size - 1
        assert covered(census.line(size)) >= size - 1
        ones = sum(census.line(size))
        assert covered([1] * (ones - 1) + [0] * (fewest - ones + 1)) < size - 1
    assert census.circle(1) == census.line(1) == []


@pytest.mark.parametrize(("size", "ones"), [(9, 1), (12, 2), (16, 4), (100, 3)])
def test_window_prefix_adds_the_own_contribution_as_rarely_as_possible(size, ones):
    assert sum(census.line(size)) == ones


@pytest.mark.parametrize("size", [2, 3, 9, 12, 13, 100])
def test_window_allreduce_operations(size):
    """One addition a move and one for every bit 1, less the first move and the last bit."""
    moves = census.circle(size)
    saved = 1 if moves[-1] and len(moves) > 1 else 0
    operations = [step for phase in lowered(schedule("allreduce", "census", size), 1).phases
                  for step in phase.after if step.right]
    assert len(operations) == len(moves) - 1 + sum(moves) - saved
