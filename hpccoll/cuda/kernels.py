"""Reduction kernels of devices: one (``reduce.cu``) per operator and type, many operands.

A step ``into = left op right`` is one launch. Consecutive steps that only use each other's results
are fused (:func:`fuse`); the fused launch reads every operand once and writes once. The source is
compiled on its first use on a device, and CuPy caches the result. Results are bitwise equal to
those of the host kernels.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy
from mpi4py import MPI

from hpccoll.arrays.half import BFLOAT16, FLOAT32, is_bfloat16, is_half
from hpccoll.arrays.kernels import Kernel, kernel, operator_of
from hpccoll.arrays.user_operators import REMEDY, OnDevice
from hpccoll.errors.mpi import OperatorError

#: Largest number of operands of one launch.
MOST = 8
#: Threads per block; largest number of blocks of a launch, whose threads then loop.
THREADS, BLOCKS = 256, 2048
#: Bytes per read of a thread.
QUAD = 16
#: Null pointer of the kernel's pointer type.
NULL = numpy.int64(0)
#: Element types of the source, by kind and bytes.
ELEMENTS = {("b", 1): "uint8", **{(kind, size): f"{name}{8 * size}" for kind, name, sizes in (
    ("i", "int", (1, 2, 4, 8)), ("u", "uint", (1, 2, 4, 8)), ("f", "float", (2, 4, 8)),
    ("c", "complex", (8, 16))) for size in sizes}}
#: Types of (value, index) pairs, by the value; an int32 index follows the value.
PAIRS = {"f4": "float_int", "i4": "int_int"}

#: Function with its operands, see :mod:`hpccoll.runtime.planning.binding`.
Action = tuple[Callable[..., Any], tuple[Any, ...]]


@functools.cache
def source() -> str:
    """Return the source of the kernel."""
    from pathlib import Path
    return Path(__file__).with_name("reduce.cu").read_text()


def element(dtype: numpy.dtype) -> str | None:
    """Return the source's type name of a dtype; ``None`` if unsupported."""
    if dtype.names is not None:
        fields = [dtype.fields[name][:2] for name in dtype.names] if dtype.fields else []
        return next((name for value, name in PAIRS.items()
                     if dtype.itemsize == 8 and fields == [(numpy.dtype(value), 0),
                                                           (numpy.dtype("i4"), 4)]), None)
    if is_bfloat16(dtype):
        return BFLOAT16
    return ELEMENTS.get((dtype.kind, dtype.itemsize)) if dtype.isnative else None


def options(operator: str, dtype: numpy.dtype, hip: bool) -> tuple[str, ...]:
    """Return the compiler options of the source."""
    return ("-ffp-contract=off" if hip else "--fmad=false", "-std=c++14",
            f"-DELEMENT={element(dtype)}", f"-DOPERATOR={operator}")


class Combination(NamedTuple):
    """Operands of one launch: ``((a0 op a1) op a2) ...``.

    Attributes:
        operands: arrays of elements, or of float32 for accumulators of 16-bit floats.
        swapped: bit j is set if operand j is the left operand of its operation.
        outs: destinations of the result; two are an accumulator and the rounded result.
    """

    operands: tuple[Any, ...]
    swapped: int
    outs: tuple[Any, ...]


class DeviceKernel:
    """Function ``kernel(left, right, into[, rounded])`` of CuPy arrays, on the current stream.

    Args:
        namespace: the module of the arrays.
        operator: the name of the operator.
        dtype: the type of the elements.
        before: text to prepend to the source.
    """

    def __init__(self, namespace: Any, operator: str, dtype: numpy.dtype, before: str = ""):
        self.raw = namespace.RawKernel(before + source(), "reduce", options(
            operator, dtype, bool(namespace.cuda.runtime.is_hip)))
        self.dtype, self.half = dtype, is_half(dtype)

    def __call__(self, left: Any, right: Any, *outs: Any) -> None:
        self.fold(Combination((left, right), 0, outs))

    def fold(self, fold: Combination) -> None:
        """Queue the combination of all operands."""
        operands, swapped, outs = fold
        count = outs[0].size
        if not count:
            return
        wide = sum(self._is_wide(one) << j for j, one in enumerate(operands))
        holds = self._is_wide(outs[0])
        held, into = outs[0] if holds else NULL, NULL if holds and len(outs) == 1 else outs[-1]
        packs = -(-count * self.dtype.itemsize // QUAD)
        self.raw((min(-(-packs // THREADS), BLOCKS),), (THREADS,),
                 (into, held, numpy.int64(count), numpy.int32(len(operands)),
                  numpy.uint32(swapped), numpy.uint32(wide), *operands,
                  *[NULL] * (MOST - len(operands))))

    def _is_wide(self, array: Any) -> bool:
        return self.half and bool(array.dtype == FLOAT32)


def has_kernel(op: MPI.Op, dtype: numpy.dtype, namespace: Any) -> bool:
    """Return True if an operator supports arrays of a namespace.

    User operators without device support, and some types, need host memory.
    """
    if namespace is numpy or operator_of(op) is None:
        return namespace is numpy or has_device_kernel(op, dtype)
    return element(dtype) is not None


def kernel_for(op: MPI.Op, dtype: numpy.dtype, datatype: MPI.Datatype, namespace: Any) -> Kernel:
    """Return the kernel of an operator and a dtype, for one namespace (NumPy, CuPy)."""
    operator = operator_of(op)
    if namespace is numpy:
        return kernel(op, dtype, datatype)
    if operator is not None:
        return DeviceKernel(namespace, operator.name, dtype)
    return device_kernel(op, dtype, namespace) or kernel(op, dtype, datatype)


def fuse(actions: Sequence[Action]) -> list[Action]:
    """Fuse local steps into fewer launches.

    A step is fused with the previous one if only this step uses the previous result: an
    accumulator, or memory that is overwritten. The launch reads all operands of an element before
    it writes the result, so the result may be exactly an operand's memory, but not overlap it in
    part.
    """
    done: list[Action] = []
    for function, operands in actions:
        if not isinstance(function, DeviceKernel):
            done.append((function, operands))
            continue
        step = Combination(operands[:2], 0, operands[2:])
        if done and done[-1][0] == function.fold:
            longer = _append_step(done[-1][1][0], step)
            if longer is not None:
                done[-1] = function.fold, (longer,)
                continue
        done.append((function.fold, (step,)))
    return done


def _append_step(chain: Combination, step: Combination) -> Combination | None:
    """Return both steps as one; ``None`` if that would change a result."""
    if len(chain.outs) > 1 or len(chain.operands) == MOST:
        return None
    result = _place(chain.outs[0])
    used = [_place(one) == result for one in step.operands]
    if sum(used) != 1:
        return None
    other = step.operands[used[0]]
    # Unrounded results are kept for the next step only.
    accumulator = chain.outs[0].dtype != step.outs[-1].dtype
    if _overlap(_place(other), result) or not (
            accumulator or any(_place(out) == result for out in step.outs)):
        return None
    joined = Combination((*chain.operands, other), chain.swapped | used[1] << len(chain.operands),
                  step.outs)
    places = [_place(out) for out in joined.outs]
    if any(_overlap(mine, out) and mine != out
           for one in joined.operands for out in places for mine in [_place(one)]):
        return None
    return joined


def _place(array: Any) -> tuple[int, int]:
    """Return the start and end address of an array."""
    start = array.data.ptr
    return start, start + array.nbytes


def _overlap(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return max(one[0], other[0]) < min(one[1], other[1])


# -- user operators ---------------------------------------------------------------------------
def has_device_kernel(op: MPI.Op, dtype: numpy.dtype) -> bool:
    """Return True if a user operator supports device memory."""
    return getattr(op, "device", None) is not None and element(dtype) is not None


def device_kernel(op: MPI.Op, dtype: numpy.dtype, namespace: Any) -> Callable[..., None] | None:
    """Return the device kernel of a user operator; ``None`` if it has none."""
    device: OnDevice | None = getattr(op, "device", None)
    if device is None:
        return None
    if isinstance(device, str):
        return ExpressionKernel(namespace, device, dtype)
    return _function_kernel(device, dtype)


class ExpressionKernel(DeviceKernel):
    """Kernel of an expression: one pass over up to eight operands, like other kernels."""

    def __init__(self, namespace: Any, text: str, dtype: numpy.dtype):
        super().__init__(namespace, "user", dtype, define(text, dtype))
        self.text, self.compiled = text, False

    def fold(self, fold: Combination) -> None:
        """Queue the combination of all operands.

        Raises:
            OperatorError: the expression is invalid, or invalid for this type.
        """
        if not self.compiled:
            try:
                _ = self.raw.kernel  # compiles it on the first use
            except Exception as error:
                raise _operator_error(f"its expression {self.text!r} cannot be compiled for "
                                      f"{self.dtype}: {_first_error(error)}") from error
            self.compiled = True
        super().fold(fold)


def define(text: str, dtype: numpy.dtype) -> str:
    """Return the lines before the kernel's source that define an expression as its operator."""
    expression = f"({' '.join(text.split())})"
    return f"#define EXPRESSION {expression}{' != 0' * (dtype.kind == 'b')}\n"


def _first_error(error: Exception) -> str:
    """Return the first error of a compiler."""
    lines = str(error).splitlines() or [type(error).__name__]
    return next((line.partition("error:")[2].strip() for line in lines if "error:" in line),
                lines[0])


def _function_kernel(function: Callable[[Any, Any], Any], dtype: numpy.dtype) -> Callable[...,
                                                                                          None]:
    """Return a function of arrays as a kernel."""
    def apply(left: Any, right: Any, into: Any) -> None:
        result = function(left, right)
        if getattr(result, "shape", None) != into.shape or isinstance(result, numpy.ndarray):
            got = (repr(result) if not hasattr(result, "shape") else
                   f"a {type(result).__name__} of shape {result.shape}")
            raise _operator_error(f"its device function returned {got} for two arrays of "
                                  f"{into.size} elements of {dtype}")
        into[...] = result

    return apply


def _operator_error(problem: str) -> OperatorError:
    return OperatorError("op", problem, REMEDY)
