"""Swing routes: every offset has one, and partners agree."""

import pytest

from hpccoll.algorithms.parts import swing_routes


def slots(spans):
    return [slot for span in spans for slot in range(span.start, span.stop)]


def least_routes(ring):
    """The least mask of steps, step 0 first, for every offset; by trying all."""
    bits, found = swing_routes.rounds(ring), {}
    for mask in range(1 << bits):
        steps = [step for step in range(bits) if mask >> (bits - 1 - step) & 1]
        reaches = [(1 - (-2) ** (step + 1)) // 3 for step in steps]
        found.setdefault(sum(reaches[::2]) - sum(reaches[1::2]), mask)
    least = {}
    for offset, mask in found.items():
        least[offset % ring] = min(mask, least.get(offset % ring, mask))
    return least


def test_offsets_are_in_the_order_of_their_least_routes():
    for ring in range(2, 130, 2):
        least = least_routes(ring)
        assert list(swing_routes.routes(ring)[0]) == sorted(range(ring), key=least.__getitem__)


def test_every_offset_has_a_route_and_every_step_sends_a_tail():
    for ring in (*range(0, 400, 2), 1022, 1026, 4094, 4096, 4098):
        order, moves = swing_routes.routes(ring)
        assert sorted(order) == list(range(max(ring, 1)))
        live = len(order)
        for move in moves:
            assert move.tail.stop == live
            live = move.tail.start
            front = slots(move.front)
            assert len(front) == move.tail.stop - move.tail.start and front[-1] < live
            assert [order[slot] for slot in front] == [
                (move.reach - offset) % ring for offset in order[live:move.tail.stop]]
        assert live == 1


def test_powers_of_two_meet_one_slice():
    for bits in range(1, 12):
        assert all(len(move.front) == 1 for move in swing_routes.routes(1 << bits)[1])


@pytest.mark.parametrize("ring", [2, 6, 10, 16, 100])
def test_partners_agree(ring):
    for move in swing_routes.routes(ring)[1]:
        for rank in range(ring):
            peer = swing_routes.partner(rank, move.reach, ring)
            assert peer != rank and swing_routes.partner(peer, move.reach, ring) == rank
