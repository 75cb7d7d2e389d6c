"""Cases: the samples of block sizes."""

import pytest

from hpccoll.algorithms import ALGORITHMS, schedule
from hpccoll.errors import HpccollError
from hpccoll.ir.collectives import ALLREDUCE
from hpccoll.proof.cases import BlockSizes, cases, lower_all, most_scratch_blocks
from support.folded import folded


def test_samples_cover_the_hard_sizes():
    ring = schedule("allreduce", "ring", 4)
    made = list(cases(ring, ring.collective))
    totals = {sum(map(c.size_of, range(c.keys))) for c in made}
    assert {4, 6, 9, 10} <= totals
    sizes = [[c.size_of(key) for key in range(4)] for c in made]
    assert any(len(set(each)) == 4 and all(each) for each in sizes), "all different"
    assert any(0 in each[1:-1] for each in sizes), "some empty in between"
    assert any(c.segment for c in made)
    for case in made:
        if case.in_place:
            assert sum(map(case.size_of, range(case.keys))), "in place is not vacuous"
    assert sum(case.in_place for case in made) == 2
    assert len(list(cases(schedule("allreduce", "linear", 200), ALLREDUCE))) == 1


@pytest.mark.slow
@folded("collective", [name for name in ALGORITHMS if name != "barrier"])
def test_no_rank_needs_more_scratch_than_counted(collective):
    """Also for uneven blocks, in place or not; and never more than four blocks for every rank."""
    for algorithm in ALGORITHMS[collective]:
        for size in (2, 3, 4, 8):
            try:
                made = schedule(collective, algorithm, size)
            except HpccollError:  # not for this number of ranks
                continue
            most, cut = most_scratch_blocks(made), 5
            assert most <= 4 * size
            sizes = [lambda key: 13] if made.uniform else [lambda key: 13, lambda key: 13 - key % 3]
            for size_of in sizes:
                for in_place in {False, bool(made.collective.in_place)}:
                    case = BlockSizes(size_of, 3, in_place, cut)
                    assert all(each.program.scratch <= most * cut for rank in range(size)
                               for each in lower_all(made, made.collective, rank, case))
