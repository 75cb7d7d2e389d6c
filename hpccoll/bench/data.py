"""Benchmark data whose result is exact, whatever the order of the reduction.

The contribution of a rank to a block is a pure function of (rank, block, iteration, element),
so every rank knows every result without communication. It repeats after ``PERIOD`` elements,
which makes filling and checking as cheap as a copy, whatever the number of ranks; a prime
period lets no shift by a block or by a power of two go unseen.

Exactness after nccl-tests: floating-point sums are of positive integers whose total fits in
the mantissa, products are of powers of two with one factor of three. Operators that forget
(``land``, ``bor``, ...) get their neutral element from all ranks but one, another one for
every element. Data that only moves is random bits, NaNs among them, and compared as bits.
"""

from __future__ import annotations

from functools import reduce
from typing import Sequence

import numpy

from hpccoll.reduce import UFUNCS

#: Elements after which data repeats.
PERIOD = 4093
#: Content of an output before the call.
POISON = 0xA5
#: Ranks that may contribute another factor than 1 or 3 to one element of a product.
FACTORS = 8


def contribution(op: str | None, dtype: numpy.dtype, rank: int, size: int, block: int,
                 iteration: int, count: int) -> numpy.ndarray:
    """The first ``count`` elements, at most a period, of a rank's contribution to a block."""
    count = min(count, PERIOD)
    width = -(-dtype.itemsize // 8)
    words = _random((rank * 1_000_003 + block) * 1_000_003 + iteration, count * width)
    if op is None and dtype.kind == "b":
        return (words & 1).astype(dtype)
    if op is None or (dtype.kind in "iu" and op in ("sum", "max", "min", "bxor")):
        return words.view("u1")[:count * dtype.itemsize].view(dtype)
    words = words[:count]
    if op in ("max", "min"):
        return (words % 4093).astype("i8").astype(dtype) - dtype.type(2046)
    # The owner of an element is the rank that decides it; (index + iteration) deals them out.
    turn = numpy.arange(count) + (block + iteration - rank)
    if op in ("land", "lor", "lxor", "band", "bor"):
        return _logical(op, dtype, words, turn % size == 0)
    if op == "prod":
        return _factors(dtype, words, turn, size)
    if dtype.kind == "c":
        return (_addends(numpy.finfo(dtype), words, turn, size)
                + 1j * _addends(numpy.finfo(dtype), words >> 32, turn, size)).astype(dtype)
    return _addends(numpy.finfo(dtype), words, turn, size).astype(dtype)


def result(op: str | None, dtype: numpy.dtype, ranks: Sequence[int], size: int, block: int,
           iteration: int, count: int) -> numpy.ndarray:
    """What the contributions of ``ranks`` to a block come to; at most a period of it."""
    parts = (contribution(op, dtype, rank, size, block, iteration, count) for rank in ranks)
    if op is None:
        return next(parts)
    ufunc = getattr(numpy, UFUNCS[op])
    return reduce(lambda left, right: ufunc(left, right).astype(dtype, copy=False), parts)


def fill(array: numpy.ndarray, period: numpy.ndarray) -> None:
    """Write a period again and again."""
    whole, rest = _cut(array)
    if whole.size:
        whole[...] = period
    rest[...] = period[:rest.size]


def wrong(array: numpy.ndarray, period: numpy.ndarray, as_bits: bool) -> int:
    """Count the elements that differ from a period written again and again."""
    if as_bits:
        array, period = _bits(array), _bits(period)
    whole, rest = _cut(array)
    found = numpy.count_nonzero(rest != period[:rest.size])
    if whole.size:
        found += numpy.count_nonzero(whole != period)
    return int(found)


def _cut(array: numpy.ndarray) -> tuple[numpy.ndarray, numpy.ndarray]:
    """The whole periods of an array, one a row, and the rest."""
    whole = array.size // PERIOD * PERIOD
    return array[:whole].reshape(-1, PERIOD), array[whole:]


def _bits(array: numpy.ndarray) -> numpy.ndarray:
    """The same memory as unsigned integers, or pairs of them, whose comparison knows no NaN."""
    size = array.dtype.itemsize
    if size <= 8:
        return array.view(f"u{size}")
    return array.view([(f"word{i}", "u8") for i in range(size // 8)])


def _random(seed: int, count: int) -> numpy.ndarray:
    """64-bit words by the finalizer of SplitMix64 (Steele, Lea, Flood 2014)."""
    gamma = 0x9E3779B97F4A7C15
    start = (seed * gamma) % 2**64
    words = numpy.arange(count, dtype="u8") * numpy.uint64(gamma) + numpy.uint64(start)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        words = (words ^ (words >> numpy.uint64(shift))) * numpy.uint64(factor)
    return words ^ (words >> numpy.uint64(31))


def _addends(info: numpy.finfo, words: numpy.ndarray, turn: numpy.ndarray,
             size: int) -> numpy.ndarray:
    """Positive integers; those of all ranks together are at most 2 ** (mantissa bits)."""
    budget = 2 ** min(info.nmant + 1, 53)
    every = -(-size // budget)
    most = min(budget // -(-size // every), 1009)
    return numpy.where(turn % every == 0, 1 + words % numpy.uint64(most), 0)


def _factors(dtype: numpy.dtype, words: numpy.ndarray, turn: numpy.ndarray,
             size: int) -> numpy.ndarray:
    """Odd integers; powers of two with signs and one factor of three; complex units."""
    if dtype.kind in "iu":
        return words.astype(dtype) | dtype.type(1)
    if dtype.kind == "c":
        return numpy.array([1, 1j, -1, -1j], dtype)[words % 4]
    active = turn % -(-size // FACTORS) == 0
    sign = numpy.where(words & 4, -1.0, 1.0)
    power = numpy.where(active, (words % 3).astype("i8") - 1, 0)
    return (sign * numpy.ldexp(1.0, power) * numpy.where(turn % size == 0, 3, 1)).astype(dtype)


def _logical(op: str, dtype: numpy.dtype, words: numpy.ndarray,
             owned: numpy.ndarray) -> numpy.ndarray:
    """Random where owned, neutral elsewhere; ``lxor`` forgets nothing and is random."""
    random = words.astype(dtype) if op in ("band", "bor") else (words & 1).astype(dtype)
    neutral = {"land": 1, "lor": 0, "band": ~dtype.type(0), "bor": 0}
    return random if op == "lxor" else numpy.where(owned, random, dtype.type(neutral[op]))
