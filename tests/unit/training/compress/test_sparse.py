"""The sparse schemes: how many, which ones, and how many at the beginning."""

import numpy
import pytest
from unit.training.compress.runs import drifting, run

from hpccoll.training import compress
from hpccoll.training.compress.randomk import RandomK
from hpccoll.training.compress.topk import TopK

COUNT = 1000


def test_the_density_falls_by_the_same_factor():
    scheme = TopK(density=0.01, warmup=4)
    assert [scheme.share(10_000, step) for step in (0, 1, 2, 3, 4, 5, None)] == [
        10_000, 3162, 1000, 316, 100, 100, 100]
    assert [scheme.share(count, None) for count in (1, 3, 100, 250)] == [1, 1, 1, 2]
    assert TopK(density=1).share(7, None) == 7


@pytest.mark.parametrize("form", ["topk:density=0.02", "topk:density=0.02,method=sampled"])
def test_topk_sends_the_largest_of_every_rank(form):
    ran = run(form, 3, COUNT, 1)
    sent = 0
    for rank in range(3):
        mine = drifting(rank, 0, COUNT)
        order = numpy.argsort(-numpy.abs(mine), kind="stable")[:20]
        kept = ran[rank].residual
        went = numpy.flatnonzero(mine != kept)
        assert set(went) <= set(order) and (kept[went] == 0).all()
        assert went.size == 20 or "sampled" in form and went.size > 5
        sent = sent + numpy.where(mine != kept, mine, 0)
    assert ran[0].outs[0] == pytest.approx(sent / 3)


def test_pairs_give_way_where_everything_is_fewer_bytes():
    scheme, dense = TopK(density=0.3), compress.parse("none")
    assert scheme.wire_bytes([(100,)], 2) == 30 * 8 < dense.wire_bytes([(100,)], 2)
    assert scheme.wire_bytes([(100,)], 4) == dense.wire_bytes([(100,)], 4)
    for one in run("topk:density=0.3", 4, 100, 2, dtype="f4"):
        assert not one.residual.any()


def test_randomk_draws_alike_everywhere_and_anew_in_every_step():
    scheme = RandomK(density=0.1)
    draws = [scheme.draw(COUNT, step) for step in range(200)]
    assert all(one.size == 100 and (numpy.diff(one) > 0).all() for one in draws)
    assert numpy.unique(numpy.concatenate(draws)).size == COUNT
    assert (draws[0] == RandomK(density=0.1).draw(COUNT, 0)).all()
    assert (draws[0] != RandomK(density=0.1, seed=1).draw(COUNT, 0)).any()
    for one in run("randomk:density=0.1", 3, COUNT, 2):
        assert set(numpy.flatnonzero(one.outs[1])) <= set(draws[1])


@pytest.mark.parametrize("size", [1, 3])
def test_csc_sends_the_chunks_whose_sums_are_largest(size):
    form, chunk = "csc:density=0.2,chunk=64", 64  # 16 chunks, the last one of 40
    values = [drifting(rank, 0, COUNT) for rank in range(size)]
    norms = numpy.add.reduceat(sum(map(numpy.abs, values)), range(0, COUNT, chunk))
    best = numpy.argsort(-norms, kind="stable")[:3]
    wanted = numpy.where(numpy.isin(numpy.arange(COUNT) // chunk, best), sum(values), 0) / size
    for one in run(form, size, COUNT, 1):
        assert one.outs[0] == pytest.approx(wanted)


def test_csc_sends_a_short_last_chunk():
    def inputs(rank, step, count):
        return numpy.where(numpy.arange(count) >= 960, 840.0 * (rank + 1), 1.0)

    for one in run("csc:density=0.1,chunk=64", 2, COUNT, 1, inputs=inputs):
        assert (one.outs[0][960:] == 1260).all() and not one.residual[960:].any()
        assert numpy.count_nonzero(one.outs[0]) == 40 + 64 and (one.residual[64:960] == 1).all()


def test_chunks_of_equal_norm_go_from_the_front():
    for one in run("csc:density=0.25,chunk=10", 2, 80, 3,
                   inputs=lambda rank, step, count: numpy.ones(count)):
        sent = [sorted(set(numpy.flatnonzero(out) // 10)) for out in one.outs]
        assert sent == [[0, 1], [2, 3], [4, 5]]
