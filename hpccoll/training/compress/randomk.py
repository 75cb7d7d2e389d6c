"""randomk: allreduce random elements, the same on all ranks; accumulate the others.

    wire   k = density * n values in index order, allreduced: 2 k 4 (P-1)/P bytes.
           Indices follow from the seed and the step and are not sent
    law    that of :mod:`~hpccoll.training.compress.sparse`, without momentum

Elements are drawn without replacement. An element waits 1/density steps on average, whatever its
value: use higher densities than for topk. Source: Stich et al., 2018 (sparsified SGD with memory).
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
from hpccoll.training.compress.sparse import ResidualReduction, SparseScheme, all_finite


@dataclass(frozen=True)
class RandomK(SparseScheme):
    """Scheme that sends random elements.

    Attributes:
        density, warmup: see :mod:`~hpccoll.training.compress.sparse`.
        seed: seed of the random generator.
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
        """Return the indices of a step in ascending order."""
        random = numpy.random.Generator(numpy.random.SFC64([self.seed, step, count]))
        chosen = random.choice(count, self.share(count, step), replace=False, shuffle=False)
        return numpy.sort(chosen)


class _RandomKReduction(ResidualReduction):
    """One allreduce of the drawn elements."""

    scheme: RandomK

    def _reduce(self, values: Any) -> Steps:
        self._add_residual(values)
        if self.scheme.share(self.count, self.steps) == self.count:
            yield from self._allreduce_dense(values)
            return
        chosen = namespace(values).asarray(self.scheme.draw(self.count, self.steps))
        usable = all_finite(values)
        packed = values[chosen]
        if not usable:
            packed.fill(numpy.nan)  # else it may stay in the residual, unseen by the other ranks
        yield self.comm.Iallreduce(MPI.IN_PLACE, packed)
        if not all_finite(packed):
            yield from self.reject_nonfinite(not usable)
        self._store_residual(values, chosen)
        values.fill(0)
        packed /= self.size
        values[chosen] = packed
