"""What a rank owns of a group: exact weights, the optimizer's state, and the step on them."""

from __future__ import annotations

from typing import Any, Protocol

import numpy

from hpccoll.errors import ArgumentError
from hpccoll.training.optimizers import ElementwiseOptimizer

#: Elements of one piece of a step: all its vectors together stay in the cache.
CHUNK = 1 << 15


class Storage(Protocol):
    """Where vectors lie; see :mod:`~hpccoll.training.shard.storage`."""

    def zeros(self, count: int, dtype: Any) -> numpy.ndarray:
        """Make a vector of zeros."""


def exact_type(dtype: numpy.dtype) -> numpy.dtype:
    """The type in which weights of a type are kept: small changes vanish in two bytes."""
    return numpy.dtype(numpy.float32) if dtype.itemsize == 2 else dtype


class Owned:
    """One rank's part of one group.

    Args:
        weights: the part, as the model reads it; written by every step.
        optimizer: its state begins here.
        storage: where the state lies, with the exact weights if they are others.
        exact: type in which weights are kept and steps are made.

    Attributes:
        exact: the weights in that type; ``weights`` itself where the type is the same.
        state: vectors of the optimizer, by name.

    Raises:
        ArgumentError: the optimizer's state is not one value for each element.
    """

    def __init__(self, weights: numpy.ndarray, optimizer: ElementwiseOptimizer, storage: Storage,
                 exact: numpy.dtype):
        self.weights = self.exact = weights
        if exact != weights.dtype:
            self.exact = storage.zeros(weights.size, exact)
            self.exact[:] = weights
        self.state: dict[str, numpy.ndarray] = {}
        # In pieces: a state that lies in a file may not fit into memory.
        for start in range(0, max(weights.size, 1), CHUNK):
            count = min(CHUNK, weights.size - start)
            for name, values in optimizer.start(count, exact).items():
                if values.shape != (count,):
                    raise ArgumentError("optimizer", f"its state '{name}' has shape {values.shape} "
                                                     f"for {count} elements",
                                        "use an element-wise optimizer")
                if name not in self.state:
                    self.state[name] = storage.zeros(weights.size, values.dtype)
                self.state[name][start:start + count] = values

    def step(self, optimizer: ElementwiseOptimizer, gradient: numpy.ndarray, number: int,
             divisor: float, factor: float) -> None:
        """Make one step.

        Args:
            gradient: of the part, in any type; not changed.
            number: of the step, from 1.
            divisor, factor: the gradient is divided by the one, then multiplied by the other.
        """
        for start in range(0, self.exact.size, CHUNK):
            piece = slice(start, start + CHUNK)
            values = gradient[piece].astype(self.exact.dtype)
            if divisor != 1:
                values /= values.dtype.type(divisor)
            if factor != 1:
                values *= values.dtype.type(factor)
            state = {name: vector[piece] for name, vector in self.state.items()}
            optimizer.step(self.exact[piece], values, state, number)
        self.publish()

    def publish(self) -> None:
        """Let the model see the exact weights."""
        if self.exact is not self.weights:
            self.weights[:] = self.exact

    @property
    def nbytes(self) -> int:
        """Bytes of the state, and of exact weights that the model does not read."""
        apart = self.exact.nbytes if self.exact is not self.weights else 0
        return apart + sum(vector.nbytes for vector in self.state.values())
