"""1-bit: against the two phases written out, the loss of a step, and what a mistake would do."""

import numpy
import pytest
from unit.training.compress.runs import drifting, run

from hpccoll.training import compress
from hpccoll.training.compress.onebit import OneBit

COUNT = 541


def coded(vector, block, scale):
    out = numpy.empty_like(vector)
    for start in range(0, vector.size, block):
        part = vector[start:start + block]
        size = (numpy.abs(part).mean(dtype="f8") if scale == "l1"
                else numpy.sqrt((part ** 2).mean(dtype="f8")))
        out[start:start + block] = numpy.where(part >= 0, 1, -1) * numpy.float32(size)
    return out


@pytest.mark.slow
@pytest.mark.parametrize("scale", ["l1", "l2"])
@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 8])
def test_two_phases_written_out(size, scale):
    scheme = OneBit(block=32, scale=scale)
    ran = run(f"onebit:block=32,scale={scale}", size, COUNT, 6)
    block = scheme.block_length(COUNT, size)
    errors, owner = numpy.zeros((size, COUNT)), numpy.zeros(COUNT)
    for step in range(6):
        given = [drifting(rank, step, COUNT) + errors[rank] for rank in range(size)]
        codes = [coded(one, block, scale) for one in given]
        errors = numpy.subtract(given, codes)
        mean = sum(codes) / size + owner
        out = coded(mean, block, scale)
        owner = mean - out
        assert ran[0].outs[step] == pytest.approx(out, rel=1e-6)
    for one, error in zip(ran, errors):
        assert one.reduction.vectors["error"] == pytest.approx(error, rel=1e-5, abs=1e-2)


@pytest.mark.parametrize("scale, left", [("l1", 1 - 2 / numpy.pi),
                                         ("l2", 2 - 2 * numpy.sqrt(2 / numpy.pi))])
def test_what_one_step_leaves_of_gaussian_values(scale, left):
    values = numpy.random.default_rng(0).standard_normal((1, 1 << 16))
    scheme, scales, out = OneBit(scale=scale), numpy.empty(1, "f4"), numpy.empty_like(values)
    scheme.decode(scheme.encode(values, scales, None), scales, out)
    assert ((values - out) ** 2).mean() == pytest.approx(left, abs=0.01)


def test_bits_and_zeros():
    rows = numpy.array([[-1.0, 2, 0, -0.0, 3, -4, 5, 6, -7]])
    scales = numpy.empty(1, "f4")
    codes = OneBit(scale="l1").encode(rows, scales, None)
    assert codes.tolist() == [[0b01111011, 0]] and scales[0] == numpy.float32(28 / 9)


def broken(how):
    """The 1-bit reduction with one mistake."""
    def start(comm, shapes):
        mine = compress.parse("onebit:block=32").start(comm, shapes)
        kind = type(mine)

        class Broken(kind):
            def _store_errors(self, error, lost):
                worker = error is self.vectors["error"]
                if how != f"{'worker' if worker else 'owner'} feedback dropped":
                    super()._store_errors(error, -lost if how == "sign flipped" else lost)

            def _mean(self, received, first, rows, spare):
                super()._mean(received, first, rows, spare)
                if how == "division omitted":
                    rows *= self.size

        mine.__class__ = Broken
        return mine
    return start


@pytest.mark.parametrize("how", ["worker feedback dropped", "owner feedback dropped",
                                 "sign flipped", "division omitted", "nothing"])
def test_the_law_tells_mistakes(how):
    ran = run("onebit:block=32", 3, COUNT, 8, reduction=broken(how))
    given, held = (sum(one) / 3 for one in zip(*((one.given, one.residual) for one in ran)))
    error = numpy.abs(given - sum(ran[0].outs) - held).max()
    assert (error < 1e-7) == (how == "nothing")
