"""Plans: layouts of real calls, segments, and that what runs is what was proved."""

import pytest

from hpccoll.algorithms import schedule
from hpccoll.calls import layouts
from hpccoll.errors import ScheduleError
from hpccoll.ir.collectives import IN, OUT, block_counts
from hpccoll.ir.lowering import segments
from hpccoll.proof.cases import cases, lower_all
from hpccoll.runtime.planning import plan
from hpccoll.testing import every
from hpccoll.testing.world import Problem, Seat


@pytest.mark.parametrize("size", [1, 2, 3])
def test_what_runs_is_what_was_proved(size):
    for _, made in every(size):
        for case in cases(made, made.collective):
            sizes = [case.size_of(key) for key in range(case.keys)]
            if made.collective.payload == "vector":
                if sizes != block_counts(sum(sizes), made.nblocks):
                    continue  # a proof may choose block sizes that no vector is cut into
                sizes = [sum(sizes)]
            elif made.collective.payload == "none":
                sizes = []
            for rank in range(size):
                seat = Seat(made, Problem(made.collective, size, sizes, made.root), rank,
                            case.in_place, segment=case.segment)
                proved = lower_all(made, made.collective, rank, case)
                # A rank that only sees small blocks of its own may know of fewer segments.
                assert list(seat.plan.segments) == proved[:len(seat.plan.segments)], made.title
                assert not any(any(segment.program.phases)
                               for segment in proved[len(seat.plan.segments):])


def test_a_plan_sums_up_its_lanes():
    made = schedule("allreduce", "ring", 4)
    layout, longest = layouts.vector_layout(made, 1, 22, False)
    assert longest == 6
    whole, cut = (plan.make(made, 1, layout, longest, segment) for segment in (0, 2))
    assert (len(whole.segments), whole.depth, whole.messages, whole.scratch) == (1, 1, 12, 6)
    assert (len(cut.segments), cut.depth, cut.messages, cut.scratch) == (3, plan.DEPTH, 36, 2)
    assert list(cut.segments) == segments(made.program(1), layout, 6, 2)


@pytest.mark.parametrize("longest, itemsize, nbytes, shared, expected", [
    (100, 4, 400, True, 0), (101, 4, 400, True, 64), (101, 4, 400, False, 100),
    (1000, 8, 400, True, 50), (0, 8, 400, True, 0), (5, 8, 1, True, 1), (5, 8, 1, False, 1)])
def test_segments_are_evened_out_where_everyone_knows_the_longest(longest, itemsize, nbytes,
                                                                  shared, expected):
    assert plan.segment_elements(itemsize, longest, nbytes, shared) == expected


@pytest.mark.parametrize("name, rank, in_place, expected", [
    ("allgather", 1, False, {OUT: [9, 4, 0], IN: [5]}),
    ("allgather", 1, True, {OUT: [9, 4, 0], IN: [4]}),
    ("gather", 0, False, {OUT: [9, 4, 0], IN: [5]}),
    ("gather", 1, False, {IN: [5]}),
    ("scatter", 0, False, {IN: [9, 4, 0], OUT: [5]}),
    ("scatter", 0, True, {IN: [9, 4, 0], OUT: [9]}),
    ("scatter", 2, False, {OUT: [5]}),
])
def test_blocks_at_displacements(name, rank, in_place, expected):
    layout, longest = layouts.block_layout(schedule(name, "linear", 3), rank, [2, 3, 4], in_place,
                                        [9, 4, 0], 0, 5)
    assert {b: [e.offset for e in places] for b, places in layout.places.items()} == expected
    assert longest == 4


def test_scratch_for_pairs_is_sized_like_the_block_that_it_is_for():
    counts = [[1, 2, 3], [4, 5, 6], [7, 8, 9]]  # from, to
    made = schedule("alltoall", "pairwise", 3)
    layout, _ = layouts.pair_layout(made, 1, counts[1], [row[1] for row in counts], [0] * 3,
                                    [0] * 3)
    assert [layout.scratch(key) for key in (3, 4, 5, 1, 7)] == [4, 5, 6, 2, 8]
    with pytest.raises(ScheduleError, match="rank 0.*rank 2"):
        layout.scratch(2)
    uniform = schedule("alltoall", "bruck", 3)
    layout, _ = layouts.pair_layout(uniform, 1, [6] * 3, [6] * 3, [0] * 3, [0] * 3)
    assert {layout.scratch(key) for key in range(9)} == {6}


def test_plans_of_all_ranks_agree_on_segments_nobody_talks_about():
    # Ranks of an alltoallv know only their own blocks: the number of segments may differ.
    made = schedule("alltoall", "pairwise", 3)
    problem = Problem(made.collective, 3, [0, 9, 0, 1, 0, 0, 0, 2, 0])
    counts = [len(Seat(made, problem, rank, segment=4).plan.segments) for rank in range(3)]
    assert counts == [3, 3, 1]
