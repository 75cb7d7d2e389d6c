"""JAX primitive of a call, and fusion of a tree of arrays into one call for each dtype.

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
from jax.core import ShapedArray
from jax.experimental import io_callback
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from hpccoll.errors import ArgumentTypeError
from hpccoll.jax.calls import ArrayCall, Shape


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


def bind(call: ArrayCall, operand: Any) -> Any:
    """Bind a call to an array, for eager execution or in a trace.

    Not ``io_callback``, which is not differentiable. It also copies the operand into a JAX array
    inside the callback, which waits for a thread of the pool whose thread it holds: a deadlock with
    few cores (https://github.com/jax-ml/jax/issues/24255). Here the callback gets a view of XLA's
    memory, and uses only NumPy and MPI.
    """
    call.shape(operand.shape)
    return _PRIMITIVE.bind(operand, call=call)


def _ordered_effect() -> Any:
    # The effect of io_callback, so that calls are also ordered with callbacks of the program.
    effect, = jax.make_jaxpr(lambda: io_callback(lambda: None, None, ordered=True))().effects
    return effect


def _run_now(operand: Any, *, call: ArrayCall) -> Any:
    # Programs dispatched earlier may still be running, with calls on the same communicator.
    jax.effects_barrier()
    return jax.numpy.asarray(call(numpy.asarray(operand)))


def _abstract(operand: Any, *, call: ArrayCall) -> tuple[Any, set[Any]]:
    return ShapedArray(call.shape(operand.shape), operand.dtype), {_EFFECT}


def _lower(context: Any, operand: Any, *, call: ArrayCall) -> Sequence[Any]:
    def run(values: numpy.ndarray) -> tuple[numpy.ndarray]:
        return call(values),

    results, token, _ = mlir.emit_python_callback(
        context, run, context.tokens_in.get(_EFFECT), [operand], context.avals_in,
        context.avals_out, has_side_effect=True)
    context.set_tokens_out(context.tokens_in.update_tokens(mlir.TokenSet({_EFFECT: token})))
    return results


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, call: ArrayCall) -> tuple[Any, Any]:
    operand, = primals
    call.transpose(operand.shape)  # raises if the call is not linear
    return bind(call, operand), bind(call, tangents[0])


def _transpose(cotangent: Any, operand: Any, *, call: ArrayCall) -> tuple[Any]:
    # Send zeros too: on other ranks the loss may depend on the result.
    return bind(call.transpose(operand.aval.shape), ad.instantiate_zeros(cotangent)),


def _batch(operands: Sequence[Any], axes: Sequence[int], *, call: ArrayCall) -> tuple[Any, int]:
    operand = jax.numpy.moveaxis(operands[0], axes[0], -1)
    result = bind(call.batch(operand.shape[-1]), operand)
    return result, result.ndim - 1


def _primitive() -> Primitive:
    primitive = Primitive("hpccoll")
    primitive.def_impl(_run_now)
    primitive.def_effectful_abstract_eval(_abstract)
    # The compiled code references this call object, so it must not be shared by equal shapes.
    mlir.register_lowering(primitive, _lower, cacheable=False)
    ad.primitive_jvps[primitive] = _jvp
    ad.primitive_transposes[primitive] = _transpose
    batching.primitive_batchers[primitive] = _batch
    return primitive


_EFFECT = _ordered_effect()
_PRIMITIVE = _primitive()
