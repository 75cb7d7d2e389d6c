"""0/1 Adam: variance updates at growing intervals, then local steps.

Before ``freeze_step``, with interval k that starts at 1 and doubles after every
``variance_doubling`` updates of the variance:

    every k-th step   g averaged uncompressed;  m and v as in Adam
    other steps       g averaged in one bit;  m only
    all               x <- x - rate ( m / (sqrt(v) + epsilon) + weight_decay x )

In both phases d = 0 and u = 0 where v = 0, because one bit cannot represent zero (see
:mod:`~hpccoll.training.optimizers.onebit_adam`).
Afterwards v is frozen, and ranks step independently; d = m / (sqrt(v) + epsilon) + weight_decay x:

    every step        m <- beta1 m + (1-beta1) g of this rank;  x <- x - rate d
                      u <- u - rate d;  s <- s + rate
    every l-th step   x <- x - u;  u <- two_phase(u (sqrt(v) + epsilon));  m <- -u / s
                      x <- x + u / (sqrt(v) + epsilon);  u <- 0;  s <- 0

l starts at 1 and doubles after every ``local_doubling`` steps, up to ``most_local``. The residuals
of gradients are dropped at ``freeze_step``, because another quantity is sent afterwards.

Gradients with NaN or infinity are rejected on all ranks. After freeze_step the rank skips them, and
the next exchange is rejected; the local updates of the other ranks are sent in the exchange after
that.

    wire   uncompressed, one bit or nothing, by the step
    law    after freeze_step that of the scheme, with u (sqrt(v) + epsilon) for x

Source: Lu et al., 2022, and DeepSpeed's ``ZeroOneAdam``; no bias correction, as there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy

from hpccoll.training.compress.scheme import Scheme, Steps, all_finite
from hpccoll.training.compress.two_phase import OneBit
from hpccoll.training.optimizers.onebit_adam import CompressedAdam, CompressedAdamRun


@dataclass(frozen=True)
class ZeroOneAdam(CompressedAdam):
    """Settings of 0/1 Adam.

    The last five are DeepSpeed's ``var_freeze_step``, ``var_update_scaler``, ``local_step_scaler``
    and ``local_step_clipper``, and the scheme.

    Attributes:
        rate, beta1, beta2, epsilon, weight_decay: as in Adam.
        freeze_step: steps until the variance is frozen.
        variance_doubling: updates of the variance until their interval doubles.
        local_doubling: steps until the interval of exchanges doubles.
        most_local: longest interval of exchanges.
        compress: compression scheme; it must have error feedback.
    """

    variance_doubling: int = 16
    local_doubling: int = 32768
    most_local: int = 16
    compress: Scheme = OneBit()

    def __post_init__(self) -> None:
        self._check("variance_doubling", "local_doubling", "most_local")

    def start(self, comm: Any, count: int) -> ZeroOneAdamRun:
        """Create the state for ``count`` parameters on the ranks of a communicator."""
        return ZeroOneAdamRun(self, comm, count)


class ZeroOneAdamRun(CompressedAdamRun):
    """State of one rank.

    After ``freeze_step`` parameters are equal on all ranks only after an exchange; see
    :attr:`is_synchronized`.

    Attributes:
        rates: sum of the rates since the last exchange.
        usable: False if gradients were skipped since the last exchange.
        interval, updates: steps between two updates of the variance, and number of updates since
            the interval doubled; after ``freeze_step``, steps between two exchanges, and number of
            steps since the interval doubled.
    """

    names = ("mean", "square", "moved")
    numbers = ("steps", "interval", "updates", "rates", "usable")

    def __init__(self, settings: ZeroOneAdam, comm: Any, count: int):
        super().__init__(settings, comm, count)
        self.interval: float = 1
        self.updates, self.rates, self.usable = 0, 0.0, True

    @property
    def is_synchronized(self) -> bool:
        """True if the last step ended with an exchange: all ranks have equal parameters."""
        return self.rates == 0

    def _step(self, parameters: Any, gradients: Any) -> Steps:
        if self.steps == self.settings.freeze_step:
            self.interval, self.updates = 1, 0
            self.compressed = self.settings.compress.start(self.comm, [(self.count,)])
        if self.steps < self.settings.freeze_step:
            yield from self._variance_step(parameters, gradients)
        else:
            yield from self._local_step(parameters, gradients)

    def _variance_step(self, parameters: Any, gradients: Any) -> Steps:
        updates = self.steps % self.interval == 0
        yield from self._finite_mean(gradients) if updates else self.compressed.reduce(gradients)
        self._accumulate(gradients, updates)
        parameters -= self._update(parameters)
        if updates:
            self._count(self.settings.variance_doubling)

    def _local_step(self, parameters: Any, gradients: Any) -> Steps:
        """Run a local step, and an exchange of the accumulated updates if it is due."""
        settings, moved = self.settings, self.vectors["moved"]
        if all_finite(gradients):
            self._accumulate(gradients, False)
            change = self._update(parameters)
            parameters -= change
            moved -= change
        else:
            self.usable = False
        self.rates += settings.rate
        if (self.steps - settings.freeze_step + 1) % self.interval == 0:
            scale = self._scale()
            travels = moved * scale
            if not self.usable:
                travels.fill(numpy.nan)
            self.usable = True
            yield from self.compressed.reduce(travels)
            parameters -= moved
            travels *= self.vectors["square"] > 0
            self.vectors["mean"][:] = travels / -self.rates
            parameters += travels / scale
            moved.fill(0)
            self.rates = 0.0
        self._count(settings.local_doubling, settings.most_local)

    def _count(self, doubling: int, most: float = math.inf) -> None:
        """Count an update, and double the interval if it is due."""
        self.updates += 1
        if self.updates == doubling:
            self.updates, self.interval = 0, min(2 * self.interval, most)
