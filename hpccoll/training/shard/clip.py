"""Global norms of sharded gradients, gradient clipping, and loss scaling.

Each element is counted on the rank that owns it: each rank sums powers in float64, and one small
allreduce adds the sums. Replicated arrays are counted once. Source: global norm clipping of
Pascanu, Mikolov and Bengio, ICML 2013, with the constants of PyTorch's ``clip_grad_norm_``; for
shards as in FSDP.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy
from mpi4py import MPI

from hpccoll.errors import ArgumentError
from hpccoll.training.arguments import as_list, as_number, communicator

#: Added to a norm that is a divisor, as in PyTorch.
EPSILON = 1e-6
#: Elements of one block, which fits into the cache.
CHUNK = 1 << 14
#: Precision of float32 in bits.
DIGITS = 24


@dataclass(frozen=True)
class Clip:
    """Clipping of gradients to a largest global norm.

    Attributes:
        max_norm: the largest norm.
        order: order of the norm, such as 2, 1 or ``math.inf``.

    Raises:
        ArgumentError: not positive numbers.
    """

    max_norm: float
    order: float = 2.0

    def __post_init__(self) -> None:
        check_order(self.order)
        if not as_number("max_norm", self.max_norm, "a positive number") > 0:
            raise ArgumentError("max_norm", f"expected a positive number, got {self.max_norm!r}")

    def factor(self, norm: float) -> float:
        """Return the factor for gradients of a norm; 1 if the norm is at most ``max_norm``."""
        return min(1.0, self.max_norm / (norm + EPSILON))


def check_order(order: float) -> None:
    """Validate the order of a norm."""
    if not as_number("order", order, "a positive number or inf") > 0:
        raise ArgumentError("order", f"expected a positive number or inf, got {order!r}")


def power_sum(values: numpy.ndarray, order: float) -> float:
    """Return the sum of ``|x| ** order`` in float64; for order ``inf`` the largest ``|x|``.

    The result does not depend on the memory alignment of the values.
    """
    with numpy.errstate(over="ignore", invalid="ignore"):
        return join_powers([_power_of(values[start:start + CHUNK].astype(numpy.float64), order)
                            for start in range(0, values.size, CHUNK)], order)


def join_powers(powers: Sequence[float], order: float) -> float:
    """Combine results of :func:`power_sum`; NaN if one of them is NaN."""
    if math.isinf(order):
        return float(numpy.max(powers, initial=0.0))
    return float(sum(powers))


def _power_of(x: numpy.ndarray, order: float) -> float:
    if order == 2:
        return float(numpy.sum(numpy.square(x, out=x)))
    numpy.abs(x, out=x)
    if math.isinf(order):
        return float(x.max())
    return float(numpy.sum(x if order == 1 else numpy.power(x, order, out=x)))


def norm_of(power_sum: float, order: float, double: bool) -> float:
    """Return the norm of a power sum, rounded to float32 precision unless ``double``.

    Power sums over other partitions of the same elements differ in the last bits of float64.
    Rounding removes the difference, so training is the same at all stages.
    """
    norm = power_sum if math.isinf(order) else power_sum ** (1 / order)
    if double or not math.isfinite(norm):
        return norm
    digits, exponent = math.frexp(norm)
    return math.ldexp(round(math.ldexp(digits, DIGITS)), exponent - DIGITS)


def reduce_powers(comm: Any, power_sum: float, order: float, *counts: float) -> tuple[float, ...]:
    """Reduce power sums (or maxima) and counts of faults over ranks.

    One allreduce. NaN powers are ignored, so count them.
    """
    sums = numpy.array([power_sum if math.isfinite(power_sum) else 0.0, *counts])
    comm.Allreduce(MPI.IN_PLACE, sums, op=MPI.MAX if math.isinf(order) else MPI.SUM)
    return tuple(float(value) for value in sums)


def global_norm(comm: Any, shards: Iterable[numpy.ndarray], order: float = 2.0, *,
                replicated: Iterable[numpy.ndarray] = ()) -> float:
    """Return the norm of vectors that are sharded over ranks; collective.

    Args:
        comm: communicator of all ranks with shards.
        shards: vectors whose elements are on one rank only.
        order: order of the norm; ``math.inf`` for the largest absolute value.
        replicated: vectors that are equal on all ranks.

    Returns:
        The norm, equal on all ranks; not finite if an element is not.

    Raises:
        ArgumentError: the order is not positive.
    """
    check_order(order)
    rank = communicator("comm", comm).Get_rank()
    shards, replicated = as_list("shards", shards), as_list("replicated", replicated)
    vectors = [*shards, *(replicated if rank == 0 else ())]
    mine = join_powers([power_sum(vector, order) for vector in vectors], order)
    double = any(vector.dtype == numpy.float64 for vector in vectors)
    total, odd, doubles = reduce_powers(comm, mine, order, not math.isfinite(mine), double)
    return math.nan if odd else norm_of(total, order, bool(doubles))


def clip_shards(comm: Any, shards: Sequence[numpy.ndarray], max_norm: float, order: float = 2.0,
                *, replicated: Sequence[numpy.ndarray] = ()) -> float:
    """Clip sharded gradients to a global norm in place; collective.

    Args:
        comm, shards, order, replicated: as in :func:`global_norm`.
        max_norm: the largest norm.

    Returns:
        The norm before clipping. Nothing is changed if it is not finite.
    """
    clip = Clip(max_norm, order)
    norm = global_norm(comm, shards, order, replicated=replicated)
    factor = clip.factor(norm) if math.isfinite(norm) else 1.0
    if factor < 1:
        for vector in (*shards, *replicated):
            vector *= vector.dtype.type(factor)
    return norm


class Scale(NamedTuple):
    """State of a loss scale.

    Attributes:
        value: factor of losses.
        steps: steps with finite gradients since the last change.
    """

    value: float
    steps: int = 0


@dataclass(frozen=True)
class LossScale:
    """Update rule of a loss scale, so that 16-bit gradients do not underflow.

    All ranks update the scale by a reduced value, so all have the same scale. Source: Micikevicius
    et al., "Mixed Precision Training", ICLR 2018; rule and defaults as in PyTorch's ``GradScaler``.

    Attributes:
        initial: initial scale.
        growth: factor after ``interval`` consecutive steps with finite gradients.
        backoff: factor after a step with non-finite gradients, which is skipped.
        interval: number of steps; 0 disables growth.

    Raises:
        ArgumentError: invalid factors.
    """

    initial: float = 65536.0
    growth: float = 2.0
    backoff: float = 0.5
    interval: int = 2000

    def __post_init__(self) -> None:
        for field in fields(self):
            as_number(f"loss_scale: {field.name}", getattr(self, field.name))
        if not (self.initial > 0 and self.growth >= 1 and 0 < self.backoff <= 1
                and self.interval >= 0):
            raise ArgumentError("loss_scale", f"{self} is invalid", "use initial > 0, growth >= 1, "
                                "0 < backoff <= 1, interval >= 0")

    def next_scale(self, scale: Scale, finite: bool) -> Scale:
        """Return the scale after a step with finite or non-finite gradients.

        >>> LossScale(interval=2).next_scale(Scale(8.0, steps=1), finite=True)
        Scale(value=16.0, steps=0)
        """
        if not finite:
            return Scale(scale.value * self.backoff)
        if scale.steps + 1 == self.interval:
            return Scale(scale.value * self.growth)
        return Scale(scale.value, scale.steps + 1)
