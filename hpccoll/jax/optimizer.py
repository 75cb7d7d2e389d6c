"""Wrapper for optax optimizers that averages gradients over ranks first."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
from jax import numpy as jnp
from mpi4py import MPI

from hpccoll.errors import ArgumentError
from hpccoll.jax.gradients import AVERAGE, Averager
from hpccoll.training.compress import Scheme
from hpccoll.training.framework import require


class Accumulation(NamedTuple):
    """State of an optimizer with gradient accumulation.

    Attributes:
        calls: number of calls since the last step.
    """

    calls: Any
    sums: Any
    inner: Any


def distributed(optimizer: Any, *, comm: MPI.Intracomm | None = None,
                compress: str | Scheme = "none", op: str = AVERAGE, every: int = 1) -> Any:
    """Wrap an optax optimizer so that all ranks take the same steps.

    Args:
        optimizer: an ``optax.GradientTransformation``.
        comm: the ranks.
        compress: compression scheme.
        op: ``"average"`` or ``"sum"``.
        every: number of calls of ``update`` for one step. Other calls accumulate gradients without
            communication and return zero updates; a step uses the mean over the calls.
            (``optax.MultiSteps`` around the result would communicate in each call.)

    Returns:
        An ``optax.GradientTransformationExtraArgs``. Its state is that of the optimizer, or with
            ``every`` an :class:`Accumulation`.

    Raises:
        ArgumentError: ``every`` is below 1, or an unknown ``op`` or scheme.
        FrameworkError: optax is not installed.
    """
    optax = require("optax", extra="jax")
    if every < 1:
        raise ArgumentError("every", f"expected 1 or more calls, got {every}")
    inner = optax.with_extra_args_support(optimizer)
    average = Averager(comm, compress=compress, op=op)

    def step(gradients: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        return inner.update(average(gradients), state, params, **extra)

    if every == 1:
        return optax.GradientTransformationExtraArgs(inner.init, step)

    def start(params: Any) -> Accumulation:
        return Accumulation(jnp.zeros((), jnp.int32), jax.tree.map(jnp.zeros_like, params),
                            inner.init(params))

    def update(gradients: Any, state: Accumulation, params: Any = None, **extra: Any
               ) -> tuple[Any, Accumulation]:
        sums = jax.tree.map(jnp.add, state.sums, gradients)

        def update_all() -> tuple[Any, Accumulation]:
            means = jax.tree.map(lambda x: x / every, sums)
            updates, after = step(means, state.inner, params, **extra)
            return updates, Accumulation(jnp.zeros_like(state.calls),
                                         jax.tree.map(jnp.zeros_like, sums), after)

        def part() -> tuple[Any, Accumulation]:
            return (jax.tree.map(jnp.zeros_like, gradients),
                    Accumulation(state.calls + 1, sums, state.inner))

        return jax.lax.cond(state.calls == every - 1, update_all, part)

    return optax.GradientTransformationExtraArgs(start, update)
