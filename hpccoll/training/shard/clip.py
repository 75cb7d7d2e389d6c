"""Norms of gradients that are spread over ranks, and clipping by them.

Every element is counted by the one rank that owns it: sums of powers are made here in float64, and
one small allreduce adds them up. Arrays that all ranks hold alike are counted once. Source: global
norm clipping of Pascanu, Mikolov and Bengio, ICML 2013, with the constants of PyTorch's
``clip_grad_norm_``; for shards as in FSDP's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy
from mpi4py import MPI

from hpccoll.errors import ArgumentError
from hpccoll.training.given import communicator, listed, number

#: Added to a norm before something is divided by it, as in PyTorch.
EPSILON = 1e-6
#: Elements that are looked at together: they stay in the cache.
CHUNK = 1 << 14
#: Binary digits of a float32.
DIGITS = 24


@dataclass(frozen=True)
class Clip:
    """Gradients whose global norm is larger are made shorter.

    Attributes:
        max_norm: the largest norm.
        order: of the norm, such as 2, 1 or ``math.inf``.

    Raises:
        ArgumentError: no positive numbers.
    """

    max_norm: float
    order: float = 2.0

    def __post_init__(self) -> None:
        check_order(self.order)
        if not number("max_norm", self.max_norm, "a positive number") > 0:
            raise ArgumentError("max_norm", f"expected a positive number, got {self.max_norm!r}")

    def factor(self, norm: float) -> float:
        """What gradients of a norm are multiplied by; 1 where they are short enough."""
        return min(1.0, self.max_norm / (norm + EPSILON))


def check_order(order: float) -> None:
    """Check the order of a norm.

    Raises:
        ArgumentError: it is not positive.
    """
    if not number("order", order, "a positive number or inf") > 0:
        raise ArgumentError("order", f"expected a positive number or inf, got {order!r}")


def power(values: numpy.ndarray, order: float) -> float:
    """The sum of ``|x| ** order`` in float64; for the order ``inf`` the largest ``|x|``.

    The same values give the same bits, wherever they lie in memory.
    """
    with numpy.errstate(over="ignore", invalid="ignore"):
        return join([_power_of(values[start:start + CHUNK].astype(numpy.float64), order)
                     for start in range(0, values.size, CHUNK)], order)


def join(powers: Sequence[float], order: float) -> float:
    """What several :func:`power` make together; not a number if one of them is none."""
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
    """The norm that a sum of powers makes, with the digits of float32 unless it is ``double``.

    Sums over other cuts of the same elements differ in the last bits of float64; rounding takes
    these away, so that training at other stages stays the same.
    """
    norm = power_sum if math.isinf(order) else power_sum ** (1 / order)
    if double or not math.isfinite(norm):
        return norm
    digits, exponent = math.frexp(norm)
    return math.ldexp(round(math.ldexp(digits, DIGITS)), exponent - DIGITS)


def agree(comm: Any, power_sum: float, order: float, *counts: float) -> tuple[float, ...]:
    """Add up powers (or take the largest), and counts of whatever must not happen, over ranks.

    One allreduce. A power that is not a number is left out, so count it.
    """
    told = numpy.array([power_sum if math.isfinite(power_sum) else 0.0, *counts])
    comm.Allreduce(MPI.IN_PLACE, told, op=MPI.MAX if math.isinf(order) else MPI.SUM)
    return tuple(float(value) for value in told)


def global_norm(comm: Any, shards: Iterable[numpy.ndarray], order: float = 2.0, *,
                replicated: Iterable[numpy.ndarray] = ()) -> float:
    """The norm of vectors whose elements are spread over ranks; collective.

    Args:
        comm: all ranks that hold some of them.
        shards: vectors of which every element is on one rank only.
        order: of the norm; ``math.inf`` for the largest absolute value.
        replicated: vectors that all ranks hold alike.

    Returns:
        The same on all ranks; not finite if an element is not.

    Raises:
        ArgumentError: an order that is not positive.
    """
    check_order(order)
    rank = communicator("comm", comm).Get_rank()
    shards, replicated = listed("shards", shards), listed("replicated", replicated)
    vectors = [*shards, *(replicated if rank == 0 else ())]
    mine = join([power(vector, order) for vector in vectors], order)
    double = any(vector.dtype == numpy.float64 for vector in vectors)
    total, odd, doubles = agree(comm, mine, order, not math.isfinite(mine), double)
    return math.nan if odd else norm_of(total, order, bool(doubles))


def clip_shards(comm: Any, shards: Sequence[numpy.ndarray], max_norm: float, order: float = 2.0,
                *, replicated: Sequence[numpy.ndarray] = ()) -> float:
    """Shorten gradients that are spread over ranks, in place, to a global norm; collective.

    Args:
        comm, shards, order, replicated: as of :func:`global_norm`.
        max_norm: the largest norm.

    Returns:
        The norm before. Nothing is changed if it is not finite.
    """
    clip = Clip(max_norm, order)
    norm = global_norm(comm, shards, order, replicated=replicated)
    factor = clip.factor(norm) if math.isfinite(norm) else 1.0
    if factor < 1:
        for vector in (*shards, *replicated):
            vector *= vector.dtype.type(factor)
    return norm
