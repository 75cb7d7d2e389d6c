"""Stochastic gradient descent with momentum, and the base of element-wise optimizers.

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
from hpccoll.training.arguments import as_number

#: Vectors with one value for each parameter, by name.
Vectors = dict[str, Any]


class ElementwiseOptimizer(ABC):
    """Frozen settings of an element-wise optimizer.

    Subclasses are frozen dataclasses with a field ``rate``, the learning rate; schedules use
    :func:`dataclasses.replace`.
    """

    @abstractmethod
    def start(self, count: int, dtype: Any = "float32", module: Any = numpy) -> Vectors:
        """Return the state for ``count`` parameters, as vectors of ``module``."""

    @abstractmethod
    def step(self, parameters: Any, gradients: Any, state: Vectors, step_number: int) -> None:
        """Update parameters and state in place.

        Args:
            parameters, gradients: vectors; gradients may have another float dtype and do not
                change.
            state: result of :meth:`start`.
            step_number: number of the step, from 1.
        """


def check(optimizer: Any, amounts: Sequence[str] = (), fractions: Sequence[str] = (),
          counts: Sequence[str] = ()) -> None:
    """Validate the fields of an optimizer."""
    for names, wanted, right in (
            (amounts, "a number, 0 or more", lambda value: value >= 0),
            (fractions, "a number, at least 0 and below 1", lambda value: 0 <= value < 1),
            (counts, "an integer, 1 or more",
             lambda value: value >= 1 and (value == math.inf or value.is_integer()))):
        for name in names:
            argument, value = f"{type(optimizer).__name__}: {name}", getattr(optimizer, name)
            if not right(as_number(argument, value, wanted)):
                raise ArgumentError(argument, f"expected {wanted}, got {value!r}")


@dataclass(frozen=True)
class Sgd(ElementwiseOptimizer):
    """Gradient descent as in PyTorch's ``SGD`` (without dampening).

    Attributes:
        rate: learning rate.
        momentum: momentum factor; 0 for none, without state.
        weight_decay: factor of the parameter that is added to the gradient.
        nesterov: use Nesterov momentum.
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
