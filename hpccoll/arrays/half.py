"""Kernels for 16-bit floats: computed in float32, rounded once.

NumPy converts float16 numbers one by one, 2-3 ns each; a kernel made of its vectorised integer
operations, on blocks that stay in a cache, takes a third of that. bfloat16, a type of the package
ml_dtypes, is converted fast, but added slowly.

The sum, or the product, of two 16-bit numbers in float32 rounds to the same bits as the exact one,
since float32 has more than twice as many digits and two (Figueroa, 1995): a single step gives what
NumPy gives. Between the steps of a chain the operands are float32 arrays (:func:`wide`), which
these kernels take and give, too: a chain is rounded once, at its end, in any memory.

Numbers that are rare - infinities, NaN, large ones - send a block through the plain conversion.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy

#: The type that others are computed in.
WIDE = numpy.dtype("f4")
#: The name of a type that NumPy has not got; the package ml_dtypes brings it.
BFLOAT16 = "bfloat16"
#: Elements of a block, and elements up to which adding them directly is as fast.
BLOCK, FEW = 32768, 4096


def _bits(value: int, dtype: str = "u4") -> numpy.ndarray:
    """A constant in the form that costs least as an operand: an array without dimensions."""
    return numpy.array(value, dtype)


_SIXTEEN, _THIRTEEN, _THIRTEEN_SIGNED = _bits(16), _bits(13), _bits(13, "i4")
#: Exponents of float16, moved to where float32 has its own, are too small by so much.
_LIFT, _DROP = numpy.array(2.0 ** 112, WIDE), numpy.array(2.0 ** -112, WIDE)
#: Of float16: all but the sign, the sign, the bits of infinity.
_UNSIGNED, _SIGN, _INFINITY = _bits(0x7fff, "u2"), _bits(0x8000, "u2"), 0x7c00
#: Of a float16 in the place of a float32: its own bits, without the copies of its sign.
_OWN = _bits(-0x70002000, "i4")
#: Of float32: the exponent's bits; 2**-14, the least number of all digits; 2**15.
_EXPONENT, _LEAST, _LARGE = _bits(0xff << 23), _bits(113 << 23), 142 << 23
#: Their product is less than any number of all digits.
_LEAST_DOUBLE, _HALF = sys.float_info.min, 0.5
#: Added to the exponent, makes 1.5 * 2**13 as much: a sum with it ends where float16 ends.
_ROUNDING = _bits(13 << 23 | 1 << 22)


def is_bfloat16(dtype: numpy.dtype) -> bool:
    """Tell whether a dtype is that of ``ml_dtypes``, which need not be there."""
    return dtype.kind == "V" and dtype.itemsize == 2 and dtype.name == BFLOAT16


def is_half(dtype: numpy.dtype) -> bool:
    """Tell whether elements are 16-bit floats."""
    return dtype == numpy.float16 or is_bfloat16(dtype)


def kernel(ufunc: numpy.ufunc, dtype: numpy.dtype) -> Callable:
    """``kernel(left, right, into[, rounded])`` on operands of one size.

    Each is of the dtype or float32; ``rounded`` gets the result as well, where ``into`` is wide.
    """
    native = dtype == numpy.float16
    few = FEW if native else FEW // 4
    # Of 0 and -0 NumPy takes the one for float16 and the other for float32: which of them must
    # not depend on the number of elements, nor on chains.
    direct = not native or ufunc not in (numpy.maximum, numpy.minimum)

    def plain(left: Any, right: Any, into: Any) -> None:
        if direct and left.dtype == right.dtype == into.dtype:
            ufunc(left, right, out=into)
        else:
            into[...] = ufunc(left.astype(WIDE, copy=False), right.astype(WIDE, copy=False))

    def apply(left: Any, right: Any, into: Any, rounded: Any = None) -> None:
        count = into.size
        if count <= few:
            plain(left, right, into)
            if rounded is not None:
                rounded[...] = into
            return
        # Asked each time: a thread may get another mode, and another thread may use this kernel.
        fast = native and not _flushes()
        widen, narrow = (_widen_float16, _narrow_float16) if fast else (_widen, _narrow)
        room = numpy.empty((2, min(count, BLOCK)), WIDE)
        for start in range(0, count, BLOCK):
            part = slice(start, min(start + BLOCK, count))
            one, two = room[:, :part.stop - start]
            parts = [x[part] if x.dtype == WIDE else widen(x[part], space)
                     for x, space in ((left, one), (right, two))]
            if into.dtype == WIDE:
                ufunc(*parts, out=into[part])
                if rounded is not None:
                    numpy.copyto(one, into[part])
                    narrow(one, two, rounded[part])
            else:
                narrow(ufunc(*parts, out=one), two, into[part])

    return apply


def converting(ufunc: Callable) -> Callable:
    """The same for arrays of another library, whose ufuncs convert while they compute."""
    def apply(left: Any, right: Any, into: Any, rounded: Any = None) -> None:
        ufunc(left, right, out=into, dtype=WIDE, casting="unsafe")
        if rounded is not None:
            rounded[...] = into

    return apply


def wide(count: int, namespace: Any = numpy) -> Any:
    """Memory for what lies between two steps of a chain."""
    return namespace.empty(count, WIDE)


def _flushes() -> bool:
    """Tell whether this thread takes tiny numbers for zero now, as some libraries make it.

    The mode is one for float32 and float64, of which Python's numbers tell at no cost.
    """
    return not _LEAST_DOUBLE * _HALF > 0.0


def _widen_float16(half: numpy.ndarray, into: numpy.ndarray) -> numpy.ndarray:
    if numpy.bitwise_and(half.view(numpy.uint16), _UNSIGNED).max() >= _INFINITY:
        numpy.copyto(into, half)
        return into
    bits = into.view(numpy.int32)
    numpy.copyto(bits, half.view(numpy.int16))  # with copies of the sign in front
    numpy.left_shift(bits, _THIRTEEN_SIGNED, bits)
    numpy.bitwise_and(bits, _OWN, bits)
    return numpy.multiply(into, _LIFT, into)


def _narrow_float16(value: numpy.ndarray, room: numpy.ndarray, into: numpy.ndarray) -> None:
    """Round to float16; ``value`` and ``room`` are used up."""
    bits, exponent = value.view(numpy.uint32), room.view(numpy.uint32)
    numpy.bitwise_and(bits, _EXPONENT, exponent)
    if exponent.max() >= _LARGE:
        numpy.copyto(into, value, casting="same_kind")
        return
    # The sum with a number so large has no digits that float16 has not, and is rounded to even.
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
