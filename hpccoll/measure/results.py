"""Results: one series of times for one candidate on one case, and what it says."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import exp, log
from typing import NamedTuple

import numpy

from hpccoll.calls.call import METHODS
from hpccoll.config import NATIVE


class Result(NamedTuple):
    """What one candidate did on one case.

    Attributes:
        collective, candidate: their names.
        serves: the algorithm that ran; differs from ``candidate`` for ``auto``.
        ranks, root: of the communicator; ``root`` is ``None`` where there is none.
        nbytes, count, message: size of the case, see :class:`hpccoll.measure.cases.Case`.
        dtype, op: element type and operator, ``None`` where there is none.
        in_place: whether ``MPI.IN_PLACE`` was passed.
        first_seconds: of the very first call, which makes schedules, plans and connections.
        seconds: for every iteration, the time of the slowest rank.
        rank_mean_seconds: for every rank, its own mean time.
        wrong: wrong elements of outputs, over all ranks and checked iterations.
        changed: elements of inputs that a call changed, likewise.
        limit_seconds: what the memory allows, see :mod:`hpccoll.tools.bench.roofline`;
            ``None`` where memory is not the limit.
    """

    collective: str
    candidate: str
    serves: str
    ranks: int
    root: int | None
    nbytes: int
    count: int  # type: ignore[assignment]  # a field of every record; nobody counts fields
    message: int
    dtype: str | None
    op: str | None
    in_place: bool
    first_seconds: float
    seconds: tuple[float, ...]
    rank_mean_seconds: tuple[float, ...]
    wrong: int
    changed: int
    limit_seconds: float | None = None

    @property
    def failures(self) -> int:
        """Everything that was not as it must be."""
        return self.wrong + self.changed

    @property
    def mean(self) -> float:
        """Mean seconds of an iteration."""
        return float(numpy.mean(self.seconds))

    @property
    def median(self) -> float:
        """Median seconds of an iteration."""
        return self.percentile(50)

    @property
    def trimmed(self) -> float:
        """Mean seconds of an iteration, extremes left out; see :func:`trimmed`."""
        return trimmed(self.seconds)

    @property
    def limit(self) -> float | None:
        """The fraction of the memory limit that the median iteration reaches."""
        return self.limit_seconds / self.median if self.limit_seconds and self.median else None

    @property
    def variation(self) -> float:
        """Coefficient of variation: standard deviation over mean."""
        return float(numpy.std(self.seconds)) / self.mean if self.mean else 0.0

    def percentile(self, percent: float) -> float:
        """The time that so many per cent of the iterations do not exceed."""
        return float(numpy.percentile(self.seconds, percent))

    def algorithm_bandwidth(self, seconds: float) -> float:
        """Bytes per second by the size of the case."""
        return self.nbytes / seconds if seconds else 0.0

    def bus_bandwidth(self, seconds: float) -> float:
        """Bytes per second that a link must carry with a bandwidth-optimal algorithm."""
        return self.algorithm_bandwidth(seconds) * bus_factor(self.collective, self.ranks)


def trimmed(seconds: Sequence[float] | numpy.ndarray) -> float:
    """The mean without the shortest and the longest tenth, of three and more without one of each.

    Times of one call come in heaps: ranks that share a processor had their turn or waited for it,
    caches were shared or not. A median is the height of one of two equal heaps, the other one in
    the next run; this is between them, and what a program that calls many times pays.
    """
    cut = max(len(seconds) // 10, int(len(seconds) > 2))
    return float(numpy.mean(numpy.sort(seconds)[cut:len(seconds) - cut]))


def joined(*rounds: Sequence[Result]) -> list[Result]:
    """The results of several rounds of one case, put together by candidate.

    What was wrong once is wrong. What an automatic choice serves is what it did last.
    """
    by_candidate: dict[str, list[Result]] = {}
    for result in (r for part in rounds for r in part):
        by_candidate.setdefault(result.candidate, []).append(result)
    return [_together(results) for results in by_candidate.values()]


def _together(results: Sequence[Result]) -> Result:
    weights = [len(r.seconds) for r in results]
    means = numpy.average([r.rank_mean_seconds for r in results], axis=0,
                          weights=weights if any(weights) else None)
    return results[-1]._replace(
        first_seconds=results[0].first_seconds,
        seconds=tuple(t for r in results for t in r.seconds),
        rank_mean_seconds=tuple(map(float, means)),
        wrong=sum(r.wrong for r in results), changed=sum(r.changed for r in results))


def bus_factor(collective: str, ranks: int) -> float:
    """Bus bandwidth over algorithm bandwidth, as nccl-tests defines it."""
    base = METHODS[collective]
    if base == "allreduce":
        return 2 * (ranks - 1) / ranks
    if base in ("allgather", "reduce_scatter", "alltoall", "gather", "scatter"):
        return (ranks - 1) / ranks
    return 1.0


def ratios(group: Sequence[Result]) -> dict[str, float]:
    """How many times faster than native each candidate of one case is, by medians."""
    native = next((r.median for r in group if r.candidate == NATIVE), None)
    return {} if native is None else {
        r.candidate: native / r.median for r in group if r.median}


def mean_ratios(groups: Iterable[Sequence[Result]]) -> dict[str, tuple[float, int]]:
    """Geometric mean of each candidate's ratios, and over how many cases."""
    by_candidate: dict[str, list[float]] = {}
    for group in groups:
        for candidate, ratio in ratios(group).items():
            by_candidate.setdefault(candidate, []).append(ratio)
    return {candidate: (exp(sum(map(log, values)) / len(values)), len(values))
            for candidate, values in by_candidate.items()}
