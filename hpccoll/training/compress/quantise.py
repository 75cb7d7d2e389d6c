"""Block quantisation: small integers and one float32 scale for each block.

    values   x0 x1 ... | ... | ... xn       in blocks; the last one may be short
    packed   integers of 8 or 4 bits, two's complement; the first of two is in the low bits
    scales   float32, one for each block: value = integer * scale

With ``b`` bits and ``m`` the largest magnitude of a block, scale = m / (2^(b-1) - 1), as in ZeRO++
(Wang et al., 2023): the error is at most scale / 2, without bias.
A block of zeros has scale 1. A block with NaN or infinity has scale NaN, and decodes to NaN.
Rounding is to nearest, ties to even.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy

from hpccoll.errors import ArgumentError

#: Elements that are processed together: their temporaries fit into a processor's cache.
AT_ONCE = 1 << 15
#: Default elements of a block, and valid bits of an integer.
BLOCK, BITS = 256, (4, 8)


def quantise(values: Any, bits: int = 8, block: int = BLOCK) -> tuple[Any, Any]:
    """Quantise a vector.

    Args:
        values: float32 or float64, contiguous.
        block: elements with one scale; even.

    Returns:
        ``(packed, scales)``: :func:`packed_bytes` bytes, and ``ceil(count / block)`` of float32.

    >>> packed, scales = quantise(numpy.array([1.0, -7.0, 14.0]), 4, 2)
    >>> packed.tolist(), scales.tolist()
    ([145, 7], [1.0, 2.0])
    """
    check_format(bits, block)
    module, blocks = namespace(values), -(-values.size // block)
    packed = module.empty(packed_bytes(values.size, bits), "u1")
    scales = module.empty(blocks, "f4")
    for first, rows in slices(values, block):
        at = slice(first * block * bits // 8, (first * block + rows.size) * bits // 8 + 1)
        here = quantise_rows(rows, bits, scales[first:first + len(rows)])
        packed[at][:here.size] = here.ravel()
    return packed, scales


def dequantise(packed: Any, scales: Any, count: int, bits: int = 8, block: int = BLOCK) -> Any:
    """Return the ``count`` values that :func:`quantise` coded, as float32.

    >>> dequantise(*quantise(numpy.array([1.0, -7.0, 14.0]), 4, 2), 3, 4, 2).tolist()
    [1.0, -7.0, 14.0]
    """
    check_format(bits, block)
    out = namespace(packed).empty(count, "f4")
    for first, rows in slices(out, block):
        start = first * block * bits // 8
        codes = packed[start:start + packed_bytes(rows.size, bits)].reshape(len(rows), -1)
        dequantise_rows(codes, scales[first:first + len(rows)], bits, rows)
    return out


def packed_bytes(count: int, bits: int) -> int:
    """Return the size of ``count`` packed integers in bytes."""
    return -(-count * bits // 8)


def check_format(bits: int, block: int) -> None:
    """Raise ArgumentError unless ``bits`` and ``block`` are valid."""
    if bits not in BITS:
        raise ArgumentError("bits", f"{bits!r} is not possible", "choose 4 or 8")
    if block < 2 or block % 2:
        raise ArgumentError("block", f"{block!r} is not possible",
                            "choose an even number of elements")


def quantise_rows(rows: Any, bits: int, scales: Any) -> Any:
    """Quantise each row with its own scale; return the packed rows, fill ``scales``."""
    module, top = namespace(rows), (1 << bits - 1) - 1
    with numpy.errstate(all="ignore"):
        largest = module.maximum(rows.max(axis=1), -rows.min(axis=1))
        scales[:] = largest / top
        # Rows of zeros, and magnitudes whose scale underflows.
        scales[scales == 0] = 1
        # Infinity times zero is not NaN for all codes; NaN times any code is.
        scales[~module.isfinite(scales)] = numpy.nan
        levels = rows / scales[:, None].astype(rows.dtype)
        module.rint(levels, out=levels)
        codes = levels.astype("i1").view("u1")
    return codes if bits == 8 else pack(codes & 15, 4)


def dequantise_rows(codes: Any, scales: Any, bits: int, out: Any) -> None:
    """Write the packed rows, each times its scale, to the rows of ``out``."""
    if bits == 4:
        codes = (unpack(codes, 4)[:, :out.shape[1]] ^ 8) - 8
    namespace(out).multiply(codes.view("i1"), scales[:, None].astype(out.dtype), out=out)


def pack(codes: Any, bits: int) -> Any:
    """Pack rows of codes of 2, 4 or 8 bits into bytes, first code in the lowest bits."""
    several, width = 8 // bits, codes.shape[1]
    if width % several:
        wider = namespace(codes).zeros((len(codes), -(-width // several) * several), "u1")
        wider[:, :width] = codes
        codes = wider
    packed = codes[:, ::several].copy()
    for place in range(1, several):
        packed |= codes[:, place::several] << place * bits
    return packed


def unpack(packed: Any, bits: int) -> Any:
    """Unpack the result of :func:`pack`; rows are padded to whole bytes."""
    several = 8 // bits
    codes = namespace(packed).empty((len(packed), packed.shape[1] * several), "u1")
    for place in range(several):
        codes[:, place::several] = packed >> place * bits & (1 << bits) - 1
    return codes


def expand(codes: Any, table: Any, out: Any) -> None:
    """Decode rows of bytes with ``table``, of shape (256, codes in a byte), into ``out``."""
    module, several = namespace(out), table.shape[1]
    if codes.shape[1] * several == out.shape[1]:
        module.take(table, codes, axis=0, out=out.reshape(len(out), -1, several), mode="clip")
    else:
        out[...] = table[codes].reshape(len(out), -1)[:, :out.shape[1]]


def slices(values: Any, block: int) -> Iterator[tuple[int, Any]]:
    """Yield a vector as rows of one block each: ``(index of the first row, rows)``.

    Yields views of several rows; a short last block is a separate slice.
    """
    whole = values.size // block
    # A device launches one kernel for each slice, so slices must be large.
    step = max(1, (AT_ONCE if isinstance(values, numpy.ndarray) else values.size) // block)
    for first in range(0, whole, step):
        last = min(first + step, whole)
        yield first, values[first * block:last * block].reshape(-1, block)
    if values.size > whole * block:
        yield whole, values[whole * block:].reshape(1, -1)


def namespace(values: Any) -> Any:
    """Return the array module of an array: NumPy or CuPy."""
    if isinstance(values, numpy.ndarray):
        return numpy
    return sys.modules[type(values).__module__.partition(".")[0]]
