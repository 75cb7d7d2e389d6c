"""Flat algorithms: proofs at telling sizes, short programs, and no needless copies."""

import pytest

from hpccoll.algorithms import ALGORITHMS, schedule
from hpccoll.errors import ArgumentError
from hpccoll.ir.collectives import COLLECTIVES, OUT, TMP, slot_keys
from hpccoll.ir.extents import SlotLayout, pack_extents
from hpccoll.ir.lowering import lower
from hpccoll.ir.schedule import RECV, SEND
from hpccoll.proof.cases import cases
from hpccoll.proof.verifier import prove, verify
from support.folded import folded

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
