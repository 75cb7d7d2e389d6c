"""Local reduction kernels: ``into = left op right`` on arrays of one dtype.

Predefined operators on numbers use NumPy's ufuncs; 16-bit floats are computed in float32
(:mod:`hpccoll.arrays.half`). Pair types (MAXLOC) and user-defined operators use ``Reduce_local``.
Kernels of device memory are in :mod:`hpccoll.cuda`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context
from functools import partial
from typing import Any

import numpy
from mpi4py import MPI

from hpccoll.arrays import half
from hpccoll.errors import ArgumentTypeError
from hpccoll.errors.mpi import OperatorError
from hpccoll.ir.operators import OPERATORS, Operator

#: ``kernel(left, right, into)``; ``into`` may be ``left`` or ``right`` itself.
Kernel = Callable[[Any, Any, Any], Any]

UFUNCS = {
    "sum": "add", "prod": "multiply", "max": "maximum", "min": "minimum",
    "land": "logical_and", "lor": "logical_or", "lxor": "logical_xor",
    "band": "bitwise_and", "bor": "bitwise_or", "bxor": "bitwise_xor",
}

_PREDEFINED = {getattr(MPI, name.upper()).handle: op for name, op in OPERATORS.items()}


def operator_of(op: MPI.Op) -> Operator | None:
    """Return the predefined operator of an ``MPI.Op``; ``None`` for user-defined ones."""
    return _PREDEFINED.get(op.handle)


#: Names of MPI's operators in Python and NumPy.
OTHER_NAMES = {"add": "SUM", "+": "SUM", "multiply": "PROD", "mul": "PROD", "*": "PROD",
               "product": "PROD", "maximum": "MAX", "amax": "MAX", "minimum": "MIN", "amin": "MIN",
               "logical_and": "LAND", "logical_or": "LOR", "logical_xor": "LXOR", "all": "LAND",
               "any": "LOR", "bitwise_and": "BAND", "bitwise_or": "BOR", "bitwise_xor": "BXOR"}


def not_an_operator(op: Any, collective: str) -> ArgumentTypeError:
    """Create the error for an object that is not an ``MPI.Op``; suggests an operator."""
    word = (op if isinstance(op, str) else getattr(op, "__name__", "")).lower()
    name = OTHER_NAMES.get(word, word.removeprefix("mpi.").upper())
    known = isinstance(getattr(MPI, name, None), MPI.Op) if name.isidentifier() else False
    remedy = f"pass MPI.{name}" if known else "pass MPI.SUM, MPI.MAX or MPI.Op.Create(function)"
    return ArgumentTypeError("op", f"{collective} requires an MPI.Op, got {op!r}", remedy)


def check_op(op: Any, dtype: numpy.dtype, collective: str) -> None:
    """Raise unless the operator is an ``MPI.Op`` that exists for the element type.

    Raises:
        ArgumentTypeError: ``op`` is no operator.
        OperatorError: names the operator, the type and the types it is defined on.
    """
    if not isinstance(op, MPI.Op):
        raise not_an_operator(op, collective)
    operator = operator_of(op)
    if operator is None:
        if op == MPI.OP_NULL or op in (MPI.REPLACE, MPI.NO_OP):
            raise OperatorError("op", f"this operator cannot be used in {collective}")
        return
    pair = dtype.names is not None
    kind = "f" if half.is_bfloat16(dtype) else dtype.kind
    if pair != operator.pairs or not (pair or operator.defined_on(kind)):
        names = {"b": "bool", "i": "signed", "u": "unsigned", "f": "floating", "c": "complex"}
        valid = "(value, index) pairs" if operator.pairs else ", ".join(
            names[kind] for kind in operator.kinds)
        raise OperatorError("op", f"MPI.{operator.name.upper()} is not defined for {dtype}",
                            f"it supports: {valid}")


def is_exact(op: MPI.Op, dtype: numpy.dtype) -> bool:
    """Return True if every order and grouping of the operands gives the same bits."""
    operator = operator_of(op)
    return operator is not None and dtype.names is None and operator.is_exact(dtype.kind)


def kernel(op: MPI.Op, dtype: numpy.dtype, datatype: MPI.Datatype) -> Kernel:
    """Return the kernel of an operator on a dtype, for arrays of NumPy."""
    operator = operator_of(op)
    if operator is not None and not operator.pairs:
        ufunc = getattr(numpy, UFUNCS[operator.name])
        if half.is_half(dtype):
            return half.compiled_ufunc(ufunc, dtype) or _without_warnings(
                half.numpy_ufunc(ufunc, dtype))
        if operator.name in ("max", "min"):
            # NumPy deprecates a third positional operand of these two, and only these.
            return lambda left, right, into: ufunc(left, right, out=into)
        return _without_warnings(ufunc) if dtype.kind in "fc" else ufunc
    return _reduce_local(op, datatype)


def has_loop(operator: str, dtype: numpy.dtype) -> bool:
    """Return True if NumPy has a loop for an operator, which a kernel can call.

    Operands and result have one type, which is not computed in a wider one. The C code supports
    more, see :func:`has_compiled_kernel`.
    """
    char = dtype.char
    return (operator in UFUNCS and dtype.isnative and dtype.kind in "biufc"
            and not half.is_half(dtype)
            and f"{char}{char}->{char}" in getattr(numpy, UFUNCS[operator]).types)


def has_compiled_kernel(operator: str, dtype: numpy.dtype) -> bool:
    """Return True if the C code can apply an operator with a loop of NumPy.

    16-bit floats use the loop for float32.
    """
    wide = half.FLOAT32 if half.is_half(dtype) and dtype.isnative else dtype
    return has_loop(operator, wide)


def ufunc_of(op: MPI.Op, dtype: numpy.dtype) -> numpy.ufunc | None:
    """Return the NumPy function that is the kernel of an operator, if :func:`has_loop`."""
    operator = operator_of(op)
    if operator is None or not has_loop(operator.name, dtype):
        return None
    function: numpy.ufunc = getattr(numpy, UFUNCS[operator.name])
    return function


def _without_warnings(kernel: Kernel) -> Kernel:
    """Return a kernel that overflows silently, as in MPI, despite ``numpy.seterr``.

    A warning that a filter turns into an error would end the collective on some ranks only. The
    kernel is not thread-safe.
    """
    if _SILENT is not None:
        run: Callable[..., Any] = _SILENT.copy().run
        return partial(run, kernel)

    def call_silently(*operands: Any) -> Any:
        with numpy.errstate(all="ignore"):
            return kernel(*operands)

    return call_silently


def _no_warnings_context() -> Context | None:
    """Return a context with the settings; ``None`` before NumPy 2.0, which has no such context."""
    if numpy.lib.NumpyVersion(numpy.__version__) < "2.0.0":
        return None
    context = Context()
    context.run(numpy.seterr, all="ignore")
    return context


#: Faster to enter than ``numpy.errstate``, which takes as long as a small message.
_SILENT = _no_warnings_context()


def accumulator_factory(op: MPI.Op, dtype: numpy.dtype, namespace: Any
                        ) -> Callable[[int], Any] | None:
    """Return an allocator of accumulators for chains of reductions; ``None`` if not needed.

    Host and device buffers must round identically: ranks of a call may use different memory.
    """
    if operator_of(op) is None or not half.is_half(dtype):
        return None
    return lambda count: half.accumulator(count, namespace)


def _reduce_local(op: MPI.Op, datatype: MPI.Datatype) -> Kernel:
    """Return ``Op.Reduce_local``, which computes ``inout = in op inout``, as a kernel."""
    def apply(left: Any, right: Any, into: Any) -> None:
        # Reduce_local overwrites its right operand, so that is copied unless it is the
        # destination.
        work = into if into is right or same_memory(into, right) else right.copy()
        op.Reduce_local([left.view("u1"), left.size, datatype],
                        [work.view("u1"), work.size, datatype])
        if work is not into:
            into[...] = work
    return apply


def same_memory(one: numpy.ndarray, other: numpy.ndarray) -> bool:
    """Return True if two equally long contiguous arrays start at the same address."""
    return one.__array_interface__["data"][0] == other.__array_interface__["data"][0]
