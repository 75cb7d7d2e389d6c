"""Loss scales follow the gradients as PyTorch's GradScaler does."""

import pytest

from hpccoll.errors import ArgumentError, ArgumentTypeError
from hpccoll.training.shard.scale import LossScale, Scale


def test_the_defaults_are_pytorchs():
    assert LossScale() == LossScale(65536.0, 2.0, 0.5, 2000)


def test_growth_wants_finite_steps_in_a_row():
    rule, scale, seen = LossScale(4.0, interval=3), Scale(4.0), []
    for finite in (1, 1, 0, 1, 1, 1, 1, 0, 0):
        scale = rule.next_scale(scale, bool(finite))
        seen.append(scale)
    assert seen == [(4, 1), (4, 2), (2, 0), (2, 1), (2, 2), (4, 0), (4, 1), (2, 0), (1, 0)]


def test_without_an_interval_it_never_grows():
    rule, scale = LossScale(interval=0), Scale(1.0)
    for _ in range(3000):
        scale = rule.next_scale(scale, True)
    assert scale.value == 1


@pytest.mark.parametrize("wrong", [{"initial": 0}, {"growth": 0.5}, {"backoff": 0},
                                   {"backoff": 2}, {"interval": -1}], ids=str)
def test_numbers_that_cannot_work(wrong):
    with pytest.raises(ArgumentError, match="loss_scale"):
        LossScale(**wrong)


def test_what_is_no_number():
    with pytest.raises(ArgumentTypeError, match="loss_scale: .*'8'"):
        LossScale("8")
