"""States: a restart goes on to the bit; other buckets and other ranks keep the law."""

import numpy
import pytest
from unit.training.compress.runs import FEEDBACK, drifting, run, shapes_of

from hpccoll.errors import ArgumentError
from hpccoll.training import compress
from hpccoll.training.compress import states
from support.threads import run_ranks

COUNT = 541


def later(rank, step, count):
    return drifting(rank, step + 4, count)


def states_of(form, size, steps, count=COUNT, shapes=None):
    scheme = compress.parse(form)

    def work(comm):
        mine = scheme.start(comm, shapes or shapes_of(count))
        for step in range(steps):
            compress.finish(mine.reduce(drifting(comm.rank, step, count)))
        return mine.state()

    return run_ranks(size, work)


@pytest.mark.slow(every=10)
@pytest.mark.parametrize("form", FEEDBACK)
@pytest.mark.parametrize("size", [1, 3])
def test_a_restart_goes_on_to_the_bit(form, size):
    kept = states_of(form, size, 4)
    again = run(form, size, COUNT, 3, inputs=later, state=kept)
    whole = run(form, size, COUNT, 7)
    for one, other in zip(again, whole):
        assert all((out == wanted).all() for out, wanted in zip(one.outs, other.outs[4:]))
        assert (one.residual == other.residual).all()


@pytest.mark.slow(every=10)
@pytest.mark.parametrize("form", FEEDBACK)
@pytest.mark.parametrize("before, after", [(2, 3), (3, 2), (5, 1)])
def test_another_number_of_ranks_keeps_the_law(form, before, after):
    old = run(form, before, COUNT, 4)
    mean = states.average_states(states_of(form, before, 4))
    new = run(form, after, COUNT, 0, state=[mean] * after)
    wanted, held = (sum(one.residual for one in ran) / len(ran) for ran in (old, new))
    assert held == pytest.approx(wanted, rel=1e-12, abs=1e-9)
    for name, one in mean.items():
        if name == "velocity":
            assert one == pytest.approx(
                sum(ran.reduction.vectors[name] for ran in old) / before)


@pytest.mark.parametrize("form", FEEDBACK)
def test_other_buckets_keep_the_law(form):
    """Two buckets of three and one arrays become one of two and one of two, in another order."""
    arrays = [(16, 20), (3,), (30, 7), (24, 9)]
    sizes = [int(numpy.prod(shape)) for shape in arrays]
    old = [[0, 1, 2], [3]]
    new = [[3, 1], [2, 0]]
    scheme = compress.parse(form)

    def work(comm):
        def make(bucket):
            return scheme.start(comm, [arrays[index] for index in bucket])

        held, parts = {}, {}
        for bucket in old:
            mine, counts = make(bucket), [sizes[index] for index in bucket]
            for step in range(4):
                compress.finish(mine.reduce(drifting(comm.rank, step, sum(counts))))
            parts.update(zip(bucket, states.split_state(mine.state(), counts)))
            held.update(zip(bucket, numpy.split(mine.residual(), numpy.cumsum(counts)[:-1])))
        seen = {}
        for bucket in new:
            mine, counts = make(bucket), [sizes[index] for index in bucket]
            mine.load(states.join_states([parts[index] for index in bucket], counts))
            assert mine.steps == 4
            if "powersgd" in form:
                assert set(mine.bases) == {array for array, index in enumerate(bucket)
                                           if parts[index]["bases"][0] is not None}
            seen.update(zip(bucket, numpy.split(mine.residual(), numpy.cumsum(counts)[:-1])))
        return held, seen

    both = run_ranks(3, work)
    for index in range(len(arrays)):
        wanted, held = (sum(one[which][index] for one in both) for which in (0, 1))
        assert held == pytest.approx(wanted, rel=1e-12, abs=1e-9)
    assert any(one.any() for one in both[0][1].values())


def test_join_fills_what_is_missing():
    whole = states.join_states([{"steps": 5, "error": numpy.ones(2, "f4"), "bases": ["a"]}, {}],
                               [2, 3])
    assert whole["steps"] == 0 and whole["error"].tolist() == [1, 1, 0, 0, 0]
    assert whole["error"].dtype == "f4" and whole["bases"] == ["a", None]
    assert states.join_states([], []) == {}


@pytest.mark.parametrize("form", ["onebit", "topk", "powersgd"])
def test_states_of_other_lengths_are_refused(form):
    def work(comm):
        with pytest.raises(ArgumentError, match="4 elements.*5"):
            compress.parse(form).start(comm, [(5,)]).load({"error": numpy.zeros(4)})

    run_ranks(1, work)


def test_states_are_copies():
    def work(comm):
        mine = compress.parse("topk:density=0.1").start(comm, [(50,)])
        compress.finish(mine.reduce(drifting(0, 0, 50)))
        kept = mine.state()
        mine.vectors["error"][:] = 7
        assert not (kept["error"] == 7).all()
        mine.load(kept)
        kept["error"][:] = 8
        assert not (mine.vectors["error"] == 8).all()

    run_ranks(1, work)


def test_other_types_take_a_state_over():
    kept = states_of("onebit", 2, 3)
    ran = run("onebit", 2, COUNT, 1, state=kept, dtype="f4")
    assert all(one.reduction.vectors["error"].dtype == "f4" for one in ran)
