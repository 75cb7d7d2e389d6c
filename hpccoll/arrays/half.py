"""Kernels for 16-bit floats: computed in float32, rounded once.

NumPy converts float16 numbers one by one, 2-3 ns each. A kernel made of vectorised integer
operations, on blocks that stay in a cache, takes a third of that. NumPy converts bfloat16 numbers,
a type of the package ml_dtypes, fast but adds them slowly.

One step gives the bits that NumPy gives: the sum or product of two 16-bit numbers, computed in
float32 and rounded, equals the exact one rounded, because float32 has more than twice the digits
plus two (Figueroa, 1995). In a chain of steps the intermediate results stay in an accumulator, a
float32 array (:func:`accumulator`), which is an operand or a result of these kernels like any
other. So a chain is rounded once, at its end, whatever memory its operands are in.

The kernels are compiled (``_half.c``); without a compiler, :func:`numpy_ufunc` gives the same bits.
Its blocks with infinities, NaN or large numbers use NumPy's conversion.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy

try:
    from hpccoll.arrays import _half
except ImportError:  # not compiled
    BUILT = False
else:
    BUILT = True

#: Type of intermediate results.
FLOAT32 = numpy.dtype("f4")
#: Name of a dtype NumPy lacks; the package ml_dtypes has it.
BFLOAT16 = "bfloat16"
#: Elements of a block.
BLOCK = 32768
#: Largest number of elements for which NumPy's float16 arithmetic is as fast.
FEW = 4096


def _bits(value: int, dtype: str = "u4") -> numpy.ndarray:
    """Return a constant as an array without dimensions, the cheapest operand."""
    return numpy.array(value, dtype)


_SIXTEEN, _THIRTEEN, _THIRTEEN_SIGNED = _bits(16), _bits(13), _bits(13, "i4")
#: float16 exponents need this bias in float32; and the way back.
_LIFT, _DROP = numpy.array(2.0 ** 112, FLOAT32), numpy.array(2.0 ** -112, FLOAT32)
#: Bits of a float16: all but the sign, the sign, infinity.
_UNSIGNED, _SIGN, _INFINITY = _bits(0x7fff, "u2"), _bits(0x8000, "u2"), 0x7c00
#: Mask of a float16's bits after a shift by 13 in a sign-extended int32.
_OWN = _bits(-0x70002000, "i4")
#: Bits of a float32: the exponent; 2**-14, float16's smallest normal number; 2**15.
_EXPONENT, _LEAST, _LARGE = _bits(0xff << 23), _bits(113 << 23), 142 << 23
#: Their product is subnormal.
_LEAST_DOUBLE, _HALF = sys.float_info.min, 0.5
#: Added to the bits of 2**e it gives 1.5 * 2**(e + 13), whose last digit is float16's at 2**e.
_ROUNDING = _bits(13 << 23 | 1 << 22)


def is_bfloat16(dtype: numpy.dtype) -> bool:
    """Return True if a dtype is bfloat16 of ``ml_dtypes``, which need not be installed."""
    return dtype.kind == "V" and dtype.itemsize == 2 and dtype.name == BFLOAT16


def is_half(dtype: numpy.dtype) -> bool:
    """Return True if elements are 16-bit floats."""
    return dtype == numpy.float16 or is_bfloat16(dtype)


def kernel(ufunc: numpy.ufunc, dtype: numpy.dtype) -> Callable:
    """``kernel(left, right, into[, rounded])`` on operands of one size.

    Each operand has the dtype or float32. If ``into`` is an accumulator, ``rounded`` also gets the
    result, in the dtype.
    """
    return compiled_ufunc(ufunc, dtype) or numpy_ufunc(ufunc, dtype)


def compiled_ufunc(ufunc: numpy.ufunc, dtype: numpy.dtype) -> Callable | None:
    """Return the compiled kernel; ``None`` if it was not built, or NumPy has no loop for it."""
    if not BUILT or not is_half(dtype) or not dtype.isnative or "ff->f" not in ufunc.types:
        return None
    return _half.Kernel(ufunc, is_bfloat16(dtype))


def numpy_ufunc(ufunc: numpy.ufunc, dtype: numpy.dtype) -> Callable:
    """Return the kernel in NumPy."""
    native = dtype == numpy.float16
    few = FEW if native else FEW // 4
    # The maximum of 0 and -0 is one of them for 16 bits and the other for float32, in NumPy. The
    # choice must not depend on the number of elements, nor on chains.
    direct = ufunc not in (numpy.maximum, numpy.minimum)

    def plain(left: Any, right: Any, into: Any) -> None:
        if direct and left.dtype == right.dtype == into.dtype:
            ufunc(left, right, out=into)
        else:
            into[...] = ufunc(left.astype(FLOAT32, copy=False), right.astype(FLOAT32, copy=False))

    def apply(left: Any, right: Any, into: Any, rounded: Any = None) -> None:
        count = into.size
        if count <= few:
            plain(left, right, into)
            if rounded is not None:
                rounded[...] = into
            return
        # Checked in every call: each thread has its own mode, which may change.
        fast = native and not _flushes()
        widen, narrow = (_widen_float16, _narrow_float16) if fast else (_widen, _narrow)
        room = numpy.empty((2, min(count, BLOCK)), FLOAT32)
        for start in range(0, count, BLOCK):
            part = slice(start, min(start + BLOCK, count))
            one, two = room[:, :part.stop - start]
            parts = [x[part] if x.dtype == FLOAT32 else widen(x[part], space)
                     for x, space in ((left, one), (right, two))]
            if into.dtype == FLOAT32:
                ufunc(*parts, out=into[part])
                if rounded is not None:
                    numpy.copyto(one, into[part])
                    narrow(one, two, rounded[part])
            else:
                narrow(ufunc(*parts, out=one), two, into[part])

    return apply


def accumulator(count: int, namespace: Any = numpy) -> Any:
    """Allocate ``count`` intermediate results of a chain."""
    return namespace.empty(count, FLOAT32)


def _flushes() -> bool:
    """Return True if this thread flushes subnormal numbers to zero; some libraries set this mode.

    The mode applies to float32 and float64, so a product of Python numbers tests it cheaply.
    """
    return not _LEAST_DOUBLE * _HALF > 0.0


def _widen_float16(half: numpy.ndarray, into: numpy.ndarray) -> numpy.ndarray:
    if numpy.bitwise_and(half.view(numpy.uint16), _UNSIGNED).max() >= _INFINITY:
        numpy.copyto(into, half)
        return into
    bits = into.view(numpy.int32)
    numpy.copyto(bits, half.view(numpy.int16))  # sign-extended
    numpy.left_shift(bits, _THIRTEEN_SIGNED, bits)
    numpy.bitwise_and(bits, _OWN, bits)
    return numpy.multiply(into, _LIFT, into)


def _narrow_float16(value: numpy.ndarray, room: numpy.ndarray, into: numpy.ndarray) -> None:
    """Round to float16; overwrites ``value`` and ``room``."""
    bits, exponent = value.view(numpy.uint32), room.view(numpy.uint32)
    numpy.bitwise_and(bits, _EXPONENT, exponent)
    if exponent.max() >= _LARGE:
        numpy.copyto(into, value, casting="same_kind")
        return
    # Adding a large number rounds to even at float16's last digit; then it is subtracted.
    numpy.maximum(exponent, _LEAST, out=exponent)
    numpy.add(exponent, _ROUNDING, exponent)
    signs = numpy.right_shift(bits, _SIXTEEN).astype(numpy.uint16)
    numpy.add(value, room, value)
    numpy.subtract(value, room, value)
    numpy.multiply(value, _DROP, value)
    numpy.right_shift(bits, _THIRTEEN, bits)
    numpy.bitwise_and(signs, _SIGN, signs)
    rounded = into.view(numpy.uint16)
    numpy.copyto(rounded, bits, casting="same_kind")
    numpy.bitwise_or(rounded, signs, rounded)


def _widen(half: numpy.ndarray, into: numpy.ndarray) -> numpy.ndarray:
    numpy.copyto(into, half)
    return into


def _narrow(value: numpy.ndarray, room: numpy.ndarray, into: numpy.ndarray) -> None:
    numpy.copyto(into, value, casting="same_kind")
