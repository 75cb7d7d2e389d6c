"""What the sparse schemes share: a few elements travel, the others wait in a residual.

    u <- m u + g      momentum correction, if asked for: the velocity, of the rank's own
    r <- r + u        the residual (u is g without momentum)
    out = mean of the selected r; there r <- 0, and u <- 0 (factor masking)

    law   sum mean u = sum out + mean r, masked or not; u is g without momentum. To the bit where
          the sums are exact: selecting rounds nothing

Momentum correction takes the place of the optimizer's, which would be applied to late gradients.
Masking keeps the velocity from pushing where it has just been. The density falls from 1, all, to
its last value over the first steps, by one factor. Source: Lin et al. (2018).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy
from mpi4py import MPI

from hpccoll.training.compress.quantise import namespace
from hpccoll.training.compress.scheme import Reduction, Scheme, Steps


@dataclass(frozen=True)
class Sparse(Scheme):
    """A share of the elements travels.

    Attributes:
        density: the share.
        warmup: steps until the density is down to that.
    """

    density: float = 0.01
    warmup: int = 0

    def __post_init__(self) -> None:
        self.check("density", 0 < self.density <= 1, "above 0 and at most 1")
        self.check("warmup", self.warmup >= 0, "0 or more steps")

    @property
    def settling(self) -> int:
        return self.warmup

    def share(self, count: int, step: int | None) -> int:
        """How many of so many travel in a step, or after the warm-up."""
        density = self.density
        if step is not None and step < self.warmup:
            density **= step / self.warmup
        return max(1, min(count, round(density * count)))


@dataclass(frozen=True)
class Corrected(Sparse):
    """A sparse scheme with momentum correction.

    Attributes:
        density, warmup: as of all sparse schemes.
        momentum: of the velocity; 0 for none.
        masking: clear the velocity of what travels.
    """

    momentum: float = 0.0
    masking: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check("momentum", 0 <= self.momentum < 1, "at least 0 and below 1")


class Residual(Reduction):
    """The residual and the velocity of one bucket on one rank.

    Attributes:
        velocity: what the velocity will be if the step succeeds; ``None`` without momentum.
    """

    velocity: Any = None
    momentum = 0.0
    masking = False

    def _collect(self, values: Any) -> None:
        """Make ``values`` the residual of this step."""
        if self.momentum:
            self.velocity = self.vector("velocity", values) * self.momentum
            self.velocity += values
            values[:] = self.velocity
        values += self.vector("error", values)

    def _keep(self, values: Any, selected: Any) -> None:
        """Remember the residual but for what was selected: indices, or a slice."""
        error = self.vectors["error"]
        error[:] = values
        self._clear(error, selected)
        if self.velocity is not None:
            self.vectors["velocity"], self.velocity = self.velocity, None
            if self.masking:
                self._clear(self.vectors["velocity"], selected)

    def _clear(self, vector: Any, selected: Any) -> None:
        vector[selected] = 0

    def _dense(self, values: Any) -> Steps:
        """Send everything."""
        residual = values.copy()
        yield self.comm.Iallreduce(MPI.IN_PLACE, values)
        if not finite(values):
            yield from self.refuse(not finite(residual))
        self._keep(residual, slice(None))
        values /= self.size


def finite(values: Any) -> bool:
    """Tell whether all values of a vector are; without a vector of answers."""
    module = namespace(values)
    with numpy.errstate(all="ignore"):
        return values.size == 0 or bool(module.isfinite(values.max()) and
                                        module.isfinite(values.min()))
