"""Averaging of gradients, for optax optimizers as well; broadcast of parameters.

In JAX all gradients of a step become available together, so there is no overlap with the backward
pass: one blocking call for each dtype is the fastest exchange.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

import jax
import numpy
from jax import numpy as jnp
from mpi4py import MPI

from hpccoll.errors import ArgumentError, ArgumentTypeError
from hpccoll.jax.calls import ArrayCall, Shape
from hpccoll.jax.collectives import allreduce, bcast
from hpccoll.jax.fusion import call_fused
from hpccoll.training.buckets import BUCKET_BYTES, ArraySpec, plan_buckets
from hpccoll.training.compress import Reduction, Scheme, finish, parse
from hpccoll.training.compress.states import State, join_states, split_state
from hpccoll.training.framework import communicator, require

#: MPI operators and scaling, by name of the reduction.
AVERAGE, SUM = "average", "sum"
#: Scheme without compression.
NONE = "none"


def average_gradients(gradients: Any, *, comm: MPI.Intracomm | None = None,
                      compress: str | Scheme = NONE) -> Any:
    """Replace gradients by their mean over the ranks.

    Args:
        gradients: a tree of floating-point arrays, equal on every rank except for the values.
        comm: the ranks.
        compress: compression scheme (docs/training/compress.md). Its state is stored with the
            communicator, by the leaves of the tree.

    Raises:
        ArgumentTypeError: a leaf is not floating-point.
        ExchangeMismatch: ranks pass different trees; on all ranks.
    """
    ranks = communicator(comm)
    averagers = _kept_with(ranks)
    if compress not in averagers:
        averagers[compress] = Averager(ranks, compress=compress)
    return averagers[compress](gradients)


def broadcast_parameters(tree: Any, root: int = 0, *, comm: MPI.Intracomm | None = None) -> Any:
    """Broadcast initial values of one rank: parameters, optimizer state, random keys.

    Args:
        tree: arrays, numbers and keys of ``jax.random``; equal on every rank except for the values.
        root: rank of the root.
        comm: the ranks.

    Returns:
        The tree with the root's values; numbers become arrays.

    Raises:
        ExchangeMismatch: ranks pass different trees; on all ranks.
    """
    def is_key(leaf: Any) -> bool:
        return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)

    numbers = jax.tree.map(lambda leaf: jax.random.key_data(leaf) if is_key(leaf) else leaf, tree)
    return jax.tree.map(
        lambda leaf, value: jax.random.wrap_key_data(value, impl=jax.random.key_impl(leaf))
        if is_key(leaf) else value, tree, bcast(numbers, root, comm=comm))


class Averager:
    """Averages gradients over ranks and holds the state of a compression scheme.

    Create an averager for each training loop, before the step is compiled. The state of a scheme is
    not part of JAX's state: a compiled step modifies it.

    Args:
        comm: the ranks.
        compress: compression scheme.
        op: ``"average"`` or ``"sum"``.
        bucket_bytes: size of a compressed bucket in bytes.

    Raises:
        ArgumentError: unknown ``op`` or scheme.
    """

    def __init__(self, comm: MPI.Intracomm | None = None, *, compress: str | Scheme = NONE,
                 op: str = AVERAGE, bucket_bytes: int = BUCKET_BYTES):
        if op not in (AVERAGE, SUM):
            raise ArgumentError("op", f"{op!r} is unknown", f"choose '{AVERAGE}' or '{SUM}'")
        self.comm, self.op, self.bucket_bytes = communicator(comm), op, bucket_bytes
        self.scheme = _scheme(compress)
        self._started: dict[str, list[FusedPart]] = {}
        self._loaded: dict[str, list[State]] = {}

    def __call__(self, gradients: Any) -> Any:
        """Return the tree with the means, in the dtypes of the gradients."""
        for path, leaf in jax.tree_util.tree_leaves_with_path(gradients):
            if not jnp.issubdtype(jnp.asarray(leaf).dtype, jnp.floating):
                raise ArgumentTypeError(
                    "gradients", f"leaf {jax.tree_util.keystr(path)} has type "
                                 f"{jnp.asarray(leaf).dtype}, which has no "
                                 "mean", "pass floating point numbers")
        if self.scheme is None:
            sums = allreduce(gradients, comm=self.comm)
            return sums if self.op == SUM else jax.tree.map(lambda x: x / self.comm.size, sums)
        # Schemes compute in 32 or 64 bits.
        wide = jax.tree.map(lambda x: jnp.asarray(x, jnp.promote_types(x.dtype, jnp.float32)),
                            gradients)
        means = call_fused(wide, CompressedMean(comm=self.comm, scheme=self.scheme, averager=self))
        factor = self.comm.size if self.op == SUM else 1
        return jax.tree.map(lambda x, mean: (mean * factor).astype(x.dtype), gradients, means)

    def state(self) -> dict[str, list[State]]:
        """Return the state for a restart, for each dtype and tree, by array; collective.

        It can be loaded with other buckets; for another number of ranks see
        :func:`hpccoll.training.compress.states.average_states`.
        """
        jax.effects_barrier()
        return self._loaded | {
            key: [state for part in parts
                  for state in split_state(part.reduction.state(), part.counts)]
            for key, parts in self._started.items()}

    def load(self, state: dict[str, list[State]]) -> None:
        """Restore a state that :meth:`state` returned."""
        jax.effects_barrier()
        self._loaded = dict(state)
        for key, parts in self._started.items():
            self._resume(key, parts)

    def parts(self, scheme: Scheme, shapes: Sequence[Shape], dtype: str) -> list[FusedPart]:
        """Return the buckets for arrays of these shapes; created once for each key."""
        key = f"{dtype} {' '.join('x'.join(map(str, shape)) or '1' for shape in shapes)}"
        if key not in self._started:
            specs = [ArraySpec(str(index), tuple(shape), dtype, numpy.dtype(dtype).itemsize)
                     for index, shape in enumerate(shapes)]
            buckets = plan_buckets(specs, self.bucket_bytes, self.bucket_bytes, range(len(specs)))
            parts = []
            for bucket in buckets:
                arrays = [specs[index] for index in bucket.members]
                reduction = scheme.start(self.comm, [array.shape for array in arrays])
                parts.append(FusedPart(tuple(array.count for array in arrays), reduction))
            self._resume(key, parts)
            self._started[key] = parts
        return self._started[key]

    def _resume(self, key: str, parts: Sequence[FusedPart]) -> None:
        states = iter(self._loaded.get(key, ()))
        for part in parts if key in self._loaded else ():
            part.reduction.load(join_states([next(states) for _ in part.counts], part.counts))


@dataclass(frozen=True)
class FusedPart:
    """Arrays that are concatenated and compressed together, and their reduction."""

    counts: tuple[int, ...]
    reduction: Reduction


@dataclass(frozen=True, eq=False, kw_only=True)
class CompressedMean(ArrayCall):
    """Compressed mean over ranks; not differentiable."""

    scheme: Scheme
    averager: Averager
    shapes: tuple[Shape, ...] = ()

    def with_shapes(self, shapes: Sequence[Shape], leaves: Sequence[str] | None) -> ArrayCall:
        return replace(self, shapes=tuple(shapes), leaves=leaves)

    def run(self, operand: numpy.ndarray) -> numpy.ndarray:
        result = operand.copy()
        values = result.reshape(-1)
        stop = 0
        for part in self.averager.parts(self.scheme, self.shapes, operand.dtype.name):
            start, stop = stop, stop + sum(part.counts)
            finish(part.reduction.reduce(values[start:stop]))
        return result

    def batch(self, size: int) -> ArrayCall:
        raise ArgumentTypeError("compress", "vmap does not support the state of a compression "
                                            "scheme", "average outside of jax.vmap")


def _scheme(compress: str | Scheme) -> Scheme | None:
    scheme = parse(compress)
    return None if scheme.name == NONE else scheme


def _kept_with(comm: MPI.Intracomm) -> dict[Any, Any]:
    """Return a dictionary with the lifetime of a communicator, shared by its wrappers."""
    found: Any = comm.Get_attr(_key())
    if found is None:
        found = {}
        comm.Set_attr(_key(), found)
    return found


@cache
def _key() -> int:
    return MPI.Comm.Create_keyval()


class Accumulation(NamedTuple):
    """State of an optimizer with gradient accumulation."""

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
