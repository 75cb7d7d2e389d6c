"""PowerSGD: which arrays pay, the best product in the end, arrays of no rank at all."""

import numpy
import pytest
from unit.training.compress.runs import run

from hpccoll.training.compress.powersgd import Matrix, PowerSgd, orthonormalise


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


def test_orthonormal_columns():
    random = numpy.random.default_rng(0)
    matrix = random.standard_normal((9, 3))
    for one in (matrix, matrix[:, [0, 0, 1]], matrix * 0, matrix[:2, :2]):
        columns = orthonormalise(one)
        assert columns.T @ columns == pytest.approx(numpy.eye(one.shape[1]), abs=1e-12)
        assert columns @ (columns.T @ one) == pytest.approx(one, abs=1e-12)


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
