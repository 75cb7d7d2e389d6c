"""What every scheme owes: the conservation law, the same bits on all ranks, its wire bytes."""

import numpy
import pytest
from unit.training.compress.runs import FEEDBACK, FORMS, RANKS, SELECTING, drifting, run, shapes_of

from hpccoll.training import compress

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
