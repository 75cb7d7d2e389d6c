"""Two phases: how long blocks are, who owns what, and the bounds of rounded codes."""

import numpy
import pytest
from unit.training.compress.runs import RANKS, drifting, run

from hpccoll.training import compress
from hpccoll.training.compress.int8 import Int8
from hpccoll.training.compress.onebit import OneBit
from support.threads import run_ranks


@pytest.mark.parametrize("size", RANKS)
def test_owners_share_all_elements(size):
    for form in ("onebit", "int8", "dithering:block=64"):
        for count in (1, size - 1 or 2, size + 1, 31, 32, 33, 10_007):
            def owned(comm):
                mine = compress.parse(form).start(comm, [(count,)])
                return mine.owned, mine.block
            found = run_ranks(size, owned)
            assert [place for one, _ in found for place in range(count)[one]] == [*range(count)]
            lengths = [one.stop - one.start for one, _ in found]
            assert max(lengths) - min(lengths) <= 2 * found[0][1]


def test_no_block_is_longer_than_a_share():
    assert [OneBit(block=2048).block_length(count, 4) for count in (1, 128, 129, 4000, 9000)] == [
        32, 32, 64, 1024, 2048]
    assert Int8().wire_bytes([(1024,)], 4) == 2 * 4 * (256 + 4) * 3 / 4
    assert OneBit().wire_bytes([(1024,)], 4) == 2 * 4 * (256 / 8 + 4) * 3 / 4


@pytest.mark.parametrize("size", RANKS)
def test_int8_is_wrong_by_half_a_step_of_each_rounding(size):
    count, block = 541, 32
    blocks = numpy.arange(count) // block

    def steps_of(values):
        starts = range(0, count, block)
        return (numpy.maximum.reduceat(numpy.abs(values), starts) / 127)[blocks]

    given = [drifting(rank, 0, count) for rank in range(size)]
    mean = sum(given) / size
    bound = sum(map(steps_of, given)) / size / 2 + steps_of(mean) / 2 * 1.02
    for one in run("int8:block=32", size, count, 1):
        error = numpy.abs(one.outs[0] - mean)
        assert (error <= bound * 1.001).all() and error.max() > 0.2 * bound.max()


@pytest.mark.parametrize("form", ["onebit", "int8", "dithering"])
def test_large_buckets_have_the_results_of_small_ones(form):
    """Rows are worked on in slices; blocks know nothing of each other."""
    count = (1 << 16) + 300
    values = numpy.random.default_rng(0).standard_normal(count).astype("f4")
    whole = run(form, 2, count, 1, inputs=lambda rank, step, n: values * (1 + rank))[0].outs[0]
    if form == "dithering":  # chance falls otherwise
        assert numpy.abs(whole - 1.5 * values).max() < 2 * 1.5 * 2 * 5 / 7
        return
    block = compress.parse(form).block
    part = slice(10 * block, 26 * block)
    small = run(form, 2, 16 * block, 1, inputs=lambda rank, step, n: values[part] * (1 + rank))
    assert (small[0].outs[0] == whole[part]).all()
