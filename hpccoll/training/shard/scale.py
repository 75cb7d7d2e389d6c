"""Loss scales: losses made larger, so that gradients of two bytes do not vanish.

All ranks update by what they have agreed on, so all have the same scale. Source: Micikevicius et
al., "Mixed Precision Training", ICLR 2018; the rule and the numbers are those of PyTorch's
``GradScaler``.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import NamedTuple

from hpccoll.errors import ArgumentError
from hpccoll.training.given import number


class Scale(NamedTuple):
    """A loss scale in use.

    Attributes:
        value: what losses are multiplied by.
        steps: with finite gradients since it last changed.
    """

    value: float
    steps: int = 0


@dataclass(frozen=True)
class LossScale:
    """How a loss scale follows the gradients.

    Attributes:
        initial: the first scale.
        growth: its factor after ``interval`` steps in a row with finite gradients.
        backoff: its factor after a step with others, which is skipped.
        interval: steps; 0 never grows.

    Raises:
        ArgumentError: factors that go the wrong way.
    """

    initial: float = 65536.0
    growth: float = 2.0
    backoff: float = 0.5
    interval: int = 2000

    def __post_init__(self) -> None:
        for field in fields(self):
            number(f"loss_scale: {field.name}", getattr(self, field.name))
        if not (self.initial > 0 and self.growth >= 1 and 0 < self.backoff <= 1
                and self.interval >= 0):
            raise ArgumentError("loss_scale", f"{self} is invalid", "use initial > 0, growth >= 1, "
                                "0 < backoff <= 1, interval >= 0")

    def after(self, scale: Scale, finite: bool) -> Scale:
        """The scale after a step whose gradients were finite, or not.

        >>> LossScale(interval=2).after(Scale(8.0, steps=1), finite=True)
        Scale(value=16.0, steps=0)
        """
        if not finite:
            return Scale(scale.value * self.backoff)
        if scale.steps + 1 == self.interval:
            return Scale(scale.value * self.growth)
        return Scale(scale.value, scale.steps + 1)
