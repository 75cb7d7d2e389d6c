"""The measuring loop: warm-up, barrier, samples, and the statistics of the slowest rank.

Every measurement of the package uses it, or :class:`hpccoll.measure.timing.Runner`, which adds the
buffers of a case.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from time import perf_counter
from typing import Any, TypeVar

import numpy
from mpi4py import MPI

AnyRunner = TypeVar("AnyRunner")


def sample(call: Callable[[], Any], count: int = 1, barrier: Callable[[], Any] | None = None,
           calls: int = 1) -> list[float]:
    """Return the seconds of a call on this rank, ``count`` times, each the mean of ``calls``."""
    seconds = []
    for _ in range(count):
        if barrier is not None:
            barrier()
        start = perf_counter()
        for _ in range(calls):
            call()
        seconds.append((perf_counter() - start) / calls)
    return seconds


def sample_in_turns(comm: MPI.Intracomm, count: int, warmup: int,
                    measure: Callable[[int, int], float]) -> tuple[float, float]:
    """Return the medians of two ways over ``count`` samples after ``warmup`` ones; collective.

    ``measure`` returns the seconds of way 0 or 1, given with the number of the sample. The ways
    change their order, so that none always has the caches that the other one left.
    """
    seconds: tuple[list[float], list[float]] = [], []
    for number in range(warmup + count):
        for way in (0, 1) if number % 2 else (1, 0):
            seconds[way].append(measure(way, number))
    one, two = (median_of_slowest(comm, series[warmup:]) for series in seconds)
    return one, two


def median_of_slowest(comm: MPI.Intracomm, seconds: Sequence[float]) -> float:
    """Return the median over samples of the slowest rank's time, on all ranks; collective."""
    longest = numpy.array(seconds)
    comm.Allreduce(MPI.IN_PLACE, longest, MPI.MAX)
    return float(numpy.median(longest))


def in_turn(runners: Sequence[AnyRunner], repetition: int) -> list[AnyRunner]:
    """Return the runners in the order of a repetition; the same on every rank.

    Shuffled, so that no candidate always follows the same one: a slow candidate leaves cold caches
    and throttled processors to the next.
    """
    return Random(repetition).sample(runners, len(runners))
