"""Flat algorithms of newer papers: Swing, Bine trees, PAT, circulant graphs and the census."""

from itertools import accumulate
from math import ceil, log2
from random import Random

import pytest

from hpccoll.algorithms import schedule
from hpccoll.algorithms.flat import (
    bine,
    bruck,
    census,
    circulant,
    circulant_broadcast,
    pat,
    swing,
)
from hpccoll.ir.collectives import slot_keys
from hpccoll.ir.extents import SlotLayout, pack_extents
from hpccoll.ir.lowering import lower
from hpccoll.ir.schedule import RECV, SEND
from hpccoll.proof.verifier import verify

# Swing: what is sent, and what crosses between groups
NAMES = ("allreduce", "reduce_scatter", "allgather")


def sends(made, rank):
    """Peer and number of blocks of every message that a rank sends, round by round."""
    rounds = [[(step.peer, sum(span.stop - span.start for span in step.spans))
               for step in steps if step.kind == SEND] for steps in made.program(rank).rounds]
    return [found for found in rounds if found]


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


@pytest.mark.slow(every=10)
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


# Bine trees: the root, and what crosses between groups
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


# PAT: what it moves, and where
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


# Circulant skips: what is sent, and to whom
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


# Circulant broadcast: the tables of blocks
def test_circulant_tables_meet_the_conditions_of_the_paper():
    for size in [*range(2, 130), 255, 256, 257, 300, 1000]:
        skip = circulant_broadcast.skips(size)
        q = len(skip) - 1
        assert skip[0] == 1 and skip[q] == size and q == (size - 1).bit_length()
        takes = [circulant_broadcast.receive_table(v, skip) for v in range(size)]
        gives = [[takes[(v + skip[k]) % size][k] for k in range(q)] for v in range(size)]
        assert gives[0] == list(range(q)), size
        for v in range(1, size):
            b = circulant_broadcast.baseblock(v, skip)
            assert sorted(takes[v]) == sorted({b, *range(-q, 0)} - {b - q}), (size, v)
            assert gives[v][0] == b - q, (size, v)
            assert all(gives[v][k] in (b - q, *takes[v][:k]) for k in range(1, q)), (size, v)


# Census: how windows grow
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
