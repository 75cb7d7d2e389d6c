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
from hpccoll.training.compress.quantise import namespace
from hpccoll.training.compress.scheme import Scheme, Steps, all_finite
from hpccoll.training.compress.two_phase import OneBit
from hpccoll.training.optimizers.adam import accumulate
from hpccoll.training.optimizers.sgd import check


@dataclass(frozen=True)
class CompressedAdam:
    """Settings that 1-bit and 0/1 Adam share; a subclass adds its own and ``compress``."""

    rate: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    freeze_step: int = 1000

    def _check(self, *counts: str) -> None:
        check(self, ("rate", "epsilon", "weight_decay"), ("beta1", "beta2"),
              ("freeze_step", *counts))
        object.__setattr__(self, "compress", parse(self.compress))  # type: ignore[attr-defined]


@dataclass(frozen=True)
class OneBitAdam(CompressedAdam):
    """Settings of 1-bit Adam.

    Attributes:
        rate, beta1, beta2, epsilon, weight_decay: as in Adam.
        freeze_step: number of warm-up steps.
        compress: scheme of the momentum afterwards; it must have error feedback.
    """

    compress: Scheme = OneBit()

    def __post_init__(self) -> None:
        self._check()

    def start(self, comm: Any, count: int) -> OneBitAdamRun:
        """Create the state for ``count`` parameters on the ranks of a communicator."""
        return OneBitAdamRun(self, comm, count)

    def wire_bytes(self, count: int, size: int, step: int) -> float:
        """Return the bytes that a rank sends in a step (from 0), as the mean over ranks."""
        scheme = NoCompression() if step < self.freeze_step else self.compress
        return scheme.wire_bytes([(count,)], size, max(0, step - self.freeze_step))


class CompressedAdamRun:
    """State of one rank; ``steps`` is the number of completed steps.

    Attributes:
        names: the vectors; momentum ``mean`` and variance ``square`` are among them.
        numbers: attributes that are part of the state.
    """

    names: tuple[str, ...] = ("mean", "square")
    numbers: tuple[str, ...] = ("steps",)

    def __init__(self, settings: Any, comm: Any, count: int):
        self.settings, self.comm, self.count, self.steps = settings, comm, count, 0
        self.dense = NoCompression().start(comm, [(count,)])
        self.compressed = settings.compress.start(comm, [(count,)])
        self.vectors: dict[str, Any] = {}

    def step(self, parameters: Any, gradients: Any) -> Steps:
        """Update the parameters in place; a generator like a reduction.

        Args:
            parameters: vector of float32 or float64; in a warm-up the same on all ranks.
            gradients: local gradients; overwritten.
        """
        if not self.vectors:
            self.vectors = {name: parameters * 0 for name in self.names}
        yield from self._step(parameters, gradients)
        self.steps += 1

    def _step(self, parameters: Any, gradients: Any) -> Steps:
        raise NotImplementedError

    def _finite_mean(self, gradients: Any) -> Steps:
        """Average without compression, but raise for NaN and infinity on all ranks."""
        usable = all_finite(gradients)
        yield from self.dense.reduce(gradients)
        if not all_finite(gradients):
            yield from self.dense.reject_nonfinite(not usable)

    def _accumulate(self, gradients: Any, square: bool = True) -> None:
        """Update momentum and variance; the latter overwrites the gradients with their squares."""
        accumulate(self.vectors["mean"], gradients, self.settings.beta1)
        if square:
            gradients *= gradients
            accumulate(self.vectors["square"], gradients, self.settings.beta2)

    def _scale(self) -> Any:
        square = self.vectors["square"]
        return namespace(square).sqrt(square) + self.settings.epsilon

    def _update(self, parameters: Any) -> Any:
        """Return the change of the parameters."""
        update = self.vectors["mean"] / self._scale() * (self.vectors["square"] > 0)
        update += self.settings.weight_decay * parameters
        update *= self.settings.rate
        return update

    def state(self) -> dict[str, Any]:
        """Return the state for a restart; collective."""
        return {**{name: getattr(self, name) for name in self.numbers},
                "compressed": self.compressed.state(),
                **{name: one.copy() for name, one in self.vectors.items()}}

    def load(self, state: dict[str, Any]) -> None:
        """Restore a state that :meth:`state` returned.

        For another number of ranks, apply :func:`~hpccoll.training.compress.states.average_states`
        to ``"compressed"`` first.
        """
        for name in self.numbers:
            setattr(self, name, state[name])
        self.vectors = {name: state[name].copy() for name in self.names if name in state}
        self.compressed.load(state["compressed"])


class OneBitAdamRun(CompressedAdamRun):
    """State of one rank; parameters, ``mean`` and ``square`` are the same on all ranks."""

    def _step(self, parameters: Any, gradients: Any) -> Steps:
        if self.steps < self.settings.freeze_step:
            yield from self._finite_mean(gradients)
            self._accumulate(gradients)
        else:
            # A copy: a rejected step must not change the momentum.
            mean = self.vectors["mean"].copy()
            accumulate(mean, gradients, self.settings.beta1)
            yield from self.compressed.reduce(mean)
            mean *= self.vectors["square"] > 0
            self.vectors["mean"] = mean
        parameters -= self._update(parameters)
