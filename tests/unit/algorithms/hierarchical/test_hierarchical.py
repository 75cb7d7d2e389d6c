"""Hierarchical algorithms: what crosses between groups, and who owns which blocks."""

import pytest

from hpccoll.algorithms import ALGORITHMS, schedule
from hpccoll.algorithms.hierarchical.bruck import windows
from hpccoll.algorithms.hierarchical.census import digits
from hpccoll.algorithms.hierarchical.composition import WORK, inside, levels, place_input
from hpccoll.algorithms.hierarchical.exchanges import (
    ALLGATHER,
    BCAST,
    REDUCE_SCATTER,
    backwards,
    exchange,
    on_vector,
    run_among_leaders,
)
from hpccoll.algorithms.hierarchical.ownership import (
    columns,
    cut,
    nblocks,
    ownership,
    rooted_nblocks,
)
from hpccoll.algorithms.hierarchical.rails_blocks import rails
from hpccoll.errors import ArgumentError, ScheduleError
from hpccoll.ir.collectives import COLLECTIVES, IN, OUT, TMP
from hpccoll.ir.passes import Piece
from hpccoll.ir.schedule import RECV, SEND, Program, at, copy, recv, send
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


# Alltoall on groups: blocks cross once, in few messages
@pytest.mark.parametrize("name", ["two_phase", "leader"])
@pytest.mark.parametrize("shape", ["4x4", "3,5,4", "1,4,2", "2x2x3"])
def test_alltoall_blocks_cross_once(name, shape):
    made = schedule("alltoall", name, topology=shape)
    inside = sum(len(group) ** 2 for group in made.topology.groups())
    assert sum(crossing_blocks(made)) == made.size ** 2 - inside


def test_two_phase_sends_one_message_to_each_other_group():
    made = schedule("alltoall", "two_phase", topology="5x3")
    assert {crossing(made, rank) for rank in range(15)} == {(12, 4)}


# Lane Bruck: several rounds between groups
@pytest.mark.parametrize("shape", ["9x2", "16x3", "10x3", "2,5,3,2,2,4,2,2,3,2"])
def test_lane_bruck_in_several_rounds(shape):
    made = schedule("allgather", "lane_bruck", topology=shape)
    proof = prove(made, made.collective, next(iter(cases(made, made.collective))))
    assert made.rounds in (None, proof.rounds) and made.sent in (None, proof.sent)


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


def test_windows_end_as_all_other_groups():
    """Lanes' sums lie side by side: those of t lanes are longer by one."""
    for k in range(1, 9):
        for count in range(2, 200):
            covered = 0
            for digit in digits(count, k):
                assert 0 <= digit <= k
                covered += digit * (covered + 1) + (k - digit) * covered
            assert covered == count - 1
            assert len(digits(count, k)) == len(windows(count, k))
            assert 1 + sum(min(window * k, count - window)
                           for window in windows(count, k)) == count
    assert digits(1, 4) == [] == windows(1, 4)


# Compositions: levels of groups, and where the input goes
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


# Flat algorithms between the groups of a level
PAIRS = Topology.parse("3x2")


def messages(program):
    return [(step.kind, step.peer, step.spans, step.side) for steps in program.rounds
            for step in steps if step.kind in (SEND, RECV)]


def test_only_leaders_take_part():
    level = levels(PAIRS, 2)[0]
    assert messages(run_among_leaders(BCAST, level, 2, [(0,)], inside(OUT), root=5)) == [
        (RECV, 5, (at(OUT, 0),), "")]
    assert run_among_leaders(BCAST, level, 3, [(0,)], inside(OUT), root=5) == Program(())


def test_owners_exchange_their_blocks():
    level = levels(PAIRS, 3)[0]
    players = [[1, 3, 5]] * 3
    blocks = [[Piece(ranks, [number])] for number, ranks in enumerate(players)]
    forth = messages(exchange(ALLGATHER, level, blocks, inside(OUT)))
    back = messages(exchange(REDUCE_SCATTER, level, blocks, inside(OUT)))
    assert {peer for _, peer, *_ in forth} == {1, 5}
    turned = {(SEND if kind == RECV else RECV, peer, spans) for kind, peer, spans, _ in back}
    assert turned == {(kind, peer, spans) for kind, peer, spans, _ in forth}
    assert all(side for kind, *_, side in back if kind == RECV)


def test_what_reduces_has_no_way_back():
    with pytest.raises(ScheduleError, match="reverse"):
        backwards(REDUCE_SCATTER).build(0, 3)


def test_others_do_nothing_on_a_vector():
    place = dict.fromkeys((IN, OUT), lambda keys: (at(OUT, 0),))
    assert on_vector(BCAST, [4, 7], 5, place, 0) == Program(())
    assert messages(on_vector(BCAST, [4, 7], 4, place, 0)) == [(SEND, 7, (at(OUT, 0),), "")]


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


@pytest.mark.parametrize("shape", SHAPES + LARGE)
@pytest.mark.parametrize("leaders", [1, 2, 99])
def test_owners_partition_the_blocks(shape, leaders):
    """Every rank that may own has its part, up to one block a level."""
    topology = Topology.parse(shape)
    n = nblocks(topology, leaders)
    found = ownership(topology.tree, n, leaders)
    assert len(found) == n and set(found) <= set(range(topology.size))
    if leaders == 1:
        assert set(found) == {0}
    if leaders == 99 and topology.depth == 1:
        assert {found.count(rank) for rank in range(topology.size)} == {n // topology.size}


def test_columns_are_the_intersections_of_shares():
    found = columns((2, 3), 6, 9)
    assert [(column.owners, column.keys, column.before) for column in found] == [
        ({2: 0, 3: 0}, [0, 1], 0), ({2: 0, 3: 1}, [2], 2),
        ({2: 1, 3: 1}, [3], 3), ({2: 1, 3: 2}, [4, 5], 4)]


def test_larger_shares_move_on_from_cut_to_cut():
    assert cut(range(5), 3, 0) == [range(2), range(2, 4), range(4, 5)]
    assert cut(range(5, 9), 3, 5) == [range(5, 6), range(6, 7), range(7, 9)]
    assert cut([1, 4, 6], 2, 0) == [[1, 4], range(6, 7)]


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


# Rails of blocks: ranks that stand for absent ones
def test_a_present_rank_stands_for_absent_ones():
    """Rank 3 is alone in its group and swaps with all three of the other one."""
    (level, blocks), = rails(Topology.parse("3,1"), 3)
    assert level.mine == 1
    assert [[(piece.ranks, piece.keys) for piece in pieces] for pieces in blocks] == [
        [([0, 3], [0]), ([1, 3], [1]), ([2, 3], [2])], [([0, 3], [3])]]
