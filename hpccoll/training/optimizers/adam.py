"""Adam, with decoupled weight decay (AdamW) or L2 regularization.

    m <- beta1 m + (1-beta1) g;  v <- beta2 v + (1-beta2) g^2
    x <- x - rate ( m / (1-beta1^t) / (sqrt(v / (1-beta2^t)) + epsilon) + weight_decay x )

Source: Kingma and Ba, 2015; Loshchilov and Hutter, 2019.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy

from hpccoll.training.optimizers.sgd import ElementwiseOptimizer, Vectors, check


@dataclass(frozen=True)
class Adam(ElementwiseOptimizer):
    """Adam as in PyTorch's ``AdamW`` or, with ``decoupled=False``, ``Adam``.

    Attributes:
        rate: learning rate.
        beta1, beta2: decay of the means of gradients and of their squares.
        epsilon: added to the root.
        weight_decay: decay of parameters; with ``decoupled`` separate from the gradient, else added
            to it.
    """

    rate: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    decoupled: bool = True

    def __post_init__(self) -> None:
        check(self, ("rate", "epsilon", "weight_decay"), ("beta1", "beta2"))

    def start(self, count: int, dtype: Any = "float32", module: Any = numpy) -> Vectors:
        return {"mean": module.zeros(count, dtype), "square": module.zeros(count, dtype)}

    def step(self, parameters: Any, gradients: Any, state: Vectors, step_number: int) -> None:
        gradients = gradients.astype(parameters.dtype)
        if self.weight_decay and self.decoupled:
            parameters *= 1 - self.rate * self.weight_decay
        elif self.weight_decay:
            gradients += self.weight_decay * parameters
        mean, square = state["mean"], state["square"]
        accumulate(mean, gradients, self.beta1)
        gradients *= gradients
        accumulate(square, gradients, self.beta2)
        root = (square / (1 - self.beta2 ** step_number)) ** 0.5
        root += self.epsilon
        update = mean / root
        update *= self.rate / (1 - self.beta1 ** step_number)
        parameters -= update


def accumulate(mean: Any, values: Any, beta: float) -> None:
    """Update ``mean <- beta mean + (1 - beta) values`` in place."""
    mean *= beta
    mean += (1 - beta) * values
