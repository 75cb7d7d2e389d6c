"""Stochastic gradient descent with momentum, and what every element-wise optimizer is.

    g <- g + weight_decay x;  m <- momentum m + g;  x <- x - rate (m, or g + momentum m: Nesterov)
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy

from hpccoll.errors import ArgumentError
from hpccoll.training.given import number

#: Vectors with a value for each parameter, by name.
Vectors = dict[str, Any]


class ElementwiseOptimizer(ABC):
    """Frozen settings of an optimizer that treats every element alike.

    Subclasses are frozen dataclasses with a field ``rate``, the learning rate; a schedule makes
    others with :func:`dataclasses.replace`.
    """

    @abstractmethod
    def start(self, count: int, dtype: Any = "float32", module: Any = numpy) -> Vectors:
        """Make the state for so many parameters, as vectors of NumPy's or another package's."""

    @abstractmethod
    def step(self, parameters: Any, gradients: Any, state: Vectors, step_number: int) -> None:
        """Change parameters and state in place.

        Args:
            parameters, gradients: vectors; gradients may be of another float type, and stay.
            state: what :meth:`start` made.
            step_number: from 1.
        """


def check(optimizer: Any, amounts: Sequence[str] = (), fractions: Sequence[str] = (),
          counts: Sequence[str] = ()) -> None:
    """Check the fields of an optimizer.

    Args:
        amounts, fractions, counts: names of fields that are rates, decays and epsilons; momenta
            and betas; and numbers of steps.

    Raises:
        ArgumentError: a value is not right; it names the first.
        ArgumentTypeError: it is no number.
    """
    for names, wanted, right in (
            (amounts, "a number, 0 or more", lambda value: value >= 0),
            (fractions, "a number, at least 0 and below 1", lambda value: 0 <= value < 1),
            (counts, "an integer, 1 or more",
             lambda value: value >= 1 and (value == math.inf or value.is_integer()))):
        for name in names:
            argument, value = f"{type(optimizer).__name__}: {name}", getattr(optimizer, name)
            if not right(number(argument, value, wanted)):
                raise ArgumentError(argument, f"expected {wanted}, got {value!r}")


@dataclass(frozen=True)
class Sgd(ElementwiseOptimizer):
    """Gradient descent, as PyTorch's ``SGD`` computes it (without dampening).

    Attributes:
        rate: learning rate.
        momentum: 0 for none, and no state.
        weight_decay: added to the gradient, times the parameter.
        nesterov: look ahead.
    """

    rate: float = 0.01
    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        check(self, ("rate", "weight_decay"), ("momentum",))

    def start(self, count: int, dtype: Any = "float32", module: Any = numpy) -> Vectors:
        return {"momentum": module.zeros(count, dtype)} if self.momentum else {}

    def step(self, parameters: Any, gradients: Any, state: Vectors, step_number: int) -> None:
        update = gradients.astype(parameters.dtype)
        if self.weight_decay:
            update += self.weight_decay * parameters
        if self.momentum:
            state["momentum"] *= self.momentum
            state["momentum"] += update
            if self.nesterov:
                update += self.momentum * state["momentum"]
            else:
                update[:] = state["momentum"]
        update *= self.rate
        parameters -= update
