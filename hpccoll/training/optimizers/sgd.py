"""Stochastic gradient descent with momentum, and what every element-wise optimizer is.

    g <- g + weight_decay x;  m <- momentum m + g;  x <- x - rate (m, or g + momentum m: Nesterov)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy

from hpccoll.errors import ArgumentError

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


def check(optimizer: Any, **right: bool) -> None:
    """Raise an ``ArgumentError`` that names the first field whose value is not right."""
    for field, is_right in right.items():
        if not is_right:
            raise ArgumentError(f"{type(optimizer).__name__}: {field}",
                                f"got {getattr(optimizer, field)!r}",
                                "rates, decays and epsilons are at least 0, momenta and betas at "
                                "least 0 and below 1, numbers of steps at least 1")


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
        check(self, rate=self.rate >= 0, momentum=0 <= self.momentum < 1,
              weight_decay=self.weight_decay >= 0)

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
