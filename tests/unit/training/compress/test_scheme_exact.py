"""Cases in which a scheme must not differ from no compression, to the bit."""

import numpy
import pytest
from unit.training.compress.runs import drifting, run

COUNT = 541


def mean(size, step=0, inputs=drifting, count=COUNT):
    return sum(inputs(rank, step, count) for rank in range(size)) / size


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


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("form", [
    "none", "topk:density=1", "randomk:density=1", "csc:density=1", "csc:density=1,momentum=0",
    "powersgd:dense_steps=3"])
def test_everything_is_the_mean(form, size):
    for one in run(form, size, COUNT, 2):
        for step, out in enumerate(one.outs):
            assert (out == mean(size, step)).all()
        assert not one.residual.any()


@pytest.mark.parametrize("form", ["csc:density=1", "randomk:density=1", "topk:density=1"])
def test_density_one_has_the_bits_of_no_compression(form):
    def rounding(rank, step, count):
        return numpy.random.default_rng([rank, step]).standard_normal(count)

    dense = run("none", 5, COUNT, 2, inputs=rounding, dtype="f4")
    for one, other in zip(run(form, 5, COUNT, 2, inputs=rounding, dtype="f4"), dense):
        assert all((out == wanted).all() for out, wanted in zip(one.outs, other.outs))


@pytest.mark.parametrize("method", ["exact", "sampled"])
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_topk_of_few_elements_is_the_mean(size, method):
    for one in run(f"topk:density=0.01,method={method}", size, COUNT, 3, inputs=few):
        for step, out in enumerate(one.outs):
            assert (out == mean(size, step, few)).all()
        assert not one.residual.any()


@pytest.mark.slow(every=10)
@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 8])
@pytest.mark.parametrize("form", ["onebit", "onebit:scale=l1", "onebit:block=32", "int8",
                                  "dithering", "dithering:kind=natural", "dithering:bits=8"])
def test_two_phases_of_one_magnitude_are_exact(form, size):
    """Every rank holds the same plus or minus a power of two: added first, then divided."""
    for one in run(form, size, COUNT, 3, inputs=same, dtype="f4"):
        for out in one.outs:
            assert numpy.abs(out - same(0, 0, COUNT)).max() <= (0 if "one" in form else 1e-6)
        assert not one.residual.any()


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("form", ["fp16", "bf16"])
def test_casts_of_exact_sums_are_exact(form, size):
    for one in run(form, size, COUNT, 2, inputs=halves, dtype="f4"):
        wanted = mean(size, 0, halves)
        exact = (wanted * size).astype("f4") / numpy.float32(size)
        assert (one.outs[0] == exact).all()


def test_fp16_adds_what_float16_could_not_hold():
    for one in run("fp16", 8, 16, 1, dtype="f4",
                   inputs=lambda rank, step, count: numpy.full(count, 28672.0)):
        assert (one.outs[0] == 28672).all()


def grid(rank, step, count):
    """Whole multiples of a power of two, whose largest is 127 of them, on all ranks alike."""
    values = numpy.random.default_rng(step).integers(-127, 128, count) * 0.25
    values[::32] = 127 * 0.25
    return values


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
def test_int8_of_its_grid_is_exact(size):
    for one in run("int8:block=32", size, COUNT, 2, inputs=grid, dtype="f4"):
        for step, out in enumerate(one.outs):
            assert (out == grid(0, step, COUNT)).all()


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
