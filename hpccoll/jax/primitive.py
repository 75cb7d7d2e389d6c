"""JAX primitive of a call: lowering, differentiation and batching.

The call is the parameter of the primitive. JAX's ``io_callback`` is not differentiable. It also
copies the operand into a JAX array inside the callback, which waits for a thread of the pool whose
thread it holds: a deadlock with few cores (https://github.com/jax-ml/jax/issues/24255). Here the
callback gets a view of XLA's memory, and uses only NumPy and MPI.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy
from jax.core import ShapedArray
from jax.experimental import io_callback
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from hpccoll.jax.calls import ArrayCall


def bind(call: ArrayCall, operand: Any) -> Any:
    """Bind a call to an array, for eager execution or in a trace."""
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
