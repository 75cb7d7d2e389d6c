"""Benchmark data with exact results, fast to generate and check at any size.

The contribution of a rank to a block comes from :mod:`hpccoll.arrays.exact` and is a pure
function of (rank, block, iteration, element), so every rank knows every result without
communication. It repeats after ``PERIOD`` elements, which makes filling and checking as cheap
as a copy, whatever the number of ranks; a prime period detects every shift by a block or by a
power of two. All candidates of a case have the same data, so the latest is cached.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy

from hpccoll.arrays import exact

#: Period of the data in elements.
PERIOD = 4093
#: Maximum number of cached periods.
KEPT = 128


def contribution(op: str | None, dtype: numpy.dtype, rank: int, size: int, block: int,
                 iteration: int, count: int) -> numpy.ndarray:
    """Return the first ``count`` elements, at most a period, of a rank's contribution to a block.

    The array is read-only, like the one of :func:`result`.
    """
    return _contribution(op, dtype, rank, size, block, iteration, min(count, PERIOD))


def result(op: str | None, dtype: numpy.dtype, ranks: Sequence[int], size: int, block: int,
           iteration: int, count: int) -> numpy.ndarray:
    """Return at most a period of the result of the contributions of ``ranks`` to a block."""
    if op is None:
        owner, = ranks
        return contribution(op, dtype, owner, size, block, iteration, count)
    return _result(op, dtype, tuple(ranks), size, block, iteration, min(count, PERIOD))


def fill(array: numpy.ndarray, period: numpy.ndarray) -> None:
    """Fill an array with copies of a period."""
    whole, rest = _cut(array)
    if whole.size:
        whole[...] = period
    rest[...] = period[:rest.size]


def wrong(array: numpy.ndarray, period: numpy.ndarray, bitwise: bool) -> int:
    """Count the elements that differ from copies of a period.

    ``bitwise`` compares bits, so that a NaN equals itself. Otherwise numbers are compared by
    value: the sign of a zero may depend on the order of a reduction, and a long double has
    padding bytes.
    """
    if bitwise:
        array, period = _bits(array), _bits(period)
    whole, rest = _cut(array)
    number = numpy.count_nonzero(rest != period[:rest.size])
    if whole.size:
        number += numpy.count_nonzero(whole != period)
    return int(number)


@lru_cache(KEPT)
def _contribution(op: str | None, dtype: numpy.dtype, rank: int, size: int, block: int,
                  iteration: int, count: int) -> numpy.ndarray:
    if op is None:
        return _make_read_only(exact.sent_elements(dtype, rank, count, seed=iteration, to=block))
    return _make_read_only(exact.inputs(op, dtype, rank, size, count,
                                        _seed(size, block, iteration)))


@lru_cache(KEPT)
def _result(op: str, dtype: numpy.dtype, ranks: tuple[int, ...], size: int, block: int,
            iteration: int, count: int) -> numpy.ndarray:
    return _make_read_only(exact.exact_reduction(op, dtype, ranks, size, count,
                                                 _seed(size, block, iteration)))


def _make_read_only(array: numpy.ndarray) -> numpy.ndarray:
    array.flags.writeable = False
    return array


def _seed(size: int, block: int, iteration: int) -> int:
    # Two apart: exact uses the next seed for the imaginary parts.
    return 2 * (iteration * size + block)


def _cut(array: numpy.ndarray) -> tuple[numpy.ndarray, numpy.ndarray]:
    """Return the whole periods of an array, one per row, and the rest."""
    whole = array.size // PERIOD * PERIOD
    return array[:whole].reshape(-1, PERIOD), array[whole:]


def _bits(array: numpy.ndarray) -> numpy.ndarray:
    """Return a view of the memory as unsigned integers, or tuples of them."""
    size = array.dtype.itemsize
    if size <= 8:
        return array.view(f"u{size}")
    return array.view([(f"word{i}", "u8") for i in range(size // 8)])
