"""Results: a series of times of one candidate on one case, and its statistics."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import exp, log
from typing import NamedTuple

import numpy

from hpccoll.config import NATIVE
from hpccoll.ir.methods import METHODS


class Result(NamedTuple):
    """Result of one candidate on one case.

    Attributes:
        serves: the algorithm that ran; differs from ``candidate`` for ``auto``.
        ranks, root: of the communicator; ``root`` is ``None`` where there is none.
        dtype, op: element type and operator, ``None`` where there is none.
        in_place: True if ``MPI.IN_PLACE`` was passed.
        first_seconds: of the first call, which makes schedules, plans and connections.
        seconds: for every iteration, the time of the slowest rank.
        rank_mean_seconds: for every rank, its own mean time.
        wrong: wrong elements of outputs, over all ranks and checked iterations.
        changed: elements of inputs that a call changed, likewise.
        limit_seconds: bound by the memory bandwidth, see :mod:`hpccoll.tools.bench.roofline`;
            ``None`` if memory is not the limit.
    """

    collective: str
    candidate: str
    serves: str
    ranks: int
    root: int | None
    nbytes: int
    count: int  # type: ignore[assignment]  # a field of every record; tuple.count is not used
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
        """Return the number of wrong and changed elements."""
        return self.wrong + self.changed

    @property
    def mean(self) -> float:
        """Return the mean seconds of an iteration."""
        return float(numpy.mean(self.seconds))

    @property
    def median(self) -> float:
        """Return the median seconds of an iteration."""
        return self.percentile(50)

    @property
    def trimmed_seconds(self) -> float:
        """Return the trimmed mean seconds of an iteration; see :func:`trimmed_mean`."""
        return trimmed_mean(self.seconds)

    @property
    def limit(self) -> float | None:
        """Return the fraction of the memory limit that the median iteration reaches."""
        return self.limit_seconds / self.median if self.limit_seconds and self.median else None

    @property
    def variation(self) -> float:
        """Return the coefficient of variation: standard deviation over mean."""
        return float(numpy.std(self.seconds)) / self.mean if self.mean else 0.0

    def percentile(self, percent: float) -> float:
        """Return a percentile of the iterations' times in seconds."""
        return float(numpy.percentile(self.seconds, percent))

    def algorithm_bandwidth(self, seconds: float) -> float:
        """Return the bytes per second by the size of the case."""
        return self.nbytes / seconds if seconds else 0.0

    def bus_bandwidth(self, seconds: float) -> float:
        """Return the bytes per second that a link must carry with a bandwidth-optimal algorithm."""
        return self.algorithm_bandwidth(seconds) * bus_factor(self.collective, self.ranks)


def trimmed_mean(seconds: Sequence[float] | numpy.ndarray) -> float:
    """Return the mean without the shortest and longest tenth; of three and more, without one each.

    Times of one call have several modes: ranks that share a processor had their turn or waited for
    it, caches were shared or not. A median is at one of two equal modes, and at the other one in
    the next run. The trimmed mean is between them, which is the cost for a program with many calls.
    """
    cut = max(len(seconds) // 10, int(len(seconds) > 2))
    return float(numpy.mean(numpy.sort(seconds)[cut:len(seconds) - cut]))


def merge_rounds(*rounds: Sequence[Result]) -> list[Result]:
    """Return the results of several rounds of one case, merged by candidate.

    Errors of any round count. The algorithm of an automatic choice is that of the last round.
    """
    by_candidate: dict[str, list[Result]] = {}
    for result in (r for part in rounds for r in part):
        by_candidate.setdefault(result.candidate, []).append(result)
    return [_merge_results(results) for results in by_candidate.values()]


def _merge_results(results: Sequence[Result]) -> Result:
    weights = [len(r.seconds) for r in results]
    means = numpy.average([r.rank_mean_seconds for r in results], axis=0,
                          weights=weights if any(weights) else None)
    return results[-1]._replace(
        first_seconds=results[0].first_seconds,
        seconds=tuple(t for r in results for t in r.seconds),
        rank_mean_seconds=tuple(map(float, means)),
        wrong=sum(r.wrong for r in results), changed=sum(r.changed for r in results))


def bus_factor(collective: str, ranks: int) -> float:
    """Return bus bandwidth over algorithm bandwidth, as defined by nccl-tests."""
    base = METHODS[collective]
    if base == "allreduce":
        return 2 * (ranks - 1) / ranks
    if base in ("allgather", "reduce_scatter", "alltoall", "gather", "scatter"):
        return (ranks - 1) / ranks
    return 1.0


def ratios(group: Sequence[Result]) -> dict[str, float]:
    """Return the speedup over native of each candidate of one case, by medians."""
    native = next((r.median for r in group if r.candidate == NATIVE), None)
    return {} if native is None else {
        r.candidate: native / r.median for r in group if r.median}


def mean_ratios(groups: Iterable[Sequence[Result]]) -> dict[str, tuple[float, int]]:
    """Return the geometric mean of each candidate's ratios, and the number of cases."""
    by_candidate: dict[str, list[float]] = {}
    for group in groups:
        for candidate, ratio in ratios(group).items():
            by_candidate.setdefault(candidate, []).append(ratio)
    return {candidate: (exp(sum(map(log, values)) / len(values)), len(values))
            for candidate, values in by_candidate.items()}
