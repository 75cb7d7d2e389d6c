"""randomk: the same randomly chosen elements on all ranks; the others wait.

    wire   k = density * n values in the order of their indices, allreduced: 2 k 4 (P-1)/P bytes.
           Indices follow from the seed and the step and do not travel
    law    that of :mod:`~hpccoll.training.compress.sparse`, without momentum

Elements are drawn without replacement. On average one waits 1/density steps, whatever its size: use
higher densities than for topk. Source: Stich et al., 2018 (sparsified SGD with memory).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy
from mpi4py import MPI

from hpccoll.training.compress.quantise import namespace
from hpccoll.training.compress.scheme import (
    ITEMSIZE,
    Reduction,
    Shapes,
    Steps,
    allreduce_bytes,
    elements,
)
from hpccoll.training.compress.sparse import Residual, Sparse, finite


@dataclass(frozen=True)
class RandomK(Sparse):
    """Elements by chance.

    Attributes:
        density, warmup: see :mod:`~hpccoll.training.compress.sparse`.
        seed: of the chance.
    """

    name = "randomk"

    density: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check("seed", self.seed >= 0, "0 or more")

    def start(self, comm: Any, shapes: Shapes) -> Reduction:
        return _RandomKReduction(self, comm, shapes)

    def wire_bytes(self, shapes: Shapes, size: int, step: int | None = None) -> float:
        count = elements(shapes)
        return allreduce_bytes(self.share(count, step) * ITEMSIZE, size) if count else 0

    def draw(self, count: int, step: int) -> numpy.ndarray:
        """Indices that travel in a step, rising."""
        random = numpy.random.Generator(numpy.random.SFC64([self.seed, step, count]))
        chosen = random.choice(count, self.share(count, step), replace=False, shuffle=False)
        return numpy.sort(chosen)


class _RandomKReduction(Residual):
    """One allreduce of what was drawn."""

    scheme: RandomK

    def _reduce(self, values: Any) -> Steps:
        self._collect(values)
        if self.scheme.share(self.count, self.steps) == self.count:
            yield from self._dense(values)
            return
        chosen = namespace(values).asarray(self.scheme.draw(self.count, self.steps))
        usable = finite(values)
        packed = values[chosen]
        if not usable:
            packed.fill(numpy.nan)  # what was not drawn would stay for ever: all must see it
        yield self.comm.Iallreduce(MPI.IN_PLACE, packed)
        if not finite(packed):
            yield from self.refuse(not usable)
        self._keep(values, chosen)
        values.fill(0)
        packed /= self.size
        values[chosen] = packed
