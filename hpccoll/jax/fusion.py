"""Fusion of a tree of arrays into one vector, and one call, for each dtype.

A call has a latency of tens of microseconds (docs/training/jax-and-keras.md), so the leaves of a
tree are concatenated. XLA copies them inside the compiled program.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy
from jax import numpy as jnp

from hpccoll.errors import ArgumentTypeError
from hpccoll.jax.calls import ArrayCall, Shape
from hpccoll.jax.primitive import bind


def call_fused(tree: Any, call: ArrayCall, lead: int = 0) -> Any:
    """Make one call for each dtype in a tree.

    A single array is sent directly. For a tree with structure, ranks first compare the paths,
    dtypes and shapes of the leaves.

    Args:
        call: the call for each dtype.
        lead: number of leading axes that the call interprets (ranks); others are elements.
    """
    paths, structure = jax.tree_util.tree_flatten_with_path(tree)
    names = [jax.tree_util.keystr(path) for path, _ in paths]
    leaves = [_array(name, leaf) for name, (_, leaf) in zip(names, paths)]
    if jax.tree_util.all_leaves([tree]):
        return bind(call.with_shapes([leaves[0].shape[lead:]], None), leaves[0])
    for leaf in leaves:
        call.shape(leaf.shape)
    compared: Sequence[str] | None = leaf_texts(names, leaves, lead)
    results: list[Any] = [None] * len(leaves)
    # A rank without leaves also takes part in the comparison.
    for dtype, members in (by_dtype(leaves) or {numpy.dtype("float32"): []}).items():
        arrays = [leaves[index] for index in members]
        shapes = [array.shape[lead:] for array in arrays]
        result = bind(call.with_shapes(shapes, compared),
                      _concatenate(arrays, shapes, lead, dtype))
        compared = None  # the first call compares the leaves of all dtypes
        end = 0
        for index, shape in zip(members, shapes):
            start, end = end, end + math.prod(shape)
            part = jax.lax.slice_in_dim(result, start, end, axis=-1)
            results[index] = part.reshape(*result.shape[:-1], *shape)
    return jax.tree_util.tree_unflatten(structure, results)


def by_dtype(leaves: Sequence[Any]) -> dict[numpy.dtype, list[int]]:
    """Return the indices of leaves by dtype, in order of first occurrence."""
    groups: dict[numpy.dtype, list[int]] = {}
    for index, leaf in enumerate(leaves):
        groups.setdefault(leaf.dtype, []).append(index)
    return groups


def leaf_texts(names: Sequence[str], leaves: Sequence[Any], lead: int = 0) -> list[str]:
    """Return the leaves of a tree as text, for comparison, without ``lead`` axes."""
    return [f"{name}: {leaf.dtype}[{','.join(map(str, leaf.shape[lead:]))}]"
            for name, leaf in zip(names, leaves)]


def _concatenate(arrays: Sequence[Any], shapes: Sequence[Shape], lead: int, dtype: Any) -> Any:
    flat = [array.reshape(*array.shape[:lead], math.prod(shape))
            for array, shape in zip(arrays, shapes)]
    return jnp.concatenate(flat, axis=-1) if flat else jnp.zeros(0, dtype)


def _array(path: str, leaf: Any) -> Any:
    try:
        array = jnp.asarray(leaf)
    except TypeError as error:
        raise ArgumentTypeError("x", f"leaf {path or 'x'} is not an array: {leaf!r}", str(error)
                                ) from None
    if jnp.issubdtype(array.dtype, jax.dtypes.extended):
        raise ArgumentTypeError("x", f"leaf {path or 'x'} holds {array.dtype}, not numbers",
                                "pass jax.random.key_data of keys")
    return array
