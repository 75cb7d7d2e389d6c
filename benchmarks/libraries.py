"""The benchmark under several MPI libraries in turn, and one table of ratios.

An environment is a virtual environment that holds an MPI library, its ``mpiexec`` and hpccoll's
requirements. Each runs ``python -m hpccoll bench`` with the same options, once for every number of
ranks; what it leaves, and what all records together give:

    ENVIRONMENT-RANKS.json, .png   record and picture of one run
    ratios.md                      a table per collective and number of ranks
    ratios.png                     the same as a picture

Starts no MPI itself, so that the launchers it starts are not mistaken for parts of a job.
"""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import exp, log
from pathlib import Path
from typing import Any, NamedTuple

from hpccoll.config import NATIVE
from hpccoll.errors import ArgumentError, HpccollError
from hpccoll.explain.plotting import FEW, SOFT, dress, new_figure, ratio_axis, save, size_axis
from hpccoll.tools.bench import records
from hpccoll.tools.bench.records import Record
from hpccoll.units import count_text

#: What Open MPI needs where there are more ranks than cores; the user's own words win.
CROWDED = {"PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
           "OMPI_MCA_mpi_yield_when_idle": "1"}
#: Seconds that a launcher has to end its ranks.
PATIENCE = 10
#: Inches of a panel.
WIDTH, HEIGHT = 8.0, 3.6

#: Sizes that are named below a panel, at most.
LABELS = 9


class LibraryRun(NamedTuple):
    """One environment with one number of ranks, and the places of its record and picture."""

    environment: Path
    ranks: int
    record: Path
    picture: Path


def plan(environments: Sequence[str], ranks: Sequence[int], folder: Path) -> list[LibraryRun]:
    """List the runs.

    Raises:
        ArgumentError: a directory without a Python or an mpiexec, or two of one name.
    """
    runs = []
    for name in environments:
        environment = Path(name).absolute()
        for program in ("python", "mpiexec"):
            if not os.access(environment / "bin" / program, os.X_OK):
                raise ArgumentError("--environment", f"{name} has no bin/{program}",
                                    "give virtual environments with an MPI library in each")
        for count in ranks:
            stem = f"{environment.name}-{count}"
            runs.append(LibraryRun(environment, count, folder / f"{stem}.json",
                                    folder / f"{stem}.png"))
    if len({run.record for run in runs}) < len(runs):
        raise ArgumentError("--environment", "two environments have one name")
    return runs


def command(run: LibraryRun, words: Sequence[str]) -> list[str]:
    """The command of a run; ``words`` are the options of the benchmark."""
    bin = run.environment / "bin"
    return [str(bin / "mpiexec"), "-n", str(run.ranks), str(bin / "python"), "-m", "hpccoll",
            "bench", *words, "--json", str(run.record), "--plot", str(run.picture)]


def measure(runs: Sequence[LibraryRun], words: Sequence[str],
            say: Callable[[str], None]) -> tuple[list[Record], list[str]]:
    """Run everything in turn; return the records, and what went wrong."""
    measured, problems = [], []
    for run in runs:
        words_of_run = command(run, words)
        say(" ".join(words_of_run))
        run.record.unlink(missing_ok=True)
        status = launch(words_of_run, run)
        if status:
            problems.append(f"{run.environment.name}, {run.ranks} ranks: exit status {status}")
        try:
            measured.append(records.read(str(run.record)))
        except HpccollError as error:
            problems.append(str(error))
    return measured, problems


def launch(words: Sequence[str], run: LibraryRun) -> int:
    """Start a job, wait for its end, and never leave it behind; return its status."""
    path = f"{run.environment / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"
    oversubscribed = CROWDED if run.ranks > (os.cpu_count() or 1) else {}
    process = subprocess.Popen(words, stdin=subprocess.DEVNULL,
                               env={**oversubscribed, **os.environ, "PATH": path})
    try:
        return process.wait()
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


# -- what the records say        --------------------------------------------------------------
class RatioSheet(NamedTuple):
    """Ratios of one collective and number of ranks: bytes -> (library, candidate) -> ratio.

    A library is called as :func:`libraries` does.
    """

    collective: str
    ranks: int
    columns: list[tuple[str, str]]
    rows: dict[int, dict[tuple[str, str], float]]


def libraries(measured: Sequence[Record]) -> list[str]:
    """The library of each record, with its environment where several environments have it."""
    named = [(record.library, Path(record.path).stem.rpartition("-")[0]) for record in measured]
    times = Counter(library for library, _ in set(named))
    return [f"{library} ({name})" if times[library] > 1 else library for library, name in named]


def sheets(measured: Sequence[Record]) -> list[RatioSheet]:
    """Sort the ratios of all records."""
    by_case: dict[tuple[str, int], RatioSheet] = {}
    for record, library in zip(measured, libraries(measured)):
        for key, entry in record.entries.items():
            if key.candidate == NATIVE or entry.ratio is None:
                continue
            sheet = by_case.setdefault((key.collective, key.ranks),
                                    RatioSheet(key.collective, key.ranks, [], {}))
            column = library, key.candidate
            if column not in sheet.columns:
                sheet.columns.append(column)
            sheet.rows.setdefault(key.nbytes, {})[column] = entry.ratio
    return list(by_case.values())


def markdown(measured: Sequence[Record], words: Sequence[str]) -> Iterator[str]:
    """The lines of ``ratios.md``."""
    yield "# Ratios: native / candidate of the medians"
    yield ""
    yield ("Above 1, the candidate is faster than the MPI library of its column. Measured with "
           f"`hpccoll bench {' '.join(words)}`.")
    yield ""
    for record, library in zip(measured, libraries(measured)):
        about = record.environment
        yield (f"* {library}, {count_text(about['ranks'], 'rank')}: {about.get('cpu')}, "
               f"{about.get('cores')} cores, mpi4py {about.get('mpi4py')}, NumPy "
               f"{about.get('numpy')}, {about.get('time')}, [record]({Path(record.path).name})")
    for sheet in sheets(measured):
        yield ""
        yield f"## {sheet.collective}, {count_text(sheet.ranks, 'rank')}"
        yield ""
        yield "| bytes | " + " | ".join(f"{name}: {label}" for name, label in sheet.columns) + " |"
        yield "|---:" * (len(sheet.columns) + 1) + "|"
        for nbytes, row in sorted(sheet.rows.items()):
            yield f"| {nbytes} | " + " | ".join(
                f"{row[c]:.2f}" if c in row else "" for c in sheet.columns) + " |"
        yield "| geometric mean | " + " | ".join(
            f"{_mean(row[c] for row in sheet.rows.values() if c in row):.2f}"
            for c in sheet.columns) + " |"


def draw(measured: Sequence[Record], path: Path) -> None:
    """Draw the ratios over size: a panel per collective and ranks, a line per column."""
    drawn = [s for s in sheets(measured) if any(s.rows)]
    if not drawn:
        return
    figure = new_figure(WIDTH, HEIGHT * len(drawn))
    panels = figure.subplots(len(drawn), 1, squeeze=False).flat
    colours = {name: FEW[n % len(FEW)] for n, name in enumerate(dict.fromkeys(libraries(measured)))}
    for sheet, panel in zip(drawn, panels):
        _panel(panel, sheet, colours)
    figure.tight_layout()
    # The legends stand beside the panels.
    save(figure, path, dpi=130, bbox_inches="tight")


def _panel(panel: Any, sheet: RatioSheet, colours: Mapping[str, str]) -> None:
    """Colours are libraries, dashes candidates."""
    labels = list(dict.fromkeys(label for _, label in sheet.columns))
    for column in sheet.columns:
        line = sorted((n, row[column]) for n, row in sheet.rows.items() if column in row and n)
        if line:
            dashes = ("-", "--", ":", "-.")[labels.index(column[1]) % 4]
            panel.plot(*zip(*line), label=": ".join(column), color=colours[column[0]],
                       linestyle=dashes, linewidth=1.7, marker="o", markersize=3)
    panel.axhline(1, color=SOFT, linewidth=1.4, zorder=1)
    dress(panel, f"{sheet.collective}, {count_text(sheet.ranks, 'rank')}: native time / time")
    values = [row[c] for n, row in sheet.rows.items() if n for c in row] or [1.0]
    ratio_axis(panel, min(0.8, min(values) / 1.1), max(1.25, max(values) * 1.1))
    sizes = sorted(filter(None, sheet.rows))
    if sizes:
        size_axis(panel, sizes)
    panel.legend(fontsize=9, frameon=False, loc="upper left", bbox_to_anchor=(1.01, 1.03))


def _mean(values: Iterator[float]) -> float:
    known = list(values)
    return exp(sum(map(log, known)) / len(known))
