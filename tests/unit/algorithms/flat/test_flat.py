"""Rings, trees and other flat algorithms: who sends what to whom in which round."""

import pytest

from hpccoll.algorithms import ALGORITHMS, schedule
from hpccoll.algorithms.flat import (
    bruck,
    circulant,
    dissemination,
    linear,
    recursive_halving,
    recursive_multiplying,
)
from hpccoll.errors import ArgumentError
from hpccoll.explain.replay import timeline
from hpccoll.ir.collectives import COLLECTIVES, OUT, TMP, slot_keys
from hpccoll.ir.extents import SlotLayout, pack_extents
from hpccoll.ir.lowering import lower
from hpccoll.ir.schedule import RECV, SEND
from hpccoll.proof.cases import BlockSizes, cases
from hpccoll.proof.verifier import prove, verify
from support.folded import folded

# Flat algorithms: proofs at telling sizes, short programs, and no needless copies


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
    places = {buffer: pack_extents(buffer, [1] * len(held)) for buffer, held in keys.items()}
    return lower(made.program(rank), SlotLayout(places, lambda key: 1))


def length(span):
    return span.stop - span.start


@pytest.mark.slow
@folded("collective, name", LOGARITHMIC + LINEAR)
@folded("size", [1, 2, 3, 7, 8])
def test_proof_with_the_order_that_the_table_claims(collective, name, size):
    entry = ALGORITHMS[collective][name]
    proof = verify(schedule(collective, name, size, root=size // 2),
                   commutative=not entry.rank_order)
    if size > 6 and COLLECTIVES[collective].reduces:
        assert proof.rank_order == entry.rank_order, "claims less than it does"
    if collective == "allreduce" and size > 6:
        assert proof.replicas_identical != entry.exact_only


@pytest.mark.long
@pytest.mark.slow
@folded("collective, name, size", [
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


@pytest.mark.parametrize(("collective", "name", "size"), [
    ("allreduce", "circulant", 13), ("allgather", "circulant", 13), ("allgather", "bruck", 13),
    ("reduce_scatter", "circulant", 13), ("allreduce", "rabenseifner", 13),
    ("allgather", "recursive_doubling", 13), ("reduce_scatter", "recursive_halving", 13),
    ("reduce_scatter", "butterfly", 13), ("reduce", "rabenseifner", 13)])
def test_every_message_is_one_slice(collective, name, size):
    for program in schedule(collective, name, size).programs():
        assert all(len(step.spans) == 1 and length(step.spans[0])
                   for steps in program.rounds for step in steps if step.kind in (SEND, RECV))


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


# Ring: every rank talks to its neighbours only, one block a round
@pytest.mark.parametrize("collective", ["allreduce", "reduce_scatter", "allgather"])
@pytest.mark.parametrize("size", [3, 4, 7])
def test_one_block_a_round_to_the_right(collective, size):
    made = schedule(collective, "ring", size)
    for rank in range(size):
        for steps in made.program(rank).rounds:
            messages = {step.kind: step for step in steps if step.kind in (SEND, RECV)}
            if messages:
                assert messages[SEND].peer == (rank + 1) % size
                assert messages[RECV].peer == (rank - 1) % size
                assert all(span.stop - span.start == 1
                           for step in messages.values() for span in step.spans)


def test_the_picture_of_the_docstring():
    made = schedule("reduce_scatter", "ring", 4)
    stops = [next(step.peer for step in made.program(rank).rounds[number + 1]
                  if step.kind == SEND and step.spans[0].start == 0)
             for number, rank in enumerate((1, 2, 3))]
    assert stops == [2, 3, 0]


# Chain: the vector passes every rank once
def links(made):
    return [(message.sender, message.receiver) for message in timeline(made).messages]


def test_messages_go_along_the_chain_and_back():
    forth = links(schedule("bcast", "chain", 5, root=3))
    assert forth == [(3, 4), (4, 0), (0, 1), (1, 2)]
    back = links(schedule("reduce", "chain", 5, root=3))
    assert back == [(receiver, sender) for sender, receiver in reversed(forth)]


# Linear: landing space of a reduction
def test_a_linear_reduction_bounds_its_landing_space():
    program = schedule("reduce", "linear", 200, root=77).program(77)
    assert max(map(len, program.rounds)) == linear.FAN
    assert sum(map(len, program.rounds[1:])) == 199


# Neighbour exchange: what a round moves
def sent_by_round(made, rank):
    """Blocks that one rank sends in each round with messages."""
    counts = [sum(m.extent.count for m in phase.messages if m.kind == SEND)
              for phase in lowered(made, rank).phases]
    return [count for count in counts if count]


def test_neighbor_exchange_moves_whole_pairs():
    assert sent_by_round(schedule("allgather", "neighbor_exchange", 8), 3) == [1, 2, 2, 2]
    program = schedule("allgather", "neighbor_exchange", 12).program(5)
    for steps in program.rounds[2:]:
        assert all(span.start % 2 == 0 and length(span) == 2
                   for step in steps for span in step.spans)


# Bruck: hops of the alltoall, and where blocks land
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


def test_bruck_alltoall_lands_last_hops_in_the_output():
    made = schedule("alltoall", "bruck", 8)
    spans = [span for steps in made.program(3).rounds for step in steps if step.kind == RECV
             for span in step.spans if span.buffer == OUT]
    assert sorted(span.start for span in spans) == [0, 1, 2, 4, 5, 6, 7]


# In-order binary tree: as deep as the longer side of the root is long, in bits
@pytest.mark.parametrize("size, root", [(2, 0), (8, 3), (9, 8), (33, 0), (40, 20)])
@pytest.mark.parametrize("collective, name", [("bcast", "binary"), ("reduce", "in_order_binary")])
def test_rounds_are_the_bits_of_the_longer_side(collective, name, size, root):
    made = schedule(collective, name, size, root=root)
    proof = prove(made, made.collective, cases(made, made.collective)[0])
    assert proof.rounds == max(root, size - 1 - root).bit_length()
    assert proof.sent <= (2 if collective == "bcast" else 1)


# k-nomial trees: where gathered blocks land
def test_gather_lands_in_place_at_the_root():
    for name in ("linear", "binomial"):
        program = schedule("gather", name, 12, root=5).program(5)
        assert not program.scratch
        assert all(step.spans[0].buffer == OUT for step in program.rounds[1])


# Tree algorithms: proofs where the sweep over sizes does not go
ALGORITHM_NAMES = [(c, n) for c, names in {
    "barrier": "dissemination tree linear",
    "bcast": "linear binomial knomial chain binary scatter_allgather scatter_ring double_tree "
             "circulant bine",
    "reduce": "linear binomial knomial chain in_order_binary double_tree circulant bine",
    "allreduce": "linear reduce_bcast double_tree",
    "gather": "linear binomial",
    "scatter": "linear binomial"}.items() for n in names.split()]


def some_roots(size):
    return range(size) if size <= 9 else sorted({0, size // 3, size - 1})


@pytest.mark.long(every=5)
@pytest.mark.slow(every=10)
@pytest.mark.parametrize("collective, name", ALGORITHM_NAMES)
def test_proved_where_the_sweep_does_not_go(collective, name):
    entry = ALGORITHMS[collective][name]
    for size, root in (33, 20), (129, 128):
        verify(schedule(collective, name, size, root=root), commutative=not entry.rank_order)
    for size, root in (65, 3), (100, 50):
        made = schedule(collective, name, size, root=root)
        keys = made.nblocks if made.collective.payload == "vector" else size
        prove(made, COLLECTIVES[collective], BlockSizes(lambda key: 1, keys))


@pytest.mark.parametrize("collective, name, values", [
    ("barrier", "dissemination", {"k": (2, 3, 40)}), ("barrier", "tree", {"k": (3, 40)}),
    ("bcast", "knomial", {"k": (2, 3, 40)}), ("reduce", "knomial", {"k": (2, 3, 40)}),
    ("bcast", "circulant", {"n": (1, 2, 5, 13)}), ("reduce", "circulant", {"n": (1, 2, 5, 13)})])
def test_proved_for_other_parameters(collective, name, values):
    (key, choices), = values.items()
    entry = ALGORITHMS[collective][name]
    for choice in choices:
        for size in (1, 2, 7, 12):
            verify(schedule(collective, name, size, root=size // 2, **{key: choice}),
                   commutative=not entry.rank_order)


@pytest.mark.parametrize("name", ["scatter_allgather", "scatter_ring"])
def test_nobody_receives_a_block_twice(name):
    for size in (1, 2, 3, 7, 8, 24, 33):
        for root in some_roots(size):
            for rank, program in enumerate(schedule("bcast", name, size, root=root).programs()):
                received = [slot for steps in program.rounds for step in steps if step.kind == RECV
                            for span in step.spans for slot in range(span.start, span.stop)]
                assert sorted(received) == ([] if rank == root else list(range(size)))


@pytest.mark.parametrize("collective, name", [
    ("barrier", "dissemination"), ("barrier", "tree"), ("bcast", "knomial"),
    ("reduce", "knomial")])
def test_a_radix_below_two_is_refused(collective, name):
    with pytest.raises(ArgumentError, match="k: .*2.*1"):
        schedule(collective, name, 8, k=1)


# Double tree: everyone forwards half of the data
@pytest.mark.parametrize("size", [3, 6, 9, 16])
def test_no_rank_but_the_root_forwards_both_halves(size):
    for root in (0, size - 1):
        forwarded = {}
        for message in timeline(schedule("bcast", "double_tree", size, root=root)).messages:
            forwarded.setdefault(message.sender, set()).update(v.block for v in message.values)
        assert forwarded.pop(root) == {0, 1}
        assert all(len(halves) == 1 for halves in forwarded.values())


# Scatter and allgather: no rank gets a block that it has
@pytest.mark.parametrize("name", ["scatter_allgather", "scatter_ring"])
@pytest.mark.parametrize("size, root", [(2, 1), (5, 2), (8, 0), (13, 12)])
def test_every_block_arrives_once(name, size, root):
    arrived = {rank: [] for rank in range(size)}
    for message in timeline(schedule("bcast", name, size, root=root)).messages:
        arrived[message.receiver] += [value.block for value in message.values]
    assert not arrived.pop(root)
    assert all(sorted(blocks) == list(range(size)) for blocks in arrived.values())


# Prefix sums: what goes up, and what nobody needs
@pytest.mark.parametrize("collective", ["scan", "exscan"])
def test_a_chain_of_sums(collective):
    messages = timeline(schedule(collective, "linear", 5)).messages
    assert [(m.sender, m.receiver, m.values[0].ranks) for m in messages] == [
        (rank, rank + 1, (2 << rank) - 1) for rank in range(4)]


@pytest.mark.parametrize("collective", ["scan", "exscan"])
def test_sums_that_no_rank_asks_for_are_not_sent(collective):
    size = 5
    messages = timeline(schedule(collective, "recursive_doubling", size)).messages
    # Rank 4 has no partner before the last round, and nobody above it.
    assert [m.sender for m in messages if m.receiver == 4] == [0]
    assert not [m for m in messages if m.sender == 4]


# Dissemination: distances
SIZES = [*range(1, 70), 99, 100, 127, 128, 129, 255, 256, 257, 299, 300]


def test_dissemination_reaches_everyone_in_the_fewest_rounds():
    for size in SIZES:
        for k in (2, 3, 5, 400):
            rounds = len(dissemination.distances(size, k))
            assert k ** rounds >= size and (not rounds or k ** (rounds - 1) < size)


# Recursive doubling: partners at doubling distances, and folded ranks beside them
def peers(made, rank):
    return [step.peer for steps in made.program(rank).rounds for step in steps
            if step.kind == SEND]


@pytest.mark.parametrize("collective", ["allreduce", "allgather", "barrier"])
def test_partners_are_twice_as_far_every_round(collective):
    made = schedule(collective, "recursive_doubling", 16)
    assert all(peers(made, rank) == [rank ^ 1, rank ^ 2, rank ^ 4, rank ^ 8]
               for rank in range(16))


def test_a_folded_rank_talks_to_its_neighbour_only():
    made = schedule("allreduce", "recursive_doubling", 6)
    assert peers(made, 0) == [1] and peers(made, 2) == [3]
    assert set(peers(made, 1)) == {0, 3, 4} and 4 in peers(made, 5)


# Recursive halving: which half goes where
def test_halves_end_where_the_docstring_says():
    for bits in range(7):
        power = 1 << bits
        near_first = [1 << i for i in range(bits)]
        for virtual in range(power):
            for distances, block in ((near_first, recursive_halving.bit_reverse(virtual, bits)),
                                     (near_first[::-1], virtual)):
                kept = [k for _, k, _ in recursive_halving.halves(virtual, power, distances)]
                assert not kept or kept[-1] == (block, block + 1)


# Recursive multiplying: the choice of digits
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
