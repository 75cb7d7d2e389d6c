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

from dataclasses import dataclass
from typing import Any

import numpy

from hpccoll.training.compress import parse
from hpccoll.training.compress.dense import NoCompression
from hpccoll.training.compress.onebit import OneBit
from hpccoll.training.compress.quantise import namespace
from hpccoll.training.compress.scheme import Scheme, Steps
from hpccoll.training.compress.sparse import all_finite
from hpccoll.training.optimizers.adam import accumulate
from hpccoll.training.optimizers.onebit_adam import finite_mean
from hpccoll.training.optimizers.sgd import check


@dataclass(frozen=True)
class ZeroOneAdam:
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

    rate: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    freeze_step: int = 1000
    variance_doubling: int = 16
    local_doubling: int = 32768
    most_local: int = 16
    compress: Scheme = OneBit()

    def __post_init__(self) -> None:
        check(self, ("rate", "epsilon", "weight_decay"), ("beta1", "beta2"),
              ("freeze_step", "variance_doubling", "local_doubling", "most_local"))
        object.__setattr__(self, "compress", parse(self.compress))

    def start(self, comm: Any, count: int) -> ZeroOneAdamRun:
        """Create the state for ``count`` parameters on the ranks of a communicator."""
        return ZeroOneAdamRun(self, comm, count)


class ZeroOneAdamRun:
    """State of one rank.

    After ``freeze_step`` parameters are equal on all ranks only after an exchange; see
    :attr:`is_synchronized`.

    Attributes:
        steps: number of completed steps.
        rates: sum of the rates since the last exchange.
        usable: False if gradients were skipped since the last exchange.
        interval, updates: steps between two updates of the variance, and number of updates since
            the interval doubled; after ``freeze_step``, steps between two exchanges, and number of
            steps since the interval doubled.
    """

    def __init__(self, settings: ZeroOneAdam, comm: Any, count: int):
        self.settings, self.comm, self.count = settings, comm, count
        self.steps, self.interval, self.updates = 0, 1, 0
        self.dense = NoCompression().start(comm, [(count,)])
        self.compressed = settings.compress.start(comm, [(count,)])
        self.vectors: dict[str, Any] = {}
        self.rates, self.usable = 0.0, True

    @property
    def is_synchronized(self) -> bool:
        """True if the last step ended with an exchange: all ranks have equal parameters."""
        return self.rates == 0

    def step(self, parameters: Any, gradients: Any) -> Steps:
        """Update the parameters in place; a generator like a reduction.

        Args:
            parameters: vector of float32 or float64.
            gradients: local gradients; overwritten.
        """
        if not self.vectors:
            self.vectors = {name: parameters * 0 for name in ("mean", "square", "moved")}
        if self.steps == self.settings.freeze_step:
            self.interval, self.updates = 1, 0
            self.compressed = self.settings.compress.start(self.comm, [(self.count,)])
        if self.steps < self.settings.freeze_step:
            yield from self._variance_step(parameters, gradients)
        else:
            yield from self._local_step(parameters, gradients)
        self.steps += 1

    def _variance_step(self, parameters: Any, gradients: Any) -> Steps:
        """Run a step in which the variance may change."""
        settings, mean = self.settings, self.vectors["mean"]
        updates = self.steps % self.interval == 0
        yield from (finite_mean(self.dense, gradients) if updates
                    else self.compressed.reduce(gradients))
        accumulate(mean, gradients, settings.beta1)
        if updates:
            gradients *= gradients
            accumulate(self.vectors["square"], gradients, settings.beta2)
        parameters -= settings.rate * self._direction(mean, parameters)
        if updates:
            self._count(settings.variance_doubling)

    def _local_step(self, parameters: Any, gradients: Any) -> Steps:
        """Run a local step, and an exchange of the accumulated updates if it is due."""
        settings, mean, moved = self.settings, self.vectors["mean"], self.vectors["moved"]
        if all_finite(gradients):
            accumulate(mean, gradients, settings.beta1)
            change = settings.rate * self._direction(mean, parameters)
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
            mean[:] = travels / -self.rates
            parameters += travels / scale
            moved.fill(0)
            self.rates = 0.0
        self._count(settings.local_doubling, settings.most_local)

    def _count(self, doubling: int, most: int | None = None) -> None:
        """Count an update, and double the interval if it is due."""
        self.updates += 1
        if self.updates == doubling:
            self.updates = 0
            self.interval = 2 * self.interval if most is None else min(2 * self.interval, most)

    def _scale(self) -> Any:
        square = self.vectors["square"]
        return namespace(square).sqrt(square) + self.settings.epsilon

    def _direction(self, mean: Any, parameters: Any) -> Any:
        direction = mean / self._scale() * (self.vectors["square"] > 0)
        direction += self.settings.weight_decay * parameters
        return direction

    def state(self) -> dict[str, Any]:
        """Return the state for a restart; collective."""
        return {"steps": self.steps, "interval": self.interval, "updates": self.updates,
                "rates": self.rates, "usable": self.usable, "compressed": self.compressed.state(),
                **{name: one.copy() for name, one in self.vectors.items()}}

    def load(self, state: dict[str, Any]) -> None:
        """Restore a state that :meth:`state` returned on this rank."""
        self.steps, self.interval, self.updates = (
            state[name] for name in ("steps", "interval", "updates"))
        self.rates, self.usable = state["rates"], state["usable"]
        self.vectors = {name: state[name].copy() for name in ("mean", "square", "moved")
                        if name in state}
        self.compressed.load(state["compressed"])
