"""Inputs whose reduction is exact in every order, and the expected results.

Results are compared exactly, without a tolerance. Inputs are pure functions of (operator, dtype,
rank, size, count, seed), so every rank computes all inputs and the result.

* Ranks contribute different values, and their roles change with the element, so lost, duplicate
  and misplaced contributions change the result.
* Floating-point sums are integers below the significand's limit times a power of two; products
  are one full significand and powers of two (after NVIDIA nccl-tests, ``verifiable.cu``).
* ``affine`` is an operator that is associative but does not commute: composition of maps
  ``x -> a x + b`` modulo a prime, with (a, b) in one complex number.
* Values of bfloat16, a dtype NumPy lacks, are computed as float32, which holds them exactly.
* Data without a reduction has random bits, including NaNs, and is compared bit by bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce as fold
from typing import Any

import numpy

from hpccoll.arrays.half import BFLOAT16, is_bfloat16
from hpccoll.errors import ArgumentError, ArgumentTypeError
from hpccoll.ir.operators import OPERATORS

#: Modulus of ``affine``: products of two numbers below it are exact in float64.
PRIME = (1 << 26) - 5
#: Byte in memory that must be written, or must not be written.
POISON = 0xA5


def affine(left: Any, right: Any, into: Any = None) -> Any:
    """Compose maps: ``(a, b) o (c, d) = (a c, a d + b)`` modulo :data:`PRIME`."""
    a = numpy.fmod(left.real * right.real, PRIME)
    b = numpy.fmod(left.real * right.imag + left.imag, PRIME)
    result = numpy.empty_like(left) if into is None else into
    result.real, result.imag = a, b
    return result


def _first_extreme(better: Callable) -> Callable:
    def choose(left: Any, right: Any) -> Any:
        value, index = left.dtype.names
        same = left[value] == right[value]
        keep = better(left[value], right[value]) | (same & (left[index] <= right[index]))
        return numpy.where(keep, left, right)
    return choose


#: Operators as NumPy functions.
MEANING: dict[str, Callable] = {
    "sum": numpy.add, "prod": numpy.multiply, "max": numpy.maximum, "min": numpy.minimum,
    "land": numpy.logical_and, "lor": numpy.logical_or, "lxor": numpy.logical_xor,
    "band": numpy.bitwise_and, "bor": numpy.bitwise_or, "bxor": numpy.bitwise_xor,
    "maxloc": _first_extreme(numpy.greater), "minloc": _first_extreme(numpy.less),
    "affine": affine,
}


def inputs(op: str, dtype: Any, rank: int, size: int, count: int, seed: int = 0) -> numpy.ndarray:
    """Return one rank's contribution to a reduction of ``count`` elements over ``size`` ranks.

    >>> float(sum(inputs("sum", "f2", rank, 3, 1)[0] for rank in (2, 0, 1))) == float(
    ...     exact_reduction("sum", "f2", range(3), 3, 1)[0])
    True
    """
    if _is_bfloat16(dtype):
        return inputs(op, BFLOAT16, rank, size, count, seed).astype(dtype)
    dtype, bits = _significand_bits(op, dtype)
    # The role of a rank for each element: a random rotation of the ranks.
    part = (rank + (random_bits(count, seed, 1) % size).astype(numpy.int64)) % size
    own = random_bits(count, seed, 2, rank)
    if op == "affine":
        return (own % (PRIME - 1) + 1 + 1j * ((own >> 32) % PRIME)).astype(dtype)
    if dtype.names:
        pairs = numpy.zeros(count, dtype)
        pairs[dtype.names[0]], pairs[dtype.names[1]] = own % 4, part
        return pairs
    if op in ("land", "lor", "lxor"):
        rare = (part == 0) & (random_bits(count, seed, 3) % 2 == 0)
        truth = {"land": ~rare, "lor": rare, "lxor": own % 2 == 0}[op]
        return truth if dtype.kind == "b" else (own | 1).astype(dtype) * truth.astype(dtype)
    if dtype.kind in "iu":
        return _integers(op, own, size, seed).astype(dtype)
    if op in ("max", "min"):
        return _scale_values((own >> 8) % (1 << bits) + 1., count, seed, own % 2 == 0).astype(dtype)
    if op == "prod":
        return _factors(part, bits, size, seed, dtype).astype(dtype)
    summands = _summands(part, bits, size, seed)
    if dtype.kind == "c":
        summands = summands + 1j * _summands(part, bits, size, seed + 1)
    return summands.astype(dtype)


def _significand_bits(op: str, dtype: Any) -> tuple[numpy.dtype, int]:
    """Return the dtype and the bits of its significand; raise if it lacks the operator."""
    if op not in MEANING:
        raise ArgumentError.unknown_word("op", op, MEANING)
    bits = 8 if dtype == BFLOAT16 else 0
    dtype = numpy.dtype("f4" if bits else dtype)
    defined = (dtype == "c16" if op == "affine" else bool(dtype.names) if OPERATORS[op].pairs
               else OPERATORS[op].defined_on(dtype.kind))
    if not defined:
        raise ArgumentTypeError("dtype", f"{op} is not defined on {dtype}")
    if dtype.kind in "fc" and not bits:
        bits = min(numpy.finfo(dtype).nmant + 1, 53)
    return dtype, bits


def exact_reduction(op: str, dtype: Any, ranks: Iterable[int], size: int, count: int,
                    seed: int = 0) -> numpy.ndarray:
    """Return the exact reduction of the :func:`inputs` of ``ranks``, in their order."""
    if _is_bfloat16(dtype):
        return exact_reduction(op, BFLOAT16, ranks, size, count, seed).astype(dtype)
    parts = [inputs(op, dtype, rank, size, count, seed) for rank in ranks]
    final = parts[0].dtype
    exact = {"f": numpy.float64, "c": numpy.complex128}.get(final.kind, final)
    if final.itemsize > numpy.dtype(exact).itemsize:
        exact = final
    return fold(MEANING[op], [part.astype(exact) for part in parts]).astype(final)


def sent_elements(dtype: Any, source: int, count: int, seed: int = 0, to: int = 0) -> numpy.ndarray:
    """Return the random bits that rank ``source`` sends, in pairwise collectives to rank ``to``."""
    if _is_bfloat16(dtype):
        return sent_elements(BFLOAT16, source, count, seed, to).view(dtype)
    dtype = numpy.dtype("u2" if dtype == BFLOAT16 else dtype)
    if dtype.kind == "b":
        return random_bits(count, seed, 4, source, to) % 2 == 0
    if has_padding(dtype):
        values = numpy.zeros(count, dtype)
        for part in [values[name] for name in dtype.names] if dtype.names else [values]:
            part[...] = random_bits(count, seed, 4, source, to) % 100
        return values
    words = random_bits(-(-count * dtype.itemsize // 8), seed, 4, source, to)
    return words.view(numpy.uint8)[:count * dtype.itemsize].view(dtype)


def _is_bfloat16(dtype: Any) -> bool:
    """Return True for the dtype of ml_dtypes; the text ``bfloat16`` means float32 values."""
    return isinstance(dtype, numpy.dtype) and is_bfloat16(dtype)


def has_padding(dtype: numpy.dtype) -> bool:
    """Return True if elements have padding, which copies may change."""
    if dtype.names:
        return sum(dtype[name].itemsize for name in dtype.names) < dtype.itemsize
    return dtype.char in "gG"


def random_bits(count: int, *salt: int) -> numpy.ndarray:
    """Return random 64-bit numbers (splitmix64), a pure function of position and salt."""
    golden, words = 0x9E3779B97F4A7C15, numpy.arange(1, count + 1, dtype=numpy.uint64)
    for number in salt:
        words = words * numpy.uint64(golden) + numpy.uint64((number * golden + 1) % (1 << 64))
        words = (words ^ (words >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
        words = (words ^ (words >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
        words ^= words >> numpy.uint64(31)
    return words


def portions(number: int, budget: int) -> list[int]:
    """Return positive integers with a sum of at most ``budget``, as different as possible.

    >>> portions(4, 100), portions(4, 6), portions(4, 3)
    ([1, 2, 3, 4], [1, 2, 1, 2], [1, 1, 1, 0])
    """
    kinds = min(number, 2 * budget // max(number, 1) - 1)
    if kinds < 1:
        return [1] * min(budget, number) + [0] * (number - budget)
    return [index % kinds + 1 for index in range(number)]


def _draw_integers(size: int, budget: int) -> numpy.ndarray:
    """Return one integer per part: positive for even parts, negative for odd ones."""
    ups, downs = portions(-(-size // 2), budget), portions(size // 2, budget)
    return numpy.array([downs[i // 2] * -1 if i % 2 else ups[i // 2] for i in range(size)])


def _summands(part, bits: int, size: int, seed: int) -> numpy.ndarray:
    """Return integers whose positive and whose negative sums are at most ``2 ** bits``."""
    values = _draw_integers(size, 1 << (bits - 1))
    room = numpy.uint64((1 << bits) - int(values[::2].sum()))
    extra = random_bits(part.size, seed, 5) % (room + numpy.uint64(1))
    return _scale_values(values[part] + numpy.where(part == 0, extra, 0).astype(float), part.size,
                         seed)


def _factors(part, bits: int, size: int, seed: int, dtype: numpy.dtype) -> numpy.ndarray:
    """Return a full significand for one rank, powers of two for the others; signs or units."""
    info = numpy.finfo(dtype)
    exponents = _draw_integers(size, min(int(info.maxexp), -int(info.minexp), 100) - 4)
    turns = random_bits(part.size, seed, 6) + part.astype(numpy.uint64)
    full = [1 + random_bits(part.size, seed, salt) % (1 << (bits - 1)) / float(1 << (bits - 1))
            for salt in (7, 8)]
    if dtype.kind == "c":
        units = numpy.array([1, 1j, -1, -1j])[turns % 4]
        return units * numpy.where(part == 0, full[0] + 1j * full[1], numpy.ldexp(
            1., exponents[part]))
    units = numpy.array([1., -1.])[turns % 2]
    return units * numpy.where(part == 0, full[0], numpy.ldexp(1., exponents[part]))


def _scale_values(values, count: int, seed: int, negative=False) -> numpy.ndarray:
    exponents = (random_bits(count, seed, 9) % 9).astype(numpy.int32) - 4
    return numpy.ldexp(numpy.where(negative, -values, values), exponents)


def _integers(op: str, own, size: int, seed: int) -> numpy.ndarray:
    """Return integers: full range; odd for products; few ones (zeros) if one decides the result."""
    if op == "prod":
        return own | 1
    if op not in ("band", "bor"):
        return own
    words = [own] + [random_bits(own.size, seed, 10 + i, int(own[0] >> 40))
                     for i in range(size.bit_length())] if own.size else [own]
    few = fold(numpy.bitwise_and, words)
    return ~few if op == "band" else few


def to_bfloat16(values: numpy.ndarray) -> numpy.ndarray:
    """Return the bfloat16 bits of float32 numbers that bfloat16 represents exactly.

    Raises:
        ArgumentError: a number would be rounded.
    """
    words = numpy.ascontiguousarray(values, numpy.float32).view(numpy.uint32)
    if numpy.any(words & 0xFFFF):
        raise ArgumentError("values", "are not exact in bfloat16")
    return (words >> 16).astype(numpy.uint16)


def from_bfloat16(words: numpy.ndarray) -> numpy.ndarray:
    """Return bfloat16 bits as float32 numbers."""
    return (words.astype(numpy.uint32) << 16).view(numpy.float32)


def wrong(actual: numpy.ndarray, expected: numpy.ndarray, bitwise: bool = False) -> int:
    """Count different elements; ``bitwise`` distinguishes zeros and NaNs by their bits.

    Types with padding are compared by value.
    """
    if actual.dtype != expected.dtype or actual.shape != expected.shape:
        return max(actual.size, expected.size, 1)
    raw = [numpy.ascontiguousarray(array).view(numpy.uint8).reshape(array.size, array.itemsize)
           for array in (actual, expected)]
    differs = (raw[0] != raw[1]).any(axis=1)
    if not bitwise or has_padding(actual.dtype):
        differs &= actual != expected
    return int(differs.sum())


def poison(array: numpy.ndarray) -> None:
    """Fill memory with values that no result contains: NaN, or the byte ``0xA5``."""
    if array.dtype.kind in "fc":
        array[...] = numpy.nan
    else:
        array.view(numpy.uint8)[...] = POISON


class GuardedArray:
    """Poisoned memory between two guard zones; ``array`` is the usable part."""

    ZONE = 64

    def __init__(self, count: int, dtype: Any, shift: int = 0):
        """Allocate ``count`` elements, ``shift`` bytes off alignment."""
        dtype = numpy.dtype(dtype)
        start, stop = self.ZONE + shift, self.ZONE + shift + count * dtype.itemsize
        memory = numpy.full(stop + self.ZONE, POISON, numpy.uint8)
        self.zones = memory[:start], memory[stop:]
        self.array = memory[start:stop].view(dtype)
        poison(self.array)

    def describe_overwrites(self) -> str:
        """Return the overwritten guard zones as text; empty if there are none."""
        return " and ".join(name for name, zone in zip(("before", "after"), self.zones)
                            if numpy.any(zone != POISON))
