"""Base of sparse schemes: send some elements, accumulate the others in a residual.

    u <- m u + g      momentum correction, if enabled: the local velocity
    r <- r + u        the residual (u is g without momentum)
    out = mean of the selected r; there r <- 0, and u <- 0 (factor masking)

    law   sum mean u = sum out + mean r, masked or not; u is g without momentum. Bitwise if the
          sums are exact: selection does not round

Momentum correction replaces the optimizer's momentum, which would be applied to late gradients.
Masking clears the velocity of sent elements. The density decreases from 1 to its final value by a
constant factor during the warm-up steps. Source: Lin et al. (2018).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy
from mpi4py import MPI

from hpccoll.training.compress.quantise import namespace
from hpccoll.training.compress.scheme import Reduction, Scheme, Steps


@dataclass(frozen=True)
class SparseScheme(Scheme):
    """Scheme that sends a fraction of the elements.

    Attributes:
        density: the fraction.
        warmup: steps until the density reaches that value.
    """

    density: float = 0.01
    warmup: int = 0

    def __post_init__(self) -> None:
        self.check("density", 0 < self.density <= 1, "above 0 and at most 1")
        self.check("warmup", self.warmup >= 0, "0 or more steps")

    @property
    def warmup_steps(self) -> int:
        return self.warmup

    def share(self, count: int, step: int | None) -> int:
        """Return how many of ``count`` elements a step sends; by default after the warm-up."""
        density = self.density
        if step is not None and step < self.warmup:
            density **= step / self.warmup
        return max(1, min(count, round(density * count)))


@dataclass(frozen=True)
class MomentumCorrection(SparseScheme):
    """Sparse scheme with momentum correction.

    Attributes:
        density, warmup: see :class:`SparseScheme`.
        momentum: factor of the velocity; 0 for none.
        masking: clear the velocity of sent elements.
    """

    momentum: float = 0.0
    masking: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check("momentum", 0 <= self.momentum < 1, "at least 0 and below 1")


class ResidualReduction(Reduction):
    """Residual and velocity of one bucket on one rank.

    Attributes:
        velocity: the velocity after a successful step; ``None`` without momentum.
    """

    velocity: Any = None
    momentum = 0.0
    masking = False

    def _add_residual(self, values: Any) -> None:
        """Replace ``values`` by the residual of this step."""
        if self.momentum:
            self.velocity = self.vector("velocity", values) * self.momentum
            self.velocity += values
            values[:] = self.velocity
        values += self.vector("error", values)

    def _store_residual(self, values: Any, selected: Any) -> None:
        """Store the residual without the selected elements: indices, or a slice."""
        error = self.vectors["error"]
        error[:] = values
        self._clear(error, selected)
        if self.velocity is not None:
            self.vectors["velocity"], self.velocity = self.velocity, None
            if self.masking:
                self._clear(self.vectors["velocity"], selected)

    def _clear(self, vector: Any, selected: Any) -> None:
        vector[selected] = 0

    def _allreduce_dense(self, values: Any) -> Steps:
        """Allreduce all elements."""
        residual = values.copy()
        yield self.comm.Iallreduce(MPI.IN_PLACE, values)
        if not all_finite(values):
            yield from self.reject_nonfinite(not all_finite(residual))
        self._store_residual(residual, slice(None))
        values /= self.size


def all_finite(values: Any) -> bool:
    """Return True if all values are finite; allocates no vector of Booleans."""
    module = namespace(values)
    with numpy.errstate(all="ignore"):
        return values.size == 0 or bool(module.isfinite(values.max()) and
                                        module.isfinite(values.min()))
