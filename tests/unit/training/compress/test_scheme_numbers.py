"""NaN and infinity: the same error on all ranks, or through; a refused step leaves no trace."""

import numpy
import pytest
from unit.training.compress.runs import FEEDBACK, FORMS, drifting, run, shapes_of

from hpccoll.errors import ArgumentError, NonFiniteError
from hpccoll.training import compress
from support.threads import run_ranks

COUNT = 541
CARRYING = [one for one in FORMS if compress.parse(one).carries_nan]


def test_every_scheme_either_keeps_or_carries():
    assert {*CARRYING, *FEEDBACK} == set(FORMS)
    assert not {*CARRYING} & {*FEEDBACK}


def copied(mine):
    return {name: one.copy() if hasattr(one, "copy") else one
            for name, one in mine.state().items()}


@pytest.mark.slow(every=10)
@pytest.mark.parametrize("bad", [numpy.nan, numpy.inf])
@pytest.mark.parametrize("where", [0, 327, COUNT - 1])  # in matrices, in the rest, in a tail
@pytest.mark.parametrize("form", FEEDBACK)
def test_all_ranks_refuse_the_step_alike(form, where, bad):
    scheme = compress.parse(form)

    def work(comm):
        mine = scheme.start(comm, shapes_of(COUNT))
        twin = scheme.start(comm, shapes_of(COUNT))
        for step in range(scheme.warmup_steps + 2):
            for one in (mine, twin):
                compress.finish(one.reduce(drifting(comm.rank, step, COUNT)))
        values = drifting(comm.rank, 9, COUNT)
        if comm.rank in (0, 2):
            values[where] = bad
        with pytest.raises(NonFiniteError, match=r"ranks 0, 2") as caught:
            compress.finish(mine.reduce(values))
        assert caught.value.ranks == (0, 2) and f"'{scheme}'" in str(caught.value)
        after, before = mine.state(), twin.state()
        for name, one in before.items():
            assert numpy.array_equal(after[name], one) if name != "bases" else all(
                numpy.array_equal(*pair) for pair in zip(after[name], one))
        values, wanted = (drifting(comm.rank, 10, COUNT) for _ in range(2))
        compress.finish(mine.reduce(values))
        compress.finish(twin.reduce(wanted))
        assert (values == wanted).all()

    run_ranks(3, work)


@pytest.mark.parametrize("form", ["topk:density=0.5,warmup=3", "csc:density=0.5,warmup=3",
                                  "randomk:density=0.5,warmup=3", "powersgd:dense_steps=3"])
def test_dense_steps_of_schemes_refuse_too(form):
    def bad(rank, step, count):
        return numpy.full(count, numpy.inf if rank else 1.0)

    with pytest.raises(NonFiniteError, match=r"ranks? 1"):
        run(form, 2, 100, 1, inputs=bad)


@pytest.mark.parametrize("form", FEEDBACK)
def test_a_sum_that_overflows_is_nobodys(form):
    def huge(rank, step, count):
        return numpy.full(count, 3e38, "f4")

    with pytest.raises(NonFiniteError, match="sum|rank") as caught:
        run(form, 3, COUNT, 8, inputs=huge, dtype="f4")
    assert caught.value.ranks in ((), (0, 1, 2))


@pytest.mark.parametrize("bad", [numpy.nan, numpy.inf, -numpy.inf])
@pytest.mark.parametrize("form", CARRYING)
def test_others_carry_it(form, bad):
    def inputs(rank, step, count):
        values = drifting(rank, step, count) / 840 / 64
        if rank == 1 and step == 1:
            values[70] = bad
        return values

    for one in run(form, 3, COUNT, 3, inputs=inputs, dtype="f4"):
        assert numpy.isfinite(one.outs[0]).all() and numpy.isfinite(one.outs[2]).all()
        assert not numpy.isfinite(one.outs[1][70])
        block = getattr(compress.parse(form), "block", 1)
        assert (~numpy.isfinite(one.outs[1])).sum() <= max(block, 1)


@pytest.mark.parametrize("form", ["none", "onebit", "topk", "powersgd"])
def test_other_vectors_are_refused_before_anything_is_sent(form):
    def work(comm):
        mine = compress.parse(form).start(comm, [(5,), (2, 3)])
        for values in (numpy.zeros(10), numpy.zeros((11, 1)), numpy.zeros(11, "i4"),
                       numpy.zeros(11, "f2")):
            with pytest.raises(ArgumentError, match="11 float32.*float64"):
                compress.finish(mine.reduce(values))

    run_ranks(1, work)
