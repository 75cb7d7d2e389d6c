"""The table: what people read while the benchmark runs.

Columns are those of nccl-tests, a line per candidate, grouped by size; comment lines start
with ``#``. Lines appear as soon as a size is measured. Colours show on terminals only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from rich.console import Console
from rich.text import Text

from hpccoll.config import NATIVE
from hpccoll.machine.identity import library_name
from hpccoll.measure.results import Result, mean_ratios, ratios
from hpccoll.tools.bench import regret

Group = Sequence[Result]
#: Ratios below are shown as slower than native: the host MPI may not win by more than this.
SLOWER = 0.95
#: What is said of buffers that are not ordinary, or should not have been.
BUFFERS = {"registered": ["buffers are in registered memory (hpccoll.Comm.empty)"],
           "unregistered": ["not every rank has registered memory: where it has not, buffers "
                            "are ordinary"]}
#: Hosts and variables named one by one in the header.
NAMED = 4


class BenchReport(Protocol):
    """What follows a benchmark, on rank 0."""

    def begin(self, environment: Mapping[str, Any]) -> None:
        """The benchmark begins."""

    def collective(self, name: str, labels: Sequence[str]) -> None:
        """A collective begins; ``labels`` of candidates may appear."""

    def group(self, results: Group, refused: Mapping[str, str]) -> None:
        """A case was measured; ``refused`` candidates could not serve, for a reason."""

    def end(self, groups: Sequence[Group], interrupted: bool) -> None:
        """Everything that will be measured was measured."""


class Lines:
    """Lines on a console, each shown at once."""

    def __init__(self, console: Console):
        self.console = console

    def say(self, line: str, style: str = "") -> None:
        """Write a comment line."""
        self.write(Text(f"# {line}".rstrip(), style or "dim"))

    def write(self, line: Text) -> None:
        """Write a line as it is, however narrow the console; show it at once."""
        self.console.print(line, soft_wrap=True)
        self.console.file.flush()


class TableReport(Lines):
    """The report of ``--format table``.

    Args:
        console: where to write.
        full: show minimum, maximum, variation and number of iterations too.
        tolerance: how much slower than the best candidate ``auto`` may be, as a part of its time.
    """

    def __init__(self, console: Console, full: bool = False,
                 tolerance: float = regret.TOLERANCE):
        super().__init__(console)
        self.full, self.width, self.tolerance = full, 0, tolerance
        self.refused: dict[str, str] = {}

    def begin(self, environment: Mapping[str, Any]) -> None:
        """Write the header."""
        for line in header(environment):
            self.say(line)
        self.say("time is the mean over iterations, each as long as its slowest rank's; "
                 "times in us, bandwidths in GB/s")
        self.say("ratio is native / candidate of the medians (p50): above 1, the candidate is "
                 "faster than the host MPI")
        if environment.get("copy_rate"):
            self.say("limit is the part reached of what memory allows: copies on all ranks at "
                     f"once read and write {environment['copy_rate'] / 1e9:.1f} GB/s")
        if environment.get("peers"):
            self.say("peers: " + ", ".join(
                f"{name} of PyTorch {version}" for name, version in environment["peers"].items()))

    def collective(self, name: str, labels: Sequence[str]) -> None:
        """Write the head of the columns."""
        self.width = max(9, *map(len, labels))
        self.refused = {}
        self.say("")
        self.say(name, "bold")
        self.say(f"{'size':>11} {'count':>11} {'type':>10} {'redop':>6} {'root':>5} | "
                 f"{'candidate':{self.width}} {'time(us)':>10} {'algbw':>8} {'busbw':>8} "
                 f"{'ratio':>7} {'limit':>6} {'#wrong':>7} {'p50':>10} {'p99':>10}"
                 + (f" {'min':>10} {'max':>10} {'cv%':>6} {'iters':>6}" if self.full else ""))

    def group(self, results: Group, refused: Mapping[str, str]) -> None:
        """Write the lines of one case."""
        for label, problem in refused.items():
            if self.refused.get(label) != problem:
                self.say(f"{label} is left out: {problem}")
        self.refused.update(refused)
        faster = ratios(results)
        for number, result in enumerate(results):
            self.write(self.line(result, faster.get(result.candidate), number == 0))

    def line(self, result: Result, ratio: float | None, first: bool) -> Text:
        """One candidate's line; only the first of a group names the case."""
        root = "-" if result.root is None else result.root
        where = (f"{result.nbytes:>13} {result.count:>11} {result.dtype or '-':>10} "
                 f"{result.op or '-':>6} {root:>5}" if first else " " * 49)
        line = Text(f"{where} | {result.candidate:{self.width}} ")
        line.append(f"{_us(result.mean)} {result.algorithm_bandwidth(result.mean) / 1e9:8.3f} "
                    f"{result.bus_bandwidth(result.mean) / 1e9:8.3f} ")
        style = "" if ratio is None else "green" if ratio > 1 else "red" if ratio < SLOWER else ""
        line.append(f"{'-' if ratio is None else f'{ratio:.2f}':>7}", style)
        line.append(f" {'-' if result.limit is None else f'{result.limit:.2f}':>6}")
        line.append(f" {result.failures:7}", "bold red" if result.failures else "")
        line.append(f" {_us(result.median)} {_us(result.percentile(99))}")
        if self.full:
            line.append(f" {_us(min(result.seconds))} {_us(max(result.seconds))} "
                        f"{100 * result.variation:6.1f} {len(result.seconds):6}")
        if result.serves != result.candidate:
            line.append(f"  ({result.serves})", "dim")
        return line

    def end(self, groups: Sequence[Group], interrupted: bool) -> None:
        """Write the footer."""
        self.say("")
        by_collective: dict[str, list[Group]] = {}
        for group in groups:
            by_collective.setdefault(group[0].collective, []).append(group)
        for name, measured in by_collective.items():
            means = [f"{candidate} {mean:.2f} ({cases})"
                     for candidate, (mean, cases) in mean_ratios(measured).items()
                     if candidate != NATIVE]
            if means:
                self.say(f"geometric mean of the ratio (cases), {name}: {', '.join(means)}")
        for line in regret.lines(groups, self.tolerance):
            self.say(line)
        failures = [r for group in groups for r in group if r.failures]
        total = sum(r.failures for r in failures)
        self.say(f"wrong elements: {total}", "bold red" if total else "")
        for r in failures:
            self.say(f"WRONG: {r.collective} {r.candidate} ({r.serves}), {r.nbytes} bytes: "
                     f"{r.wrong} wrong elements of output, {r.changed} changed ones of input",
                     "bold red")
        if interrupted:
            self.say("interrupted: not everything was measured", "bold red")


def header(environment: Mapping[str, Any]) -> list[str]:
    """A few lines about where the benchmark runs."""
    ranks, hosts = environment["ranks"], environment["hosts"]
    named = [f"{name} x{count}" if count > 1 else name for name, count in hosts.items()]
    more = f" and {len(named) - NAMED} more" if len(named) > NAMED else ""
    layout = f", topology {environment['topology']}" if environment["topology"] else ""
    lines = [
        f"hpccoll {environment['hpccoll']}, {library_name(environment['mpi'])}, "
        f"mpi4py {environment['mpi4py']}, NumPy {environment['numpy']}, "
        f"Python {environment['python']}, thread level {environment['thread_level']}"
        + (f", {environment['executor']} executor" if environment.get("executor") else ""),
        f"{ranks} rank{'s' * (ranks != 1)} on {', '.join(named[:NAMED])}{more}{layout}; "
        f"{environment['cores']} cores, {environment['cpu']}",
        environment["command"],
    ]
    lines += BUFFERS.get(environment.get("buffers", ""), [])
    lines += [f"calls: {environment['calls']}"] if environment.get("calls") else []
    lines += [f"{name}={value}" for name, value in environment["variables"].items()]
    if ranks == 1:
        lines.append("1 rank sends nothing; measure more with: mpiexec -n 4 python -m "
                     + environment["command"])
    return lines


def _us(seconds: float) -> str:
    number = seconds * 1e6
    return f"{number:10.{2 if number < 1000 else 1 if number < 100_000 else 0}f}"
