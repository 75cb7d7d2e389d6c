"""Exchange algorithms: closed forms at telling sizes, layouts, folds and window moves."""

from math import ceil, log2

import pytest

from hpccoll.algorithms import ALGORITHMS, schedule
from hpccoll.algorithms.flat import (
    bruck,
    census,
    circulant,
    pat,
    recursive_halving,
    recursive_multiplying,
)
from hpccoll.algorithms.parts.folding import Fold
from hpccoll.errors import ArgumentError
from hpccoll.ir.collectives import COLLECTIVES, OUT, TMP, slot_keys
from hpccoll.ir.extents import SlotLayout, packed
from hpccoll.ir.lowering import lower
from hpccoll.ir.schedule import RECV, SEND
from hpccoll.proof.cases import cases
from hpccoll.proof.verifier import prove, verify

#: The algorithms of these families whose rounds grow with log p.
LOGARITHMIC = [
    *(("allreduce", name) for name in
      ("recursive_doubling", "recursive_multiplying", "rabenseifner", "circulant", "pat",
       "swing", "census")),
    ("reduce", "rabenseifner"),
    *(("reduce_scatter", name) for name in
      ("recursive_halving", "butterfly", "circulant", "pat", "swing")),
    *(("allgather", name) for name in
      ("recursive_doubling", "bruck", "circulant", "pat", "swing")),
    *(("alltoall", name) for name in ("bruck", "circulant")),
    *((collective, name) for collective in ("scan", "exscan")
      for name in ("recursive_doubling", "census")),
    ("barrier", "recursive_doubling"),
]
#: Those that send or receive p-1 messages.
LINEAR = [
    ("reduce_scatter", "ring"), ("reduce_scatter", "pairwise"), ("reduce_scatter", "linear"),
    ("allgather", "linear"), ("allgather", "neighbor_exchange"), ("alltoall", "linear"),
    ("alltoall", "pairwise"), ("alltoall", "scattered"), ("scan", "linear"), ("exscan", "linear"),
]


def lowered(made, rank):
    """One rank's program on blocks of one element."""
    keys = slot_keys(made.collective, rank, made.size, made.root, made.nblocks)
    places = {buffer: packed(buffer, [1] * len(held)) for buffer, held in keys.items()}
    return lower(made.program(rank), SlotLayout(places, lambda key: 1))


def sent_by_round(made, rank):
    """Blocks that one rank sends in each round with messages."""
    counts = [sum(m.extent.count for m in phase.messages if m.kind == SEND)
              for phase in lowered(made, rank).phases]
    return [count for count in counts if count]


def length(span):
    return span.stop - span.start


# -- proofs ------------------------------------------------------------------------------------
@pytest.mark.parametrize(("collective", "name"), LOGARITHMIC + LINEAR)
@pytest.mark.parametrize("size", [1, 2, 3, 7, 8])
def test_proof_with_the_order_that_the_table_claims(collective, name, size):
    entry = ALGORITHMS[collective][name]
    proof = verify(schedule(collective, name, size, root=size // 2),
                   commutative=not entry.rank_order)
    if size > 6 and COLLECTIVES[collective].reduces:
        assert proof.rank_order == entry.rank_order, "claims less than it does"
    if collective == "allreduce" and size > 6:
        assert proof.replicas_identical != entry.exact_only


@pytest.mark.parametrize(("collective", "name", "size"), [
    (*case, size) for case in LOGARITHMIC for size in (33, 65, 100)
    if size < 100 or case[0] in ("allreduce", "scan", "exscan", "barrier")])
def test_proof_beside_powers_of_two(collective, name, size):
    made = schedule(collective, name, size, root=size // 3)
    proof = prove(made, made.collective, next(iter(cases(made, made.collective))))
    assert proof.rounds == made.rounds
    assert made.sent is None or proof.sent == made.sent


@pytest.mark.parametrize(("collective", "name", "params"), [
    ("allreduce", "recursive_multiplying", {"k": 2}),
    ("allreduce", "recursive_multiplying", {"k": 3}),
    ("allreduce", "recursive_multiplying", {"k": 64}),
    ("allgather", "bruck", {"k": 3}), ("allgather", "bruck", {"k": 64}),
    ("alltoall", "bruck", {"k": 3}), ("alltoall", "bruck", {"k": 64}),
    ("alltoall", "scattered", {"batch": 1}), ("alltoall", "scattered", {"batch": 64}),
])
@pytest.mark.parametrize("size", [1, 5, 10])
def test_proof_with_parameters(collective, name, params, size):
    verify(schedule(collective, name, size, **params))


@pytest.mark.parametrize("size", [2, 3, 6, 7])
def test_reduce_to_every_root(size):
    for root in range(size):
        verify(schedule("reduce", "rabenseifner", size, root=root), commutative=False)


@pytest.mark.parametrize(("collective", "name"), [
    ("allreduce", "recursive_multiplying"), ("allgather", "bruck"), ("alltoall", "bruck")])
def test_radix_one_is_refused(collective, name):
    with pytest.raises(ArgumentError, match="at least 2"):
        schedule(collective, name, 8, k=1)


@pytest.mark.parametrize(("collective", "name"), [
    case for case in LOGARITHMIC if case[1] not in ("pat", "swing") and case[0] != "alltoall"])
def test_programs_stay_short_at_scale(collective, name):
    for size in (4095, 4096):
        rounds = schedule(collective, name, size).program(size - 2).rounds
        assert sum(map(len, rounds)) < 100


# -- bytes per round ---------------------------------------------------------------------------
@pytest.mark.parametrize(("size", "blocks"), [(13, [6, 3, 2, 1]), (100, [50, 25, 12, 6, 3, 2, 1])])
def test_pat_moves_most_between_neighbours(size, blocks):
    for rank in (0, 1, size - 1):
        assert sent_by_round(schedule("reduce_scatter", "pat", size), rank) == blocks
        assert sent_by_round(schedule("allgather", "pat", size), rank) == blocks[::-1]
        assert sent_by_round(schedule("allreduce", "pat", size), rank) == blocks + blocks[::-1]
    steps = [step for steps in schedule("reduce_scatter", "pat", size).program(0).rounds
             for step in steps if step.kind == SEND]
    assert [step.peer for step in steps] == [2 ** d for d in range(len(blocks))]


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


@pytest.mark.parametrize(("size", "k", "messages", "blocks"), [
    (64, 2, 6, 192), (64, 3, 8, 158), (64, 4, 9, 144), (64, 8, 14, 112), (64, 64, 63, 63),
    (37, 2, 6, 90), (37, 3, 7, 77), (37, 4, 8, 73), (37, 8, 11, 61), (37, 37, 36, 36)])
def test_bruck_alltoall_counts(size, k, messages, blocks):
    rounds = bruck.hops(size, k)
    assert sum(map(len, rounds)) == messages
    assert sum(len(offsets) for hops in rounds for _, offsets in hops) == blocks
    assert bruck.alltoall_sent(size, k) == blocks


def test_alltoall_hops_reach_every_distance():
    for size in range(1, 130):
        for rounds in (bruck.hops(size, 2), bruck.hops(size, 5), circulant.hops(size)):
            travelled = [0] * size
            for hops in rounds:
                for distance, offsets in hops:
                    for offset in offsets:
                        travelled[offset] += distance
            assert travelled == list(range(size))


def test_circulant_alltoall_sends_no_more_than_bruck():
    assert [circulant.alltoall_sent(p) for p in (5, 9, 13, 64)] == [5, 12, 22, 192]
    for size in range(1, 300):
        assert circulant.alltoall_sent(size) <= bruck.alltoall_sent(size, 2)


def test_neighbor_exchange_moves_whole_pairs():
    assert sent_by_round(schedule("allgather", "neighbor_exchange", 8), 3) == [1, 2, 2, 2]
    program = schedule("allgather", "neighbor_exchange", 12).program(5)
    for steps in program.rounds[2:]:
        assert all(span.start % 2 == 0 and length(span) == 2
                   for step in steps for span in step.spans)


# -- memory ------------------------------------------------------------------------------------
@pytest.mark.parametrize(("collective", "name", "size"), [
    ("allreduce", "circulant", 13), ("allgather", "circulant", 13), ("allgather", "bruck", 13),
    ("reduce_scatter", "circulant", 13), ("allreduce", "rabenseifner", 13),
    ("allgather", "recursive_doubling", 13), ("reduce_scatter", "recursive_halving", 13),
    ("reduce_scatter", "butterfly", 13), ("reduce", "rabenseifner", 13)])
def test_every_message_is_one_slice(collective, name, size):
    for program in schedule(collective, name, size).programs():
        assert all(len(step.spans) == 1 and length(step.spans[0])
                   for steps in program.rounds for step in steps if step.kind in (SEND, RECV))


def test_pat_reduces_from_one_slice_and_collects_round_one_gap():
    for size in (8, 13, 100):
        for steps in schedule("reduce_scatter", "pat", size).program(size - 1).rounds:
            assert all(len(step.spans) == 1 for step in steps if step.kind == SEND)
        for steps in schedule("allgather", "pat", size).program(size - 1).rounds:
            messages = [step for step in steps if step.kind in (SEND, RECV)]
            assert len(messages) <= 4 and all(len(step.spans) == 1 for step in messages)


@pytest.mark.parametrize(("collective", "name"), [
    case for case in LOGARITHMIC + LINEAR
    if case not in {("alltoall", "bruck"), ("alltoall", "circulant")}])
def test_lowering_packs_nothing_to_send(collective, name):
    """Only blocks that hop together in an alltoall lie apart."""
    for size in (8, 13):
        made = schedule(collective, name, size)
        for rank in (0, 3, size - 1):
            slots = len(made.program(rank).scratch)
            assert all(m.extent.buffer != TMP or m.extent.offset < slots
                       for phase in lowered(made, rank).phases for m in phase.messages
                       if m.kind == SEND and m.extent.count)


@pytest.mark.parametrize("name", ["ring", "pairwise", "circulant", "pat"])
def test_reduce_scatter_ends_in_the_output(name):
    """The last reduction writes the result; no copy follows it."""
    for rank in range(5):
        *_, last = lowered(schedule("reduce_scatter", name, 5), rank).phases
        into, _, right = last.after[-1]
        assert into.buffer == OUT and right is not None


def test_bruck_alltoall_lands_last_hops_in_the_output():
    made = schedule("alltoall", "bruck", 8)
    spans = [span for steps in made.program(3).rounds for step in steps if step.kind == RECV
             for span in step.spans if span.buffer == OUT]
    assert sorted(span.start for span in spans) == [0, 1, 2, 4, 5, 6, 7]


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


# -- folds -------------------------------------------------------------------------------------
def test_fold_is_a_partition_into_neighbours():
    for size in range(1, 300):
        for power in {1 << (size.bit_length() - 1), 1, size, max(size // 3, 1)}:
            fold = Fold(size, power)
            members = [fold.members(v) for v in range(power)]
            assert [r for group in members for r in group] == list(range(size))
            assert {len(group) for group in members} <= {size // power, -(-size // power)}
            assert [fold.virtual(fold.real(v)) for v in range(power)] == list(range(power))
            assert all(fold.group(r) == v for v in range(power) for r in members[v])
            assert fold.block(0, power) == (0, size)


def test_fold_onto_a_power_of_two_makes_pairs():
    for size in range(1, 300):
        fold = Fold(size)
        extra = size - fold.power
        assert fold.power <= size < 2 * fold.power
        for rank in range(size):
            if rank < 2 * extra:
                expected = rank // 2 if rank % 2 else None
            else:
                expected = rank - extra
            assert fold.virtual(rank) == expected


def test_fold_lets_the_root_take_part():
    for size in range(1, 40):
        for root in range(size):
            fold = Fold(size, root=root)
            assert fold.virtual(root) == fold.group(root) == Fold(size).group(root)
            virtual = range(fold.power)
            assert [fold.virtual(fold.real(v)) for v in virtual] == list(virtual)


def test_halves_end_where_the_docstring_says():
    for bits in range(7):
        power = 1 << bits
        near_first = [1 << i for i in range(bits)]
        for virtual in range(power):
            for distances, block in ((near_first, recursive_halving.bit_reverse(virtual, bits)),
                                     (near_first[::-1], virtual)):
                kept = [k for _, k, _ in recursive_halving.halves(virtual, power, distances)]
                assert not kept or kept[-1] == (block, block + 1)


@pytest.mark.parametrize(("size", "k", "expected"), [
    (1, 4, []), (2, 4, [2]), (4, 4, [4]), (8, 4, [4, 2]), (12, 4, [4, 3]), (16, 4, [4, 4]),
    (7, 4, [4]), (6, 2, [2, 2]), (7, 8, [7]), (216, 8, [6, 6, 6]), (1000, 10, [10, 10, 10])])
def test_radices(size, k, expected):
    assert recursive_multiplying.radices(size, k) == expected


def test_multiplying_never_takes_more_rounds_than_folding_onto_a_power():
    for k in (2, 3, 4, 8):
        for size in range(1, 400):
            full = max(i for i in range(10) if k ** i <= size)
            assert recursive_multiplying.rounds(size, k) <= full + 2 * (k ** full < size)


# -- windows -----------------------------------------------------------------------------------
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
