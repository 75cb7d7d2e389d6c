"""Selection of the largest elements: exact, or by a sampled threshold."""

from __future__ import annotations

from typing import Any

from hpccoll.training.compress.quantise import namespace

#: Smallest number of elements of a sample.
SAMPLE = 4096


def select_largest(magnitudes: Any, count: int) -> Any:
    """Return the ascending indices of the ``count`` largest; ties to the lower index.

    A sampled threshold, passed by somewhat more than ``count`` elements, excludes most elements.
    All elements are partitioned only if the threshold was too high.

    >>> import numpy
    >>> select_largest(numpy.array([1.0, 3.0, 2.0, 3.0, 3.0]), 2).tolist()
    [1, 3]
    """
    module = namespace(magnitudes)
    if count >= magnitudes.size:
        return module.arange(magnitudes.size)
    below = estimate_threshold(magnitudes, min(magnitudes.size, count + count // 4 + 64))
    among = module.flatnonzero(magnitudes >= below)
    if among.size < count:
        among = module.arange(magnitudes.size)
    candidates = magnitudes[among]
    least = module.partition(candidates, among.size - count)[among.size - count]
    above = module.flatnonzero(candidates > least)
    equal = module.flatnonzero(candidates == least)[:count - above.size]
    return among[module.sort(module.concatenate([above, equal]))]


def select_sampled(magnitudes: Any, count: int) -> Any:
    """Return the ascending indices of about the ``count`` largest, and never more.

    Selects elements that reach a quantile of a sample; the largest of them if there are too many.
    """
    module = namespace(magnitudes)
    if count >= magnitudes.size:
        return module.arange(magnitudes.size)
    among = module.flatnonzero(magnitudes >= estimate_threshold(magnitudes, count))
    if among.size > count:
        among = among[select_largest(magnitudes[among], count)]
    return among


def estimate_threshold(magnitudes: Any, count: int) -> Any:
    """Estimate a magnitude that about ``count`` elements reach, from every s-th element."""
    module = namespace(magnitudes)
    # About 100 samples above the threshold. An odd stride visits all columns of most matrices.
    wanted = max(SAMPLE, 100 * magnitudes.size // count)
    sample = magnitudes[::max(1, magnitudes.size // wanted) | 1]
    place = max(0, sample.size - max(1, round(count * sample.size / magnitudes.size)))
    return module.partition(sample, place)[place]
