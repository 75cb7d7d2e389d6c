"""Laws of all compressors: errors, exact results, bytes and states."""

import numpy
import pytest
from unit.training.compress.runs import FEEDBACK, FORMS, RANKS, SELECTING, drifting, run, shapes_of

from hpccoll.errors import ArgumentError, NonFiniteError
from hpccoll.training import compress
from hpccoll.training.compress import states
from support.threads import run_ranks

# What every scheme owes: the conservation law, the same bits on all ranks, its wire bytes
STEPS = 50
COUNT = 541


def small(size):
    return sorted({0, 1, size - 1, size + 1, 13})


def check_law(form, size, ran):
    given, held = (sum(one) / size for one in zip(*((one.given, one.residual) for one in ran)))
    out = sum(ran[0].outs)
    if form in SELECTING and "momentum" not in form:
        assert (given == out + held).all()
    else:
        error = numpy.abs(given - out - held).max(initial=0)
        assert error <= 1e-13 * STEPS * numpy.abs(given).max(initial=1)
    return held


@pytest.mark.long(every=5)
@pytest.mark.slow
@pytest.mark.parametrize("size", RANKS)
@pytest.mark.parametrize("form", FEEDBACK)
def test_what_is_not_sent_is_held_back(form, size):
    held = check_law(form, size, run(form, size, COUNT, STEPS))
    assert numpy.abs(held).max() > 0


@pytest.mark.slow(every=10)
@pytest.mark.parametrize("size", [1, 3, 8])
@pytest.mark.parametrize("form", FEEDBACK)
def test_small_buckets_keep_the_law(form, size):
    for count in small(size):
        check_law(form, size, run(form, size, count, 3))


@pytest.mark.parametrize("form", [one for one in FEEDBACK if "masking=no" in one])
def test_the_velocity_is_that_of_momentum(form):
    momentum, total = compress.parse(form).momentum, 0
    for rank in range(2):
        velocity = numpy.zeros(COUNT)
        for step in range(8):
            velocity = momentum * velocity + drifting(rank, step, COUNT)
            total = total + velocity
    ran = run(form, 2, COUNT, 8)
    assert (ran[0].given + ran[1].given == total).all()


@pytest.mark.parametrize("form", [one for one in FEEDBACK
                                  if "momentum" in one and "masking=no" not in one])
def test_masking_clears_the_velocity_of_what_was_sent(form):
    (ran,) = run(form, 1, COUNT, 5)
    sent, velocity = ran.outs[-1] != 0, ran.reduction.vectors["velocity"]
    assert 0 < sent.sum() < COUNT and not velocity[sent].any() and velocity[~sent].any()


@pytest.mark.slow(every=10)
@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("form", FORMS)
def test_ranks_hold_the_same_bits_and_send_what_the_closed_form_says(form, size):
    scheme = compress.parse(form)
    for count in (size + 1, COUNT):
        steps = scheme.warmup_steps + (2 if count == COUNT else 1)
        ran = run(form, size, count, steps, dtype="f4")
        for outs in zip(*(one.outs for one in ran)):
            assert len({out.tobytes() for out in outs}) == 1
        for step, sent in enumerate(zip(*(one.sent for one in ran))):
            wanted = scheme.wire_bytes(shapes_of(count), size, step)
            assert sum(sent) / size == pytest.approx(wanted, rel=1e-12)
            assert ran[0].expected[step] == wanted
        assert wanted == scheme.wire_bytes(shapes_of(count), size)


@pytest.mark.parametrize("form", FORMS)
def test_an_empty_bucket_sends_nothing(form):
    for one in run(form, 3, 0, 3, shapes=[(0,), (4, 0)]):
        assert one.sent == [0, 0, 0] == one.expected and one.reduction.state().get("steps", 3) == 3


@pytest.mark.parametrize("form", FORMS)
def test_zeros_stay_zeros(form):
    for one in run(form, 3, COUNT, 3, inputs=lambda rank, step, count: numpy.zeros(count)):
        assert not any(out.any() for out in one.outs) and not one.residual.any()


# Cases in which a scheme must not differ from no compression, to the bit
def few(rank, step, count):
    """At most two elements that are not zero, of the rank's own."""
    values = numpy.zeros(count)
    values[[rank * 7 % count, (rank * 7 + 3 + step) % count]] = 840 * (rank + 1), -1680
    return values


def same(rank, step, count):
    return numpy.where(numpy.arange(count) % 3 == 1, -4.0, 4.0)


def halves(rank, step, count):
    """Exact in 8 bits of precision, and so are the sums of 8 ranks."""
    return (numpy.arange(count) % 13 - 6 + rank % 2) * 0.5


def grid(rank, step, count):
    """Whole multiples of a power of two, whose largest is 127 of them, on all ranks alike."""
    values = numpy.random.default_rng(step).integers(-127, 128, count) * 0.25
    values[::32] = 127 * 0.25
    return values


def large(rank, step, count):
    """Sums of them are more than float16 can hold."""
    return numpy.full(count, 28672.0)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 8])
@pytest.mark.parametrize("form, inputs, dtype", [
    *((form, drifting, "f8") for form in (
        "none", "topk:density=1", "randomk:density=1", "csc:density=1", "csc:density=1,momentum=0",
        "powersgd:dense_steps=3")),
    *((f"topk:density=0.01,method={method}", few, "f8") for method in ("exact", "sampled")),
    # Two phases: every rank holds the same plus or minus a power of two, added before the division.
    *((form, same, "f4") for form in (
        "onebit", "onebit:scale=l1", "onebit:block=32", "int8", "dithering",
        "dithering:kind=natural", "dithering:bits=8")),
    ("int8:block=32", grid, "f4"), ("fp16", halves, "f4"), ("bf16", halves, "f4"),
    ("fp16", large, "f4")])
def test_the_mean_is_exact(form, inputs, dtype, size):
    for one in run(form, size, COUNT, 3 if inputs is not drifting else 2, inputs=inputs,
                   dtype=dtype):
        for step, out in enumerate(one.outs):
            total = sum(inputs(rank, step, COUNT) for rank in range(size)).astype(dtype)
            lag = numpy.abs(out - total / numpy.dtype(dtype).type(size)).max()
            assert lag <= (1e-6 if inputs is same and "onebit" not in form else 0)
        assert not one.residual.any()


@pytest.mark.parametrize("form", ["csc:density=1", "randomk:density=1", "topk:density=1"])
def test_density_one_has_the_bits_of_no_compression(form):
    def rounding(rank, step, count):
        return numpy.random.default_rng([rank, step]).standard_normal(count)

    dense = run("none", 5, COUNT, 2, inputs=rounding, dtype="f4")
    for one, other in zip(run(form, 5, COUNT, 2, inputs=rounding, dtype="f4"), dense):
        assert all((out == wanted).all() for out, wanted in zip(one.outs, other.outs))


@pytest.mark.parametrize("size", [1, 2, 3])
def test_powersgd_of_a_mean_of_rank_one(size):
    left, right = numpy.arange(1.0, 31), numpy.cos(numpy.arange(20))

    def products(rank, step, count):
        noise = numpy.random.default_rng(5).standard_normal((30, 20))  # cancels in the sum
        sign = (rank - (size - 1) / 2)
        return (numpy.outer(left, right) + sign * noise).ravel()

    for one in run("powersgd:rank=1,dense_steps=0", size, 600, 1, inputs=products,
                   shapes=[(30, 20)]):
        assert one.outs[0] == pytest.approx(numpy.outer(left, right).ravel(), rel=1e-12, abs=1e-12)


# NaN and infinity: the same error on all ranks, or through; a refused step leaves no trace
CARRYING = [one for one in FORMS if compress.parse(one).carries_nan]


def test_every_scheme_either_keeps_or_carries():
    assert {*CARRYING, *FEEDBACK} == set(FORMS)
    assert not {*CARRYING} & {*FEEDBACK}


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


# States: a restart goes on to the bit; other buckets and other ranks keep the law
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
