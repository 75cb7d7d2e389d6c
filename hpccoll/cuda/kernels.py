"""Reductions on a device: one kernel (``reduce.cu``) for each operator and type, many operands.

A step ``into = left op right`` is a launch; steps that follow each other and need nothing but each
other's results become one (:func:`fused`), which reads every operand once and writes once. The
source is compiled where it runs, on its first use there, and CuPy keeps what came out. The bits are
those of the kernels of host memory.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy
from mpi4py import MPI

from hpccoll.arrays.half import BFLOAT16, FLOAT32, is_bfloat16, is_half
from hpccoll.arrays.kernels import Kernel, kernel, operator_of
from hpccoll.arrays.user_operators import REMEDY, OnDevice
from hpccoll.errors.mpi import OperatorError

#: Operands of one launch.
MOST = 8
#: Threads of a block; most blocks of a launch, whose threads take more than one turn.
THREADS, BLOCKS = 256, 2048
#: Bytes that a thread reads at once.
QUAD = 16
#: An address of nothing, as large as the kernel takes it.
NULL = numpy.int64(0)
#: Elements by kind and bytes, as the source calls them.
ELEMENTS = {("b", 1): "uint8", **{(kind, size): f"{name}{8 * size}" for kind, name, sizes in (
    ("i", "int", (1, 2, 4, 8)), ("u", "uint", (1, 2, 4, 8)), ("f", "float", (2, 4, 8)),
    ("c", "complex", (8, 16))) for size in sizes}}
#: (value, index) pairs, by the value; the index is an int32 behind it.
PAIRS = {"f4": "float_int", "i4": "int_int"}

#: A function with its operands, see :mod:`hpccoll.runtime.planning.binding`.
Action = tuple[Callable[..., Any], tuple[Any, ...]]


@functools.cache
def source() -> str:
    """The source of the kernel."""
    return Path(__file__).with_name("reduce.cu").read_text()


def element(dtype: numpy.dtype) -> str | None:
    """What the source calls the elements of a dtype; ``None`` where it does not know them."""
    if dtype.names is not None:
        fields = [dtype.fields[name][:2] for name in dtype.names] if dtype.fields else []
        return next((name for value, name in PAIRS.items()
                     if dtype.itemsize == 8 and fields == [(numpy.dtype(value), 0),
                                                           (numpy.dtype("i4"), 4)]), None)
    if is_bfloat16(dtype):
        return BFLOAT16
    return ELEMENTS.get((dtype.kind, dtype.itemsize)) if dtype.isnative else None


def options(operator: str, dtype: numpy.dtype, hip: bool) -> tuple[str, ...]:
    """What the source is compiled with."""
    return ("-ffp-contract=off" if hip else "--fmad=false", "-std=c++14",
            f"-DELEMENT={element(dtype)}", f"-DOPERATOR={operator}")


class Combination(NamedTuple):
    """Operands that one launch combines: ``((a0 op a1) op a2) ...``.

    Attributes:
        operands: arrays, of elements or - accumulators of 16-bit floats - of float32.
        swapped: bit j is set where operand j stands on the left of what is before it.
        outs: where the result goes; two are an accumulator, and the result rounded.
    """

    operands: tuple[Any, ...]
    swapped: int
    outs: tuple[Any, ...]


class DeviceKernel:
    """``kernel(left, right, into[, rounded])`` on arrays of CuPy, on the current stream.

    Args:
        namespace: the module of the arrays.
        operator: its name.
        dtype: of the elements.
        before: what comes before the source.
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
    """Tell whether an operator can be applied to arrays of a namespace.

    Operators of users that say nothing of devices need memory that the processor can reach, and so
    do a few types.
    """
    if namespace is numpy or operator_of(op) is None:
        return namespace is numpy or has_device_kernel(op, dtype)
    return element(dtype) is not None


def kernel_for(op: MPI.Op, dtype: numpy.dtype, datatype: MPI.Datatype, namespace: Any) -> Kernel:
    """The kernel of an operator on a dtype, for arrays of one namespace (NumPy, CuPy)."""
    operator = operator_of(op)
    if namespace is numpy:
        return kernel(op, dtype, datatype)
    if operator is not None:
        return DeviceKernel(namespace, operator.name, dtype)
    return device_kernel(op, dtype, namespace) or kernel(op, dtype, datatype)


def fused(actions: Sequence[Action]) -> list[Action]:
    """The same local steps in fewer launches.

    A step is put to the one before it if it uses that one's result, which nobody else needs: it is
    an accumulator, or is overwritten. All operands are read before the result is written, element
    by element, so the result may be an operand's memory, but no other part of it.
    """
    done: list[Action] = []
    for function, operands in actions:
        if not isinstance(function, DeviceKernel):
            done.append((function, operands))
            continue
        step = Combination(operands[:2], 0, operands[2:])
        if done and done[-1][0] == function.fold:
            longer = _longer(done[-1][1][0], step)
            if longer is not None:
                done[-1] = function.fold, (longer,)
                continue
        done.append((function.fold, (step,)))
    return done


def _longer(chain: Combination, step: Combination) -> Combination | None:
    """Both in one; ``None`` where that would change a result."""
    if len(chain.outs) > 1 or len(chain.operands) == MOST:
        return None
    result = _place(chain.outs[0])
    used = [_place(one) == result for one in step.operands]
    if sum(used) != 1:
        return None
    other = step.operands[used[0]]
    # What the device keeps in more digits than it has room for is held for the next step only.
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
    """Where an array begins and ends."""
    start = array.data.ptr
    return start, start + array.nbytes


def _overlap(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return max(one[0], other[0]) < min(one[1], other[1])


# -- operators of the program's own -----------------------------------------------------------
def has_device_kernel(op: MPI.Op, dtype: numpy.dtype) -> bool:
    """Tell whether an operator of the program's can be applied to device memory."""
    return getattr(op, "device", None) is not None and element(dtype) is not None


def device_kernel(op: MPI.Op, dtype: numpy.dtype, namespace: Any) -> Callable[..., None] | None:
    """The kernel of an operator of the program's own; ``None`` where it has none for devices."""
    device: OnDevice | None = getattr(op, "device", None)
    if device is None:
        return None
    if isinstance(device, str):
        return ExpressionKernel(namespace, device, dtype)
    return _called(device, dtype)


class ExpressionKernel(DeviceKernel):
    """The kernel of an expression: one pass over up to eight operands, as any other kernel."""

    def __init__(self, namespace: Any, text: str, dtype: numpy.dtype):
        super().__init__(namespace, "user", dtype, define(text, dtype))
        self.text, self.compiled = text, False

    def fold(self, fold: Combination) -> None:
        """Queue the combination of all operands.

        Raises:
            OperatorError: the expression is none, or not for this type.
        """
        if not self.compiled:
            try:
                _ = self.raw.kernel  # compiles it, if that has not been done
            except Exception as error:
                raise _refused(f"its expression {self.text!r} cannot be compiled for {self.dtype}: "
                               f"{_first_error(error)}") from error
            self.compiled = True
        super().fold(fold)


def define(text: str, dtype: numpy.dtype) -> str:
    """The lines before the kernel's source that make an expression its operator."""
    expression = f"({' '.join(text.split())})"
    return f"#define EXPRESSION {expression}{' != 0' * (dtype.kind == 'b')}\n"


def _first_error(error: Exception) -> str:
    """What a compiler says first of what is wrong."""
    lines = str(error).splitlines() or [type(error).__name__]
    return next((line.partition("error:")[2].strip() for line in lines if "error:" in line),
                lines[0])


def _called(function: Callable[[Any, Any], Any], dtype: numpy.dtype) -> Callable[..., None]:
    """A function of arrays as a kernel."""
    def apply(left: Any, right: Any, into: Any) -> None:
        result = function(left, right)
        if getattr(result, "shape", None) != into.shape or isinstance(result, numpy.ndarray):
            got = (repr(result) if not hasattr(result, "shape") else
                   f"a {type(result).__name__} of shape {result.shape}")
            raise _refused(f"its device function returned {got} for two arrays of {into.size} "
                           f"elements of {dtype}")
        into[...] = result

    return apply


def _refused(problem: str) -> OperatorError:
    return OperatorError("op", problem, REMEDY)
