"""Dithering: levels, no error in the mean, the same chance for the same seed."""

import numpy
import pytest
from unit.training.compress.runs import drifting, run

from hpccoll.training.compress.dithering import DitheringScheme

FORMS = [DitheringScheme(kind=kind, bits=bits, norm=norm) for kind, bits in (
    ("linear", 2), ("linear", 4), ("linear", 8), ("natural", 2), ("natural", 4))
    for norm in ("max", "l2")]


def there_and_back(scheme, rows, seed=0):
    scales, out = numpy.empty(len(rows), "f4"), numpy.empty_like(rows)
    codes = scheme.encode(rows, scales, numpy.random.Generator(numpy.random.SFC64(seed)))
    assert codes.shape == (len(rows), scheme.code_bytes(rows.shape[1]))
    scheme.decode(codes, scales, out)
    return out, scales


@pytest.mark.parametrize("scheme", FORMS, ids=str)
def test_values_become_neighbouring_levels(scheme):
    rows = numpy.random.default_rng(1).standard_normal((20, 64)).astype("f4")
    out, scales = there_and_back(scheme, rows)
    top = 2 ** (scheme.bits - 1) - 1
    levels = numpy.arange(top + 1.0)
    if scheme.kind == "natural":
        levels[1:] = 2.0 ** (levels[1:] - 1)
    found, wanted = numpy.abs(out) / scales[:, None], numpy.abs(rows) / scales[:, None]
    place = numpy.abs(found[..., None] - levels).argmin(axis=-1)
    assert found == pytest.approx(levels[place])
    below = levels[numpy.maximum(place - 1, 0)]
    above = levels[numpy.minimum(place + 1, top)]
    assert (wanted > below - 1e-5).all() and (wanted < numpy.maximum(above, levels[place]) + 1e-5
                                              ).all()
    assert (numpy.sign(out) * numpy.sign(rows) >= 0).all()
    norms = numpy.abs(rows).max(axis=1) if scheme.norm == "max" else numpy.sqrt(
        (rows ** 2).sum(axis=1))
    assert scales * levels[-1] == pytest.approx(norms)


@pytest.mark.parametrize("scheme", FORMS, ids=str)
def test_the_mean_of_many_tries_is_the_value(scheme):
    tries = 4000
    row = numpy.array([-1.0, 0.9, 0.63, 0.5, -0.31, 0.2, 0.07, 0.011, -0.001, 0, 0, 0])
    out, scales = there_and_back(scheme, numpy.tile(row, (tries, 1)))
    step = numpy.abs(out).max(axis=0) + scales[0]
    assert numpy.abs(out.mean(axis=0) - row).max() < 5 * step.max() / numpy.sqrt(tries)
    assert not out[:, row == 0].any()


def test_chance_is_that_of_the_seed_the_rank_and_the_step():
    def runs(form):
        return run(form, 2, 300, 2, inputs=lambda rank, step, count: drifting(rank, 0, count))

    first, again, other = runs("dithering"), runs("dithering"), runs("dithering:seed=1")
    assert (first[0].outs[0] == again[0].outs[0]).all()
    assert (first[0].outs[0] != other[0].outs[0]).any()
    assert (first[0].outs[0] != first[0].outs[1]).any()
    assert (first[0].reduction.sent != first[1].reduction.sent).any()
