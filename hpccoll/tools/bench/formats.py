"""Output for programs: OSU's text form, CSV, and the JSON record with every single time."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, TextIO

import numpy

from hpccoll import __version__
from hpccoll.measure.cases import mpi_type
from hpccoll.measure.results import Result, ratios
from hpccoll.tools.bench import regret
from hpccoll.tools.bench.records import write
from hpccoll.tools.bench.report import BenchReport, Group

PERCENTILES = (50, 90, 99)


class Osu(BenchReport):
    """The text form of OSU's latency tests; ReFrame's stock OSU checks read it.

    Candidates are printed one after the other, so their sizes are kept until the end.

    Args:
        full: add minimum, maximum and iterations (``-f``).
        validation: add the result of the check (``-c``); results are always checked.
        tail: add percentiles (``-z``).
    """

    def __init__(self, file: TextIO, full: bool, validation: bool, tail: bool):
        self.file, self.full, self.validation, self.tail = file, full, validation, tail
        self.waiting: list[Group] = []
        self.several = False
        self.started = ""

    def begin_collective(self, name: str, labels: Sequence[str]) -> None:
        self.flush()
        self.several, self.started = len(labels) > 1, ""

    def group(self, results: Group, refused: Mapping[str, str]) -> None:
        if self.several:
            self.waiting.append(results)
        elif results:
            self.write(results[0])

    def end(self, groups: Sequence[Group], interrupted: bool) -> None:
        self.flush()

    def flush(self) -> None:
        """Write the kept lines, candidate by candidate."""
        labels = dict.fromkeys(r.candidate for group in self.waiting for r in group)
        for label in labels:
            for result in (r for group in self.waiting for r in group if r.candidate == label):
                self.write(result)
        self.waiting = []

    def write(self, result: Result) -> None:
        """Write one line, after a heading for a new candidate."""
        sized = result.count > 0
        if self.started != result.candidate:
            self.started = result.candidate
            self.head(result, sized)
        cells = [f"{result.message:<10}"] if sized else []
        means = result.rank_mean_seconds
        cells += [_time(float(numpy.mean(means)))]
        if self.full:
            cells += [_time(min(means)), _time(max(means)), f"{len(result.seconds):>12}"]
        if self.validation:
            cells += [f"{'Fail' if result.failures else 'Pass':>20}"]
        if self.tail:
            cells += [_time(result.percentile(p)) for p in PERCENTILES]
        print("".join(cells), file=self.file, flush=True)

    def head(self, result: Result, sized: bool) -> None:
        """Write the comment lines of one candidate."""
        title = result.collective.replace("_", " ").capitalize()
        print(f"# hpccoll MPI {title} Latency Test v{__version__}, algorithm {result.candidate}",
              file=self.file)
        if sized:
            name = mpi_type(numpy.dtype(result.dtype)).Get_name()
            print(f"# Datatype: {name}.", file=self.file)
        cells = [f"{'# Size' if sized else '#':<10}", f"{'Avg Latency(us)':>20}"]
        if self.full:
            cells += [f"{'Min Latency(us)':>20}", f"{'Max Latency(us)':>20}",
                      f"{'Iterations':>12}"]
        if self.validation:
            cells += [f"{'Validation':>20}"]
        if self.tail:
            cells += [f"{f'P{p} Tail Lat(us)':>20}" for p in PERCENTILES]
        print("".join(cells), file=self.file, flush=True)


class Csv(BenchReport):
    """One line per candidate and case; the first line names the columns."""

    def __init__(self, file: TextIO):
        self.file = file
        self.writer: csv.DictWriter | None = None

    def group(self, results: Group, refused: Mapping[str, str]) -> None:
        for entry in entries(results):
            row = {**entry, **entry["statistics"]}
            for series in ("statistics", "seconds", "rank_mean_seconds"):
                del row[series]
            if self.writer is None:
                self.writer = csv.DictWriter(self.file, list(row), lineterminator="\n")
                self.writer.writeheader()
            self.writer.writerow(row)
        self.file.flush()


class Json(BenchReport):
    """JSON record: environment, settings and raw series, so that all statistics can be recomputed.

    Args:
        tolerance: permitted slowdown of ``auto`` against the best candidate, relative to its time.
        keep: number of evenly spaced times of each series; 0 for all. Statistics use all times.
    """

    def __init__(self, opened: Callable[[], AbstractContextManager[TextIO]],
                 settings: Mapping[str, Any], tolerance: float = regret.TOLERANCE, keep: int = 0):
        self.opened, self.settings, self.tolerance = opened, settings, tolerance
        self.keep = keep
        self.environment: Mapping[str, Any] = {}

    def begin(self, environment: Mapping[str, Any]) -> None:
        self.environment = environment

    def end(self, groups: Sequence[Group], interrupted: bool) -> None:
        with self.opened() as file:
            write(file, self.environment, settings=self.settings,
                  synchronisation="barrier before every iteration; time of the slowest rank",
                  complete=not interrupted, auto=regret.summary(groups, self.tolerance),
                  results=[_keep_times(entry, self.keep) for group in groups
                           for entry in entries(group)])


def entries(group: Group) -> list[dict[str, Any]]:
    """Return the results of a case as plain data."""
    faster = ratios(group)
    return [{**result._asdict(), "statistics": statistics(result, faster.get(result.candidate))}
            for result in group]


def _keep_times(entry: dict[str, Any], keep: int) -> dict[str, Any]:
    count = len(entry["seconds"])
    if not 0 < keep < count:
        return entry
    return {**entry, "seconds": [entry["seconds"][n * count // keep] for n in range(keep)]}


def statistics(result: Result, ratio: float | None) -> dict[str, Any]:
    """Return the statistics of a series; comparisons use ``ratio`` and the median."""
    return {
        "iterations": len(result.seconds), "min_seconds": min(result.seconds),
        "mean_seconds": result.mean, "trimmed_seconds": result.trimmed_seconds,
        **{f"p{p}_seconds": result.percentile(p) for p in PERCENTILES},
        "max_seconds": max(result.seconds), "cv": result.variation,
        "algbw_bytes_per_second": result.algorithm_bandwidth(result.mean),
        "busbw_bytes_per_second": result.bus_bandwidth(result.mean), "ratio": ratio,
        "limit": result.limit,
    }


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:20.2f}"
