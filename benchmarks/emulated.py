"""Candidates for training steps: an emulated backward pass, and its gradients exchanged.

A backward pass is emulated by sleeping, as a device works beside the processor: array after array
becomes ready, from the last to the first, at an even rate of bytes. So a step is as long as on a
machine whose devices take so long, and what is measured is communication that is not hidden.

    none             the backward pass alone
    exchange         hpccoll.training.Exchange; behind a colon a compressor: exchange:bf16
    at-once          the same, all arrays in one call after the backward pass
    views            the same, of arrays in the exchange's own memory
    allreduce        one Allreduce of all bytes after it, as if they lay in one array
    ddp, ddp:gloo    PyTorch's DistributedDataParallel over hpccoll, over Gloo
    horovod          Horovod's DistributedOptimizer, where it is installed
"""

from __future__ import annotations

import math
from time import sleep
from typing import Any, NamedTuple, Protocol

import numpy
from mpi4py import MPI

from hpccoll.comm import Comm
from hpccoll.training import Exchange


class EmulatedModel(NamedTuple):
    """What a step exchanges, and how long its backward pass takes.

    Attributes:
        shapes: of the arrays of float32, in the order of the forward pass.
        backward_seconds: of the whole backward pass.
    """

    shapes: tuple[tuple[int, ...], ...]
    backward_seconds: float

    @property
    def nbytes(self) -> int:
        """Bytes of all gradients."""
        return 4 * sum(map(math.prod, self.shapes))

    def pauses(self) -> list[float]:
        """Seconds that the backward pass takes for each array, the first one last."""
        total = max(1, self.nbytes // 4)
        return [self.backward_seconds * math.prod(shape) / total for shape in self.shapes]


def layers(nbytes: int, number: int, backward_seconds: float) -> EmulatedModel:
    """A model of square matrices and their biases that has about so many bytes.

    >>> layers(80_000, 2, 0.1).shapes
    ((100, 100), (100,), (100, 100), (100,))
    """
    side = max(1, round((math.sqrt(1 + nbytes / number) - 1) / 2))
    return EmulatedModel(((side, side), (side,)) * number, backward_seconds)


class Stepper(Protocol):
    """One candidate."""

    def step(self) -> None:
        """Take a step: backward pass and exchange."""

    def close(self) -> None:
        """End it; collective."""


class Alone:
    """The backward pass alone."""

    def __init__(self, comm: Comm, model: EmulatedModel):
        self.pauses = model.pauses()

    def step(self) -> None:
        """Take a step."""
        for pause in reversed(self.pauses):
            rest(pause)

    def close(self) -> None:
        """Nothing is to end."""


class Joined(Alone):
    """One array with all gradients, and nothing that could be hidden: what an exchange adds to."""

    def __init__(self, comm: Comm, model: EmulatedModel):
        super().__init__(comm, model)
        self.comm, self.gradients = comm, numpy.ones(model.nbytes // 4, "f4")

    def step(self) -> None:
        """Take a step."""
        super().step()
        # As much work as a sum, and the values stay as they are.
        self.comm.Allreduce(MPI.IN_PLACE, self.gradients, MPI.MAX)


class Exchanged:
    """Gradients through an exchange."""

    def __init__(self, comm: Comm, model: EmulatedModel, compress: str = "none", **options: Any):
        self.pauses = model.pauses()
        self.gradients = [numpy.ones(shape, "f4") for shape in model.shapes]
        self.exchange = Exchange(comm, self.gradients, compress=compress or "none", **options)

    def step(self) -> None:
        """Take a step."""
        for key in reversed(range(len(self.gradients))):
            rest(self.pauses[key])
            self.exchange.ready(key, self.gradients[key])
        self.exchange.wait()

    def close(self) -> None:
        """End the exchange."""
        self.exchange.close()


class AtOnce(Exchanged):
    """Gradients through an exchange, all in one call."""

    def step(self) -> None:
        """Take a step."""
        for pause in reversed(self.pauses):
            rest(pause)
        self.exchange.reduce(self.gradients)


class InViews(AtOnce):
    """Gradients that were written where the exchange sends them from."""

    def __init__(self, comm: Comm, model: EmulatedModel):
        super().__init__(comm, model)
        self.gradients = self.exchange.views()
        for gradient in self.gradients:
            gradient[...] = 1


def rest(seconds: float) -> None:
    """Sleep; where there is nothing to sleep, do not even begin."""
    if seconds:
        sleep(seconds)
