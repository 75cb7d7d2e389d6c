"""Rings, trees and other flat algorithms: who sends what to whom in which round."""

import pytest

from hpccoll.algorithms import ALGORITHMS, schedule
from hpccoll.algorithms.flat import (
    linear,
)
from hpccoll.errors import ArgumentError
from hpccoll.explain.replay import timeline
from hpccoll.ir.collectives import COLLECTIVES, TMP, slot_keys
from hpccoll.ir.extents import SlotLayout, pack_extents
from hpccoll.ir.lowering import lower
from hpccoll.ir.schedule import SEND
from hpccoll.proof.cases import BlockSizes
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


# Linear: landing space of a reduction
def test_a_linear_reduction_bounds_its_landing_space():
    program = schedule("reduce", "linear", 200, root=77).program(77)
    assert max(map(len, program.rounds)) == linear.FAN
    assert sum(map(len, program.rounds[1:])) == 199


# Tree algorithms: proofs where the sweep over sizes does not go
ALGORITHM_NAMES = [(c, n) for c, names in {
    "barrier": "dissemination tree linear",
    "bcast": "linear binomial knomial chain binary scatter_allgather scatter_ring double_tree "
             "circulant bine",
    "reduce": "linear binomial knomial chain in_order_binary double_tree circulant bine",
    "allreduce": "linear reduce_bcast double_tree",
    "gather": "linear binomial",
    "scatter": "linear binomial"}.items() for n in names.split()]


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


@pytest.mark.parametrize("collective, name", [
    ("barrier", "dissemination"), ("barrier", "tree"), ("bcast", "knomial"),
    ("reduce", "knomial")])
def test_a_radix_below_two_is_refused(collective, name):
    with pytest.raises(ArgumentError, match="k: .*2.*1"):
        schedule(collective, name, 8, k=1)


# Scatter and allgather: no rank gets a block that it has
@pytest.mark.parametrize("name", ["scatter_allgather", "scatter_ring"])
@pytest.mark.parametrize("size, root", [(2, 1), (5, 2), (8, 0), (13, 12)])
def test_every_block_arrives_once(name, size, root):
    arrived = {rank: [] for rank in range(size)}
    for message in timeline(schedule("bcast", name, size, root=root)).messages:
        arrived[message.receiver] += [value.block for value in message.values]
    assert not arrived.pop(root)
    assert all(sorted(blocks) == list(range(size)) for blocks in arrived.values())
