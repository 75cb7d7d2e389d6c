"""1-bit Adam: Adam until its variance is stable, then 1-bit compressed momentum.

    warm-up    g averaged uncompressed;  m <- beta1 m + (1-beta1) g;  v <- beta2 v + (1-beta2) g^2
    afterwards v fixed; m <- beta1 m + (1-beta1) g of this rank; m <- two_phase(m), 0 where v = 0
    both       x <- x - rate ( m / (sqrt(v) + epsilon) + weight_decay x )

Feedback works on m because x is linear in m once v is frozen. There is no bias correction, as in
DeepSpeed: start with a small rate. There, warm-up takes 15 to 25 % of all steps.

    wire   in a step of the warm-up that of no compression, then that of the scheme
    law    that of the scheme, with m for x

One bit cannot represent zero: elements without a gradient in the warm-up would get noise, divided
by epsilon, so they are frozen afterwards (DeepSpeed requires a mask). If gradients are rare, v is
small and amplifies noise: choose a larger epsilon.
Gradients with NaN or infinity are rejected on all ranks, without any change.
Source: Tang et al., 2021, and DeepSpeed's ``OnebitAdam``, which drops the residuals at a restart;
here they are part of the state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hpccoll.training.compress import parse
from hpccoll.training.compress.dense import NoCompression
from hpccoll.training.compress.onebit import OneBit
from hpccoll.training.compress.quantise import namespace
from hpccoll.training.compress.scheme import Reduction, Scheme, Steps
from hpccoll.training.compress.sparse import all_finite
from hpccoll.training.optimizers.adam import accumulate
from hpccoll.training.optimizers.sgd import check


@dataclass(frozen=True)
class OneBitAdam:
    """Settings of 1-bit Adam.

    Attributes:
        rate, beta1, beta2, epsilon, weight_decay: as in Adam.
        freeze_step: number of warm-up steps.
        compress: scheme of the momentum afterwards; it must have error feedback.
    """

    rate: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    freeze_step: int = 1000
    compress: Scheme = OneBit()

    def __post_init__(self) -> None:
        check(self, ("rate", "epsilon", "weight_decay"), ("beta1", "beta2"),
              ("freeze_step",))
        object.__setattr__(self, "compress", parse(self.compress))

    def start(self, comm: Any, count: int) -> OneBitAdamRun:
        """Create the state for ``count`` parameters on the ranks of a communicator."""
        return OneBitAdamRun(self, comm, count)

    def wire_bytes(self, count: int, size: int, step: int) -> float:
        """Return the bytes that a rank sends in a step (from 0), as the mean over ranks."""
        scheme = NoCompression() if step < self.freeze_step else self.compress
        return scheme.wire_bytes([(count,)], size, max(0, step - self.freeze_step))


def finite_mean(reduction: Reduction, gradients: Any) -> Steps:
    """Reduce by a scheme that preserves NaN and infinity, but raise for them on all ranks."""
    usable = all_finite(gradients)
    yield from reduction.reduce(gradients)
    if not all_finite(gradients):
        yield from reduction.reject_nonfinite(not usable)


class OneBitAdamRun:
    """State of one rank; parameters, ``mean`` and ``square`` are the same on all ranks.

    Attributes:
        steps: number of completed steps.
    """

    def __init__(self, settings: OneBitAdam, comm: Any, count: int):
        self.settings, self.steps = settings, 0
        self.dense = NoCompression().start(comm, [(count,)])
        self.compressed = settings.compress.start(comm, [(count,)])
        self.mean: Any = None
        self.square: Any = None

    def step(self, parameters: Any, gradients: Any) -> Steps:
        """Update the parameters in place; a generator like a reduction.

        Args:
            parameters: vector of float32 or float64, the same on all ranks.
            gradients: local gradients; overwritten.
        """
        settings = self.settings
        if self.mean is None:
            self.mean, self.square = parameters * 0, parameters * 0
        if self.steps < settings.freeze_step:
            yield from finite_mean(self.dense, gradients)
            accumulate(self.mean, gradients, settings.beta1)
            gradients *= gradients
            accumulate(self.square, gradients, settings.beta2)
        else:
            # A copy: a rejected step must not change the momentum.
            mean = self.mean.copy()
            accumulate(mean, gradients, settings.beta1)
            yield from self.compressed.reduce(mean)
            mean *= self.square > 0
            self.mean = mean
        update = self.mean / (namespace(self.square).sqrt(self.square) + settings.epsilon)
        update += settings.weight_decay * parameters
        update *= settings.rate
        parameters -= update
        self.steps += 1

    def state(self) -> dict[str, Any]:
        """Return the state for a restart; collective."""
        state = {"steps": self.steps, "compressed": self.compressed.state()}
        if self.mean is not None:
            state.update(mean=self.mean.copy(), square=self.square.copy())
        return state

    def load(self, state: dict[str, Any]) -> None:
        """Restore a state that :meth:`state` returned.

        For another number of ranks, apply :func:`~hpccoll.training.compress.states.average_states`
        to ``"compressed"`` first.
        """
        self.steps = state["steps"]
        self.mean, self.square = (None if name not in state else state[name].copy()
                                  for name in ("mean", "square"))
        self.compressed.load(state["compressed"])
