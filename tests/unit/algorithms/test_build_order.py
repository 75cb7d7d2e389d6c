"""Schedules for ranks that are not numbered group by group: proofs, and what crosses."""

import random
import time
from dataclasses import replace

import pytest

from hpccoll.algorithms import ALGORITHMS, schedule
from hpccoll.errors import ArgumentError, ProofError
from hpccoll.ir.collectives import COLLECTIVES
from hpccoll.ir.schedule import SEND
from hpccoll.ir.topology import Topology
from hpccoll.proof.verifier import verify
from support.folded import folded

HIERARCHICAL = [(collective, name) for collective, table in ALGORITHMS.items()
                for name, entry in table.items() if entry.hierarchical]


def dealt(shape):
    """The layout of ranks dealt out to the outermost groups in turn, as long as they have room."""
    plain = Topology.parse(shape)
    room, held = list(map(len, plain.groups())), [[] for _ in plain.groups()]
    rank = 0
    while rank < plain.size:
        for places, group in zip(room, held):
            if len(group) < places:
                group.append(rank)
                rank += 1
    return Topology(plain.tree, tuple(rank for group in held for rank in group))


def shuffled(shape, seed):
    plain = Topology.parse(shape)
    order = list(range(plain.size))
    random.Random(seed).shuffle(order)
    return Topology(plain.tree, tuple(order))


LAYOUTS = [dealt("2x2"), Topology.parse("2x2@3,2,1,0"), dealt("2x3"), shuffled("2x3", 1),
           dealt("3,5"), shuffled("3,5", 2), dealt("2x2x2"), shuffled("2x2x2", 3), dealt("4x2"),
           shuffled("4x2", 4), shuffled("((1,2),3),(2,1)", 5), shuffled("1x4", 6),
           shuffled("4x1", 7), shuffled("5", 8)]


def test_the_layouts_have_orders_of_their_own():
    assert all(layout.order for layout in LAYOUTS)


@pytest.mark.long
@pytest.mark.slow
@folded("layout", LAYOUTS)
@folded("collective, name", HIERARCHICAL)
def test_proof(collective, name, layout):
    for root in {0, layout.size // 2, layout.size - 1} if COLLECTIVES[collective].rooted else {0}:
        made = schedule(collective, name, topology=layout, root=root)
        plain = schedule(collective, name, topology=layout.plain, root=layout.positions[root])
        # The proof compares these with what it finds: an order costs nothing.
        assert (made.rounds, made.sent, made.nblocks) == (plain.rounds, plain.sent, plain.nblocks)
        proof = verify(made)
        assert (proof.replicas_identical or collective != "allreduce"
                or ALGORITHMS[collective][name].exact_only)


@pytest.mark.parametrize("root", range(5))
@pytest.mark.parametrize(("collective", "name"), [
    (collective, name) for collective, name in HIERARCHICAL if COLLECTIVES[collective].rooted])
def test_proof_for_all_roots(collective, name, root):
    verify(schedule(collective, name, topology="(1,2),(2)@3,0,4,2,1", root=root))


@pytest.mark.parametrize("collective", ["allreduce", "reduce"])
def test_rank_order_is_lost_and_its_proof_refuses(collective):
    made = schedule(collective, "leader", topology="2x2@0,2,1,3")
    assert not verify(made).rank_order
    with pytest.raises(ProofError, match="rank order"):
        verify(made, commutative=False)


@pytest.mark.parametrize("kind", ["gather", "scatter"])
def test_a_hierarchical_builder_of_ones_own_for_any_collective(kind):
    """What has no hierarchical algorithm in the table is put into terms of ranks too."""
    entry = replace(ALGORITHMS[kind]["binomial"], hierarchical=True, rounds=None, sent=None,
                    build=lambda rank, topology, root:
                    ALGORITHMS[kind]["binomial"].build(rank, topology.size, root))
    for root in range(6):
        verify(schedule(kind, entry, topology="2x3@4,0,3,1,5,2", root=root))


def test_messages_stay_inside_groups_where_they_did():
    made = schedule("allreduce", "rails", topology="4x4@0-12/4,1-13/4,2-14/4,3-15/4")
    for rank in range(16):
        mine = next(group for group in made.topology.groups() if rank in group)
        crossing = [step.peer for steps in made.program(rank).rounds for step in steps
                    if step.kind == SEND and step.peer not in mine]
        # Only with ranks that have the same place in the other groups.
        assert crossing and {peer // 4 for peer in crossing} == {rank // 4}


def test_an_order_that_is_none_changes_nothing():
    plain, same = (schedule("allgather", "rails", topology=t) for t in ("2x3", "2x3@0-5"))
    assert plain == same and str(plain) == str(same) and plain.digest == same.digest
    other = schedule("allgather", "rails", topology="2x3@0-4/2,1-5/2")
    assert other != plain and other.digest != plain.digest
    assert "topology=2x3@0-4/2,1-5/2" in other.title


def test_only_hierarchical_algorithms_look_at_the_order():
    assert schedule("allreduce", "ring", topology="2x2@0,2,1,3") == schedule("allreduce", "ring", 4)


@pytest.mark.parametrize(("collective", "name"), HIERARCHICAL)
def test_large_programs_are_the_same_size_and_made_quickly(collective, name):
    layout = dealt("64x64")
    plain = schedule(collective, name, topology=layout.plain).program(layout.positions[67])
    start = time.perf_counter()
    made = schedule(collective, name, topology=layout).program(67)
    assert time.perf_counter() - start < 5  # what takes p times as long takes minutes
    messages = [[(step.peer, sum(span.stop - span.start for span in step.spans))
                 for steps in program.rounds for step in steps if step.peer >= 0]
                for program in (plain, made)]
    assert messages[1] == [(layout.order[peer], count) for peer, count in messages[0]]
    assert len(made.scratch) == len(plain.scratch)


def test_a_bad_order_is_refused():
    with pytest.raises(ArgumentError, match="topology: .*every rank"):
        schedule("allreduce", "rails", topology="2x2@0,0,1,3")
    with pytest.raises(ArgumentError, match="4 ranks.*6"):
        schedule("allreduce", "rails", 6, topology="2x2@0,2,1,3")
