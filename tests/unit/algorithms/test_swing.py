"""Swing and Bine: routes, partners, layout, bytes per round and bytes between groups of ranks."""

from itertools import accumulate
from random import Random

import pytest

from hpccoll.algorithms import schedule
from hpccoll.algorithms.flat import bine, swing
from hpccoll.algorithms.parts import swing_routes
from hpccoll.ir.schedule import SEND
from hpccoll.proof.verifier import verify

NAMES = ("allreduce", "reduce_scatter", "allgather")


def sends(made, rank):
    """Peer and number of blocks of every message that a rank sends, round by round."""
    rounds = [[(step.peer, sum(span.stop - span.start for span in step.spans))
               for step in steps if step.kind == SEND] for steps in made.program(rank).rounds]
    return [found for found in rounds if found]


def slots(spans):
    return [slot for span in spans for slot in range(span.start, span.stop)]


# -- routes ------------------------------------------------------------------------------------
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


# -- what is sent ------------------------------------------------------------------------------
@pytest.mark.parametrize(("size", "blocks"), [
    (16, [8, 4, 2, 1]), (10, [2, 4, 2, 1]), (18, [2, 8, 4, 2, 1]), (12, [6, 2, 2, 1])])
def test_blocks_of_every_round(size, blocks):
    for rank in (0, 1, size - 1):
        there = [count for (_, count), in sends(schedule("reduce_scatter", "swing", size), rank)]
        back = [count for (_, count), in sends(schedule("allgather", "swing", size), rank)]
        both = [sum(count for _, count in steps)
                for steps in sends(schedule("allreduce", "swing", size), rank)]
        assert (there, back, both) == (blocks, blocks[::-1], blocks + blocks[::-1])


def test_partners_swing_to_either_side():
    found = [peer for (peer, _), in sends(schedule("reduce_scatter", "swing", 32), 0)]
    assert found == [1, 31, 3, 27, 11]


@pytest.mark.parametrize("collective", NAMES)
@pytest.mark.parametrize("size", [1, 3, 5, 11, 13, 101])
def test_the_last_of_an_odd_number_sends_as_much_as_others(collective, size):
    made = schedule(collective, "swing", size)
    halves = 2 if collective == "allreduce" else 1
    last = sends(made, size - 1)
    assert sorted(peer for steps in last for peer, _ in steps) == sorted(
        halves * list(range(size - 1)))
    for steps, others in zip(last, sends(made, 0)):
        most = max(count for _, count in others)
        assert len(steps) <= most + 1 and all(count == 1 for _, count in steps)


@pytest.mark.parametrize("collective", NAMES)
@pytest.mark.parametrize("size", [*range(1, 13), 18, 22, 26])
def test_proof(collective, size):
    verify(schedule(collective, "swing", size))


@pytest.mark.parametrize(("size", "most"), [(2, 1), (8, 1), (64, 1), (12, 1), (96, 1), (97, 2),
                                            (18, 3), (80, 2), (120, 6)])
def test_an_allreduce_needs_no_scratch_where_few_slices_move(size, most):
    made = schedule("allreduce", "swing", size)
    for rank in range(size - size % 2):
        program, found = made.program(rank), sends(made, rank)
        assert program.scratch == ()
        assert all(len(step.spans) == 1 for steps in program.rounds for step in steps)
        assert max(map(len, found)) <= most and sum(map(len, found)) <= 3 * len(found)


def test_multiples_of_eight_need_no_scratch():
    suited = [ring for ring in range(2, 130, 2) if swing.parts(ring)]
    assert set(range(8, 130, 8)) < set(suited) and 26 not in suited
    for ring in suited:
        assert sorted(swing.parts(ring)) == list(range(ring + 1))
    assert schedule("allreduce", "swing", 26).program(0).scratch


# -- what crosses ------------------------------------------------------------------------------
def crossing(collective, name, size, borders, root=0):
    """Share of the vector, or of all blocks, that goes from one group of neighbours to another."""
    group = [sum(rank >= border for border in borders) for rank in range(size)]
    made = schedule(collective, name, size, root=root)
    blocks = made.nblocks if made.collective.payload == "vector" else size
    return sum(count for rank in range(size) for steps in sends(made, rank)
               for peer, count in steps if group[rank] != group[peer]) / blocks


def test_fewer_blocks_cross_between_groups_of_any_sizes():
    """Than with any other algorithm of few rounds: the ring sends least, in p-1 rounds."""
    random, size, total = Random(7), 96, {}
    for _ in range(4):
        borders = sorted(random.sample(range(1, size), 5))
        for name in ("ring", "swing", "pat", "circulant", "bruck", "recursive_doubling"):
            total[name] = total.get(name, 0) + crossing("allgather", name, size, borders)
    assert total["ring"] < total["swing"]
    assert total["swing"] < 0.85 * min(total[name] for name in total
                                       if name not in ("ring", "swing"))


def test_aligned_powers_of_two_suit_other_partners_better():
    """Rabenseifner's leave a group of 16 twice in six steps, swing's earlier."""
    borders = list(accumulate([16] * 3))
    found = {name: crossing("allreduce", name, 64, borders)
             for name in ("rabenseifner", "swing", "pat", "circulant")}
    assert found["rabenseifner"] < found["swing"] < found["pat"] < found["circulant"]


def test_fewer_edges_of_bine_trees_cross_between_groups():
    random, size, total = Random(7), 100, {"bine": 0, "binomial": 0}
    for _ in range(12):
        borders, root = sorted(random.sample(range(1, size), 7)), random.randrange(size)
        for name in total:
            total[name] += crossing("bcast", name, size, borders, root)
    assert total["bine"] < 0.95 * total["binomial"]


def test_bine_roots_have_as_many_children_as_the_closed_form_says():
    for size in range(1, 200):
        for root in {0, size // 2, size - 1}:
            nodes = [bine.tree(rank, size, root) for rank in range(size)]
            assert len(nodes[root].children) == bine.degree(size)
            assert max(len(node.children) for node in nodes) == bine.degree(size)
