"""Compositions: levels of groups, and where the input goes."""

import pytest

from hpccoll.algorithms import schedule
from hpccoll.algorithms.hierarchical.composition import WORK, levels, place_input
from hpccoll.ir.collectives import IN, OUT, TMP
from hpccoll.ir.schedule import RECV, SEND, Program, at, copy, recv, send
from hpccoll.ir.topology import GroupBounds, Topology


def test_levels_go_from_all_ranks_to_single_ones():
    around = levels(Topology.parse("(2,3),(4)"), 3)
    assert [(list(level.groups), level.mine) for level in around] == [
        ([range(5), range(5, 9)], 0),
        ([range(2), range(2, 5)], 1),
        ([range(2, 3), range(3, 4), range(4, 5)], 1)]
    assert around[1].ranks == range(5)
    assert [list(around[0].leaders(root)) for root in (None, 7)] == [[0, 5], [0, 7]]
    assert around[0].leaders()[-1] == 5 and around[2].groups[1:] == [range(3, 4), range(4, 5)]
    assert (around[0].least, around[0].shapes, around[0].shape(1)) == (4, ((2, 3), (4,)), (4,))
    assert (around[0].group_of(7), around[1].group_of(7)) == (1, 0)


@pytest.mark.parametrize(("shape", "rank", "sizes"), [
    ("1", 0, [1]), ("1x1x1", 0, [1]), ("4", 2, [4]), ("1x4", 2, [4]), ("4x1", 2, [4]),
    ("1x2x1x2", 3, [2, 2]), ("5,1,1", 0, [3, 5]), ("5,1,1", 6, [3])])
def test_levels_pass_over_groups_of_one(shape, rank, sizes):
    assert [len(level.groups) for level in levels(Topology.parse(shape), rank)] == sizes


def test_a_rank_that_only_sends_needs_no_scratch():
    program = Program(((send(1, at(WORK, 0)),),))
    assert place_input(WORK, program, 2) == Program(((send(1, at(IN, 0)),),))
    found = place_input(WORK, Program(((recv(1, at(WORK, 0)),),)), 2)
    assert found.rounds == ((copy(at(TMP, 0, 2), at(IN, 0, 2)),), (recv(1, at(TMP, 0)),))
    assert list(found.scratch) == [0, 1]
    leaf = schedule("reduce", "leader", topology="2x2").program(1)
    assert leaf.scratch == () and leaf.rounds[-1][0].kind == SEND


def test_work_in_the_output_leaves_no_scratch():
    for name in ("leader", "multi_leader", "rails"):
        made = schedule("allreduce", name, topology="3,5,4")
        assert all(not program.scratch for program in made.programs())


def test_receives_land_where_the_result_belongs():
    """Rails allgather moves every block straight into its slot of the output."""
    made = schedule("allgather", "rails", topology="2x3")
    for program in made.programs():
        landed = [slot for steps in program.rounds for step in steps if step.kind == RECV
                  for span in step.spans for slot in range(span.start, span.stop)
                  if span.buffer == OUT]
        assert len(landed) == len(set(landed)) == 5


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


def test_bounds_of_unequal_groups():
    topology = Topology.parse("3,5,4")
    bounds = topology.bounds(topology.tree)
    assert [bounds.group(i) for i in range(3)] == [range(3), range(3, 8), range(8, 12)]
    assert [bounds.index_of(position) for position in (0, 2, 3, 7, 8, 11)] == [0, 0, 1, 1, 2, 2]
    assert (bounds.least, bounds.shapes) == (3, (3, 5, 4))
    assert topology.bounds(topology.tree) is bounds and topology.bounds(5).number == 5
    assert len({Topology.parse("3,5,4"), topology}) == 1
