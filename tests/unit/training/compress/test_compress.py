"""Compressors, one by one: what each sends, and what it makes of it."""

import re
from dataclasses import FrozenInstanceError, fields
from pathlib import Path

import numpy
import pytest
from unit.training.compress.runs import FORMS, drifting, run

from hpccoll.errors import ArgumentError
from hpccoll.training import compress
from hpccoll.training.compress.powersgd import Matrix, PowerSgd
from hpccoll.training.compress.quantise import (
    dequantise,
    quantise,
)
from hpccoll.training.compress.sparse import (
    RandomK,
    TopK,
)
from hpccoll.training.compress.two_phase import DitheringScheme, OneBit

# The table of schemes, and how they are read from text
MODULES = Path(compress.__file__).parent


@pytest.mark.parametrize("form", [*compress.SCHEMES, *FORMS])
def test_text_and_scheme_are_one(form):
    scheme = compress.parse(form)
    assert compress.parse(str(scheme)) == scheme and compress.parse(scheme) is scheme
    assert hash(scheme) == hash(compress.parse(f" {form} "))
    for field in fields(scheme):
        with pytest.raises(FrozenInstanceError):
            setattr(scheme, field.name, 1)


@pytest.mark.parametrize("text, message", [
    ("topq", "compress: .*'topq'.*'topk'.*fp16, bf16"),
    ("", "''.*none"),
    ("zip", "'zip'"),
    ("topk:densty=1", "topk: .*'densty'.*'density'"),
    ("bf16:bits=8", "bf16: 'bits'"),
    ("topk:density", "density: .*''"),
    ("topk:density=0", "topk: .*0.0.*0.*1"),
    ("topk:density=nan", "density: .*nan"),
    ("topk:density=1.5", "density"), ("topk:warmup=-1", "warmup: .*-1.*0"),
    ("topk:momentum=1", "momentum"), ("topk:masking=maybe", "masking: .*'maybe'"),
    ("topk:method=best", "method: .*'best'.*exact.*sampled"),
    ("randomk:seed=-1", "seed"), ("csc:chunk=0", "chunk"), ("csc:chunk=many", "integer"),
    ("int8:block=100", "block: .*100.*32"), ("onebit:block=0", "block"),
    ("onebit:scale=l3", "scale: .*'l3'.*l1.*l2"),
    ("dithering:bits=3", "bits: .*3"), ("dithering:kind=natural,bits=8", "bits: .*8"),
    ("dithering:kind=odd", "kind"), ("dithering:norm=l1", "norm"), ("dithering:seed=-2", "seed"),
    ("powersgd:rank=0", "rank"), ("powersgd:rate=0", "rate"), ("powersgd:dense_steps=-1", "dense"),
    ("powersgd:seed=-1", "seed"),
])
def test_what_cannot_be_read(text, message):
    with pytest.raises(ArgumentError, match=message):
        compress.parse(text)


def test_the_page_has_the_bytes_of_the_closed_forms():
    page = (MODULES.parents[2] / "docs" / "training" / "compress.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| .* \| ([\d,]+) \| ([\d,]+) \|$", page, re.MULTILINE)
    assert [name for name, *_ in rows] == [*compress.SCHEMES][:5] + [
        "dithering", "topk", "randomk", "csc", "powersgd"]
    for name, *numbers in rows:
        assert [int(number.replace(",", "")) for number in numbers] == [
            compress.parse(name).wire_bytes([(1600, 1024)] * 4, size) for size in (8, 64)]


# 1-bit: against the two phases written out, the loss of a step, and what a mistake would do
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


# PowerSGD: which arrays pay, the best product in the end, arrays of no rank at all
def test_which_arrays_pay():
    scheme = PowerSgd(rank=2)
    shapes = [(100, 30), (7,), (5, 1), (0, 9), (4, 5, 5), (64, 3, 3, 3), ()]
    assert scheme.matrices(shapes) == [Matrix(0, 0, 100, 30, 2), Matrix(5, 3112, 64, 27, 2)]
    assert PowerSgd(rank=1).matrices([(4, 5, 5)]) == [Matrix(0, 0, 4, 25, 1)]
    assert PowerSgd(rank=9, rate=0.5).matrices([(4, 50)]) == [Matrix(0, 0, 4, 50, 4)]


@pytest.mark.parametrize("rank", [1, 3])
def test_the_same_mean_again_and_again_becomes_its_best_product(rank):
    """Without feedback's sum: every step gives what is left, so results add up to the mean."""
    random = numpy.random.default_rng(3)
    left, right = random.standard_normal((40, 5)), random.standard_normal((5, 30))
    base = (left * [16, 8, 4, 0.5, 0.25]) @ right

    def inputs(step_rank, step, count):
        return (base + (step_rank - 1) * numpy.eye(40, 30)).ravel()

    (one, *_) = run(f"powersgd:rank={rank},dense_steps=0", 3, 1200, 60, inputs=inputs,
                    shapes=[(40, 30)])
    lag = numpy.linalg.norm(sum(one.outs) / 60 - base.ravel()) / numpy.linalg.norm(base)
    assert lag < 0.2 / rank
    assert numpy.linalg.matrix_rank(one.outs[-1].reshape(40, 30), tol=1e-6) <= rank


def test_small_arrays_between_matrices_are_exact():
    def inputs(rank, step, count):
        return (numpy.arange(count) % 17 - 8.0 + rank) * 4

    shapes = [(3,), (20, 30), (2, 2), (20, 20), (5,)]
    for one in run("powersgd:dense_steps=0", 4, 1012, 2, inputs=inputs, shapes=shapes):
        wanted = sum(inputs(rank, 0, 1012) for rank in range(4)) / 4
        for part in (slice(0, 3), slice(603, 607), slice(1007, 1012)):
            assert (one.outs[0][part] == wanted[part]).all()
            assert not one.residual[part].any()
        assert one.outs[0][3:603] != pytest.approx(wanted[3:603])


def test_dense_steps_then_products():
    ran = run("powersgd:dense_steps=2", 2, 600, 4, shapes=[(20, 30)])
    ranks = [numpy.linalg.matrix_rank(out.reshape(20, 30)) for out in ran[0].outs]
    assert ranks == [20, 20, 2, 2]


def test_a_matrix_that_was_zero_may_grow():
    def inputs(rank, step, count):
        return numpy.outer(numpy.arange(1, 21), numpy.arange(2, 32)).ravel() * float(step > 1)

    ran = run("powersgd:rank=1,dense_steps=0", 2, 600, 5, inputs=inputs, shapes=[(20, 30)])
    assert not ran[0].outs[1].any() and ran[0].outs[4] == pytest.approx(inputs(0, 4, 600))


def test_a_step_begins_where_the_last_one_ended():
    base = numpy.random.default_rng(0).standard_normal((20, 30))

    def left(form):
        """What a second step of the same matrix leaves, without what the first one held back."""
        (one,) = run(form, 1, 600, 1, shapes=[(20, 30)], inputs=lambda *_: base.ravel())
        kept = {"steps": 1, "bases": one.reduction.state()["bases"]}
        (again,) = run(form, 1, 600, 1, shapes=[(20, 30)], inputs=lambda *_: base.ravel(),
                       state=[kept])
        return numpy.linalg.norm(one.residual), numpy.linalg.norm(again.residual)

    first, second = left("powersgd:rank=1,dense_steps=0")
    assert second < 0.99 * first
    again, anew = left("powersgd:rank=1,dense_steps=0,warm_start=no")
    assert again == first and anew > second


@pytest.mark.parametrize("form", ["powersgd:dense_steps=0", "powersgd:dense_steps=5"])
def test_what_another_bucket_held_back_is_sent_once(form):
    """Everywhere, where this one would hold back nothing as well."""
    error = numpy.arange(603.0) + 1
    ran = run(form, 2, 603, 3, shapes=[(20, 30), (3,)], state=[{"error": error}] * 2)
    given, held = (sum(one) / 2 for one in zip(*((one.given, one.residual) for one in ran)))
    assert given + error == pytest.approx(sum(ran[0].outs) + held, rel=1e-11, abs=1e-6)


def there_and_back(values, bits, block):
    return dequantise(*quantise(values, bits, block), values.size, bits, block)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("bad", [numpy.nan, numpy.inf, -numpy.inf])
def test_a_block_with_what_is_no_number_is_none(bits, bad):
    values = numpy.arange(12, dtype="f4")
    values[5] = bad
    back = there_and_back(values, bits, 4)
    assert numpy.isnan(back[4:8]).all()
    assert numpy.isfinite(back[:4]).all() and numpy.isfinite(back[8:]).all()


# The sparse schemes: how many, which ones, and how many at the beginning
SPARSE = 1000


def test_the_density_falls_by_the_same_factor():
    scheme = TopK(density=0.01, warmup=4)
    assert [scheme.share(10_000, step) for step in (0, 1, 2, 3, 4, 5, None)] == [
        10_000, 3162, 1000, 316, 100, 100, 100]
    assert [scheme.share(count, None) for count in (1, 3, 100, 250)] == [1, 1, 1, 2]
    assert TopK(density=1).share(7, None) == 7


@pytest.mark.parametrize("form", ["topk:density=0.02", "topk:density=0.02,method=sampled"])
def test_topk_sends_the_largest_of_every_rank(form):
    ran = run(form, 3, SPARSE, 1)
    sent = 0
    for rank in range(3):
        mine = drifting(rank, 0, SPARSE)
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
    draws = [scheme.draw(SPARSE, step) for step in range(200)]
    assert all(one.size == 100 and (numpy.diff(one) > 0).all() for one in draws)
    assert numpy.unique(numpy.concatenate(draws)).size == SPARSE
    assert (draws[0] == RandomK(density=0.1).draw(SPARSE, 0)).all()
    assert (draws[0] != RandomK(density=0.1, seed=1).draw(SPARSE, 0)).any()
    for one in run("randomk:density=0.1", 3, SPARSE, 2):
        assert set(numpy.flatnonzero(one.outs[1])) <= set(draws[1])


@pytest.mark.parametrize("size", [1, 3])
def test_csc_sends_the_chunks_whose_sums_are_largest(size):
    form, chunk = "csc:density=0.2,chunk=64", 64  # 16 chunks, the last one of 40
    values = [drifting(rank, 0, SPARSE) for rank in range(size)]
    norms = numpy.add.reduceat(sum(map(numpy.abs, values)), range(0, SPARSE, chunk))
    best = numpy.argsort(-norms, kind="stable")[:3]
    wanted = numpy.where(numpy.isin(numpy.arange(SPARSE) // chunk, best), sum(values), 0) / size
    for one in run(form, size, SPARSE, 1):
        assert one.outs[0] == pytest.approx(wanted)


def test_csc_sends_a_short_last_chunk():
    def inputs(rank, step, count):
        return numpy.where(numpy.arange(count) >= 960, 840.0 * (rank + 1), 1.0)

    for one in run("csc:density=0.1,chunk=64", 2, SPARSE, 1, inputs=inputs):
        assert (one.outs[0][960:] == 1260).all() and not one.residual[960:].any()
        assert numpy.count_nonzero(one.outs[0]) == 40 + 64 and (one.residual[64:960] == 1).all()


def test_chunks_of_equal_norm_go_from_the_front():
    for one in run("csc:density=0.25,chunk=10", 2, 80, 3,
                   inputs=lambda rank, step, count: numpy.ones(count)):
        sent = [sorted(set(numpy.flatnonzero(out) // 10)) for out in one.outs]
        assert sent == [[0, 1], [2, 3], [4, 5]]


# Dithering: levels, no error in the mean, the same chance for the same seed
DITHERING_FORMS = [DitheringScheme(kind=kind, bits=bits, norm=norm) for kind, bits in (
    ("linear", 2), ("linear", 4), ("linear", 8), ("natural", 2), ("natural", 4))
    for norm in ("max", "l2")]


def dithering_there_and_back(scheme, rows, seed=0):
    scales, out = numpy.empty(len(rows), "f4"), numpy.empty_like(rows)
    codes = scheme.encode(rows, scales, numpy.random.Generator(numpy.random.SFC64(seed)))
    assert codes.shape == (len(rows), scheme.code_bytes(rows.shape[1]))
    scheme.decode(codes, scales, out)
    return out, scales


@pytest.mark.parametrize("scheme", DITHERING_FORMS, ids=str)
def test_the_mean_of_many_tries_is_the_value(scheme):
    tries = 4000
    row = numpy.array([-1.0, 0.9, 0.63, 0.5, -0.31, 0.2, 0.07, 0.011, -0.001, 0, 0, 0])
    out, scales = dithering_there_and_back(scheme, numpy.tile(row, (tries, 1)))
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
