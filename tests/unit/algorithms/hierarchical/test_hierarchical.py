"""Hierarchical algorithms: proofs on all shapes of groups, and what crosses between groups."""

import pytest

from hpccoll.algorithms import ALGORITHMS, schedule
from hpccoll.errors import ArgumentError
from hpccoll.ir.collectives import COLLECTIVES
from hpccoll.ir.schedule import SEND
from hpccoll.ir.topology import Topology
from hpccoll.proof.verifier import verify
from support.folded import folded

SHAPES = ["1", "5", "1x4", "4x1", "2x2", "2x3", "3x2", "2x4", "4x2x2", "2x2x2x2", "3,5,4", "1,4,2",
          "(2,3),(4)", "5,1,1", "2x(1,3)", "((1,2),3),(2,1)"]
#: Proved for some algorithms only, to save time.
LARGE = ["16x8"]
HIERARCHICAL = [(collective, name) for collective, table in ALGORITHMS.items()
                for name, entry in table.items() if entry.hierarchical]
ROOTED = [(collective, name) for collective, name in HIERARCHICAL
          if COLLECTIVES[collective].rooted]


def crossing(made, rank):
    """Blocks and messages that a rank sends out of its largest group."""
    own = next(group for group in made.topology.groups() if rank in group)
    sends = [step for steps in made.program(rank).rounds for step in steps
             if step.kind == SEND and step.peer not in own]
    return sum(span.stop - span.start for step in sends for span in step.spans), len(sends)


def crossing_blocks(made):
    return [crossing(made, rank)[0] for rank in range(made.size)]


def test_every_collective_that_gains_has_hierarchical_algorithms():
    names = {collective: {n for c, n in HIERARCHICAL if c == collective}
             for collective, _ in HIERARCHICAL}
    assert names == {
        "allreduce": {"leader", "multi_leader", "rails", "crossing", "lane_census"},
        "bcast": {"leader", "rails"}, "reduce": {"leader", "rails"},
        "allgather": {"leader", "rails", "lane_bruck"},
        "reduce_scatter": {"leader", "rails"}, "barrier": {"leader"},
        "alltoall": {"leader", "two_phase"}}


@pytest.mark.long
@pytest.mark.slow
@folded("shape", SHAPES)
@folded("collective, name", HIERARCHICAL)
def test_proof_with_the_order_that_the_table_claims(collective, name, shape):
    made, entry = schedule(collective, name, topology=shape), ALGORITHMS[collective][name]
    proof = verify(made, commutative=not entry.rank_order)
    assert proof.replicas_identical or collective != "allreduce" or entry.exact_only


@pytest.mark.slow
@folded("shape", SHAPES)
@folded("collective, name", ROOTED)
def test_proof_for_another_root(collective, name, shape):
    root = Topology.parse(shape).size // 2
    verify(schedule(collective, name, topology=shape, root=root),
           commutative=not ALGORITHMS[collective][name].rank_order)


@pytest.mark.parametrize(("collective", "name"), ROOTED)
def test_proof_for_all_roots(collective, name):
    for root in range(5):
        verify(schedule(collective, name, topology="(1,2),(2)", root=root),
               commutative=not ALGORITHMS[collective][name].rank_order)


@pytest.mark.slow
@pytest.mark.parametrize("shape", LARGE)
@pytest.mark.parametrize(("collective", "name"), [
    ("allreduce", "leader"), ("allreduce", "rails"), ("bcast", "rails"), ("reduce", "leader")])
def test_proof_of_larger_shapes(collective, name, shape):
    verify(schedule(collective, name, topology=shape))


@pytest.mark.parametrize("shape", ["4x4", "2x2x2", "8"])
def test_regular_shapes_have_closed_forms(shape):
    """What verify confirms must not be empty."""
    for collective, name in HIERARCHICAL:
        if name != "multi_leader":
            assert schedule(collective, name, topology=shape).rounds is not None
    assert schedule("allreduce", "rails", topology="2,3").rounds is None


def test_a_topology_may_be_left_out():
    assert schedule("allreduce", "rails", 6).topology == Topology(6)


def test_parameters_are_checked():
    with pytest.raises(ArgumentError, match="leaders: .*positive.*0"):
        schedule("allreduce", "multi_leader", topology="2x2", leaders=0)


@pytest.mark.parametrize("shape", ["4x4", "3,5,4", "2x2x3", "1,4,2"])
@pytest.mark.parametrize(("collective", "name"), [
    ("bcast", "leader"), ("bcast", "rails"), ("reduce", "leader"), ("reduce", "rails"),
    ("allgather", "leader"), ("allgather", "rails"), ("allgather", "lane_bruck"),
    ("reduce_scatter", "leader"), ("reduce_scatter", "rails")])
def test_every_block_crosses_once_to_every_other_group(collective, name, shape):
    made = schedule(collective, name, topology=shape)
    n = made.nblocks if COLLECTIVES[collective].payload == "vector" else made.size
    assert sum(crossing_blocks(made)) == n * (len(made.topology.groups()) - 1)


@pytest.mark.parametrize(("shape", "between"), [
    ("2x4", 1), ("5x4", 1), ("6x4", 2), ("25x4", 2), ("26x4", 3), ("9x2", 2), ("4x2x2", 1),
    ("9", 4)])
def test_lanes_take_few_rounds_between_groups(shape, between):
    """One message a rank for every digit of the number of groups, base k + 1."""
    for collective, name in (("allgather", "lane_bruck"), ("allreduce", "lane_census")):
        made = schedule(collective, name, topology=shape)
        assert max(crossing(made, rank)[1] for rank in range(made.size)) == between


@pytest.mark.parametrize(("collective", "name"), [("allgather", "rails"),
                                                  ("reduce_scatter", "rails")])
def test_lanes_use_all_ranks_alike(collective, name):
    assert set(crossing_blocks(schedule(collective, name, topology="4x3"))) == {3}
    assert set(crossing_blocks(schedule(collective, name, topology="2x2x2"))) == {1}


@pytest.mark.parametrize(("collective", "name"), HIERARCHICAL)
def test_a_rank_of_4096_has_few_steps(collective, name):
    """Logarithmically many, or a few for each other group and each rank of the group."""
    made = schedule(collective, name, topology="64x64")
    rounds = made.program(1).rounds
    assert sum(map(len, rounds)) <= (3 * (64 + 64) if collective == "alltoall" else 76)
