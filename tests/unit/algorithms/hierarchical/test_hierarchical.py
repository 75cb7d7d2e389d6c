"""Hierarchical algorithms: what crosses between groups, and who owns which blocks."""

import pytest

from hpccoll.algorithms import ALGORITHMS, schedule
from hpccoll.algorithms.hierarchical.ownership import (
    nblocks,
    rooted_nblocks,
)
from hpccoll.errors import ArgumentError
from hpccoll.ir.collectives import COLLECTIVES
from hpccoll.ir.schedule import RECV, SEND
from hpccoll.ir.topology import GroupBounds, Topology
from hpccoll.proof.cases import cases
from hpccoll.proof.verifier import prove, verify
from support.folded import folded

# Hierarchical algorithms: proofs on all shapes of groups, and what crosses between groups
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


# Alltoall on groups: blocks cross once, in few messages
@pytest.mark.parametrize("name", ["two_phase", "leader"])
@pytest.mark.parametrize("shape", ["4x4", "3,5,4", "1,4,2", "2x2x3"])
def test_alltoall_blocks_cross_once(name, shape):
    made = schedule("alltoall", name, topology=shape)
    inside = sum(len(group) ** 2 for group in made.topology.groups())
    assert sum(crossing_blocks(made)) == made.size ** 2 - inside


@pytest.mark.parametrize("shape", ["2x4", "3x2", "9x2", "4x3", "16x3", "2x2x2x2"])
def test_lane_bruck_deals_out_the_last_round_too(shape):
    made = schedule("allgather", "lane_bruck", topology=shape)
    groups = made.topology.groups()
    assert made.sent == made.size - 1
    assert set(crossing_blocks(made)) == {len(groups) - 1}


# Lane census: windows of groups
@pytest.mark.parametrize("k", [1, 2, 3, 9])
@pytest.mark.parametrize("shape", ["6", "4x3", "7x2", "2x2x2", "1,4,2", "3,4,3,5,3,3", "9x4"])
def test_any_number_of_lanes(k, shape):
    """Some of each case: several digits, no power of two of lanes, ranks that are no lane."""
    made = schedule("allreduce", "lane_census", topology=shape, k=k)
    if made.size < 12:
        verify(made)
    else:
        proof = prove(made, made.collective, next(iter(cases(made, made.collective))))
        assert made.rounds in (None, proof.rounds) and made.sent in (None, proof.sent)


def test_work_in_the_output_leaves_no_scratch():
    for name in ("leader", "multi_leader", "rails"):
        made = schedule("allreduce", name, topology="3,5,4")
        assert all(not program.scratch for program in made.programs())


@pytest.mark.parametrize("collective, name", [
    ("allreduce", "leader"), ("allreduce", "lane_census"), ("allreduce", "crossing"),
    ("bcast", "leader"), ("bcast", "rails"), ("reduce", "leader"), ("reduce", "rails"),
    ("barrier", "leader")])
def test_a_program_looks_at_few_of_many_groups(monkeypatch, collective, name):
    """It costs its own steps: with ``tuple(level.groups)`` in ``levels`` this test fails."""
    made = schedule(collective, name, topology="4096x4")
    made.program(5)  # what all ranks share is found once
    looks = []
    group = GroupBounds.group
    monkeypatch.setattr(GroupBounds, "group", lambda self, index: looks.append(index)
                        or group(self, index))
    made.program(4096)
    assert 0 < len(looks) < 600


def messages(program):
    return [(step.kind, step.peer, step.spans, step.side) for steps in program.rounds
            for step in steps if step.kind in (SEND, RECV)]


# Leaders: each group speaks through one rank
@pytest.mark.parametrize(("collective", "name"), [("allreduce", "leader"),
                                                  ("allreduce", "multi_leader")])
@pytest.mark.parametrize("shape", ["4x4", "3,5,4", "1,4,2"])
def test_only_leaders_cross(collective, name, shape):
    made = schedule(collective, name, topology=shape)
    for group in made.topology.groups():
        talking = [rank for rank in group if crossing(made, rank)[1]]
        most = dict(made.params).get("leaders", 1)
        assert talking == list(group[:most])


# Ownership: every rank has its part of the blocks
@pytest.mark.parametrize("shape", ["64x64", "3,5,4", "1,1,1", "16x(3,4,5)", "64x16"])
def test_blocks_are_as_many_as_ranks_or_twice(shape):
    topology = Topology.parse(shape)
    assert nblocks(topology) <= 2 * topology.size
    assert rooted_nblocks(topology) <= 2 * topology.size
    if shape == "64x16":
        assert (nblocks(topology), rooted_nblocks(topology)) == (1024, 16)
        assert nblocks(topology, 2) == 128


# Rails: what crosses between groups
@pytest.mark.parametrize("leaders", [1, 3, 9])
@pytest.mark.parametrize("shape", ["6", "2x3", "2x2x2", "1,4,2", "((1,2),3),(2,1)"])
def test_any_number_of_leaders(leaders, shape):
    verify(schedule("allreduce", "multi_leader", topology=shape, leaders=leaders))


@pytest.mark.parametrize(("shape", "across", "ranks"), [
    ("4x4", 4, 4), ("2x8", 2, 8), ("8x2", 8, 2), ("3x5", 3, 5), ("4x2x3", 4, 6), ("2x2x2x2", 2, 8)])
def test_rails_send_what_blueconnect_promises(shape, across, ranks):
    """A rank's share is 1/ranks of the vector, and (m-1)/m of it cross, once each way."""
    made = schedule("allreduce", "rails", topology=shape)
    share = made.nblocks // ranks
    assert share * ranks == made.nblocks and share % across == 0
    assert set(crossing_blocks(made)) == {2 * share * (across - 1) // across}


@pytest.mark.parametrize("shape", ["3,5,4", "1,4,2", "5,1,1", "(2,3),(4)", "7,9,8,1"])
def test_rails_between_unequal_groups_are_complete_and_balanced(shape):
    """Groups together send no more than equal ones would, and no rank more than its share."""
    made = schedule("allreduce", "rails", topology=shape)
    groups = made.topology.groups()
    found = crossing_blocks(made)
    assert sum(found) == 2 * made.nblocks * (len(groups) - 1)
    for group in groups:
        share = -(-made.nblocks // len(group))
        assert all(found[rank] <= 2 * share for rank in group)
