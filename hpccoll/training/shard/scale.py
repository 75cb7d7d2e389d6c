"""Loss scaling, so that 16-bit gradients do not underflow.

All ranks update the scale by a reduced value, so all have the same scale. Source: Micikevicius et
al., "Mixed Precision Training", ICLR 2018; rule and defaults as in PyTorch's ``GradScaler``.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import NamedTuple

from hpccoll.errors import ArgumentError
from hpccoll.training.arguments import as_number


class Scale(NamedTuple):
    """State of a loss scale.

    Attributes:
        value: factor of losses.
        steps: steps with finite gradients since the last change.
    """

    value: float
    steps: int = 0


@dataclass(frozen=True)
class LossScale:
    """Update rule of a loss scale.

    Attributes:
        initial: initial scale.
        growth: factor after ``interval`` consecutive steps with finite gradients.
        backoff: factor after a step with non-finite gradients, which is skipped.
        interval: number of steps; 0 disables growth.

    Raises:
        ArgumentError: invalid factors.
    """

    initial: float = 65536.0
    growth: float = 2.0
    backoff: float = 0.5
    interval: int = 2000

    def __post_init__(self) -> None:
        for field in fields(self):
            as_number(f"loss_scale: {field.name}", getattr(self, field.name))
        if not (self.initial > 0 and self.growth >= 1 and 0 < self.backoff <= 1
                and self.interval >= 0):
            raise ArgumentError("loss_scale", f"{self} is invalid", "use initial > 0, growth >= 1, "
                                "0 < backoff <= 1, interval >= 0")

    def next_scale(self, scale: Scale, finite: bool) -> Scale:
        """Return the scale after a step with finite or non-finite gradients.

        >>> LossScale(interval=2).next_scale(Scale(8.0, steps=1), finite=True)
        Scale(value=16.0, steps=0)
        """
        if not finite:
            return Scale(scale.value * self.backoff)
        if scale.steps + 1 == self.interval:
            return Scale(scale.value * self.growth)
        return Scale(scale.value, scale.steps + 1)
