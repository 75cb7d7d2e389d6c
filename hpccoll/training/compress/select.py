"""Which elements are the largest: exactly, or by a threshold guessed from a sample."""

from __future__ import annotations

from typing import Any

from hpccoll.training.compress.quantise import namespace

#: Elements of a sample, at least.
SAMPLE = 4096


def largest(magnitudes: Any, count: int) -> Any:
    """Indices of the ``count`` largest, rising; of equal ones those with the lower index.

    Most elements are told apart by a threshold that more than enough of them pass, by a sample;
    only where the sample misled, all are ordered.

    >>> import numpy
    >>> largest(numpy.array([1.0, 3.0, 2.0, 3.0, 3.0]), 2).tolist()
    [1, 3]
    """
    module = namespace(magnitudes)
    if count >= magnitudes.size:
        return module.arange(magnitudes.size)
    below = guess(magnitudes, min(magnitudes.size, count + count // 4 + 64))
    among = module.flatnonzero(magnitudes >= below)
    if among.size < count:
        among = module.arange(magnitudes.size)
    candidates = magnitudes[among]
    least = module.partition(candidates, among.size - count)[among.size - count]
    above = module.flatnonzero(candidates > least)
    equal = module.flatnonzero(candidates == least)[:count - above.size]
    return among[module.sort(module.concatenate([above, equal]))]


def sampled(magnitudes: Any, count: int) -> Any:
    """Indices of about the ``count`` largest and never more, rising.

    Those that reach a sample's quantile; of too many the largest.
    """
    module = namespace(magnitudes)
    if count >= magnitudes.size:
        return module.arange(magnitudes.size)
    among = module.flatnonzero(magnitudes >= guess(magnitudes, count))
    if among.size > count:
        among = among[largest(magnitudes[among], count)]
    return among


def guess(magnitudes: Any, count: int) -> Any:
    """A magnitude that about ``count`` of all reach, by every s-th one."""
    module = namespace(magnitudes)
    # Enough for a hundred above the threshold; an odd stride meets all columns of most matrices.
    wanted = max(SAMPLE, 100 * magnitudes.size // count)
    sample = magnitudes[::max(1, magnitudes.size // wanted) | 1]
    place = max(0, sample.size - max(1, round(count * sample.size / magnitudes.size)))
    return module.partition(sample, place)[place]
