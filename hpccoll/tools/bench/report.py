"""Tables, printed while the benchmark runs.

The default table has a line per size, fits the terminal and ends with a summary; ``--full`` has a
line per candidate with the columns of nccl-tests and more. Both use medians, like the plot. Comment
lines start with ``#``. A line appears as soon as a size is measured; colours on terminals only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from hpccoll.algorithms.outside import column_names, display_name, is_reference
from hpccoll.config import AUTO, NATIVE
from hpccoll.explain.columns import FittedTable, Header, wrap_comment
from hpccoll.machine.identity import library_name
from hpccoll.measure.results import Result, mean_ratios, ratios
from hpccoll.tools.bench import comparison_result, regret
from hpccoll.tools.bench.provenance import REMEDY
from hpccoll.units import rate_text, size_text, time_text

Group = Sequence[Result]
#: Lower ratios are shown as slower than native.
SLOWER = 0.95
#: Texts on buffers on GPUs.
ON_GPUS = ("buffers are on GPUs; a call ends when its stream is complete; native is the MPI "
           "library as hpccoll.Comm calls it")
#: Texts on buffers that are not ordinary, or unexpectedly are.
BUFFERS = {"registered": ["buffers are in registered memory (hpccoll.Comm.empty)"],
           "unregistered": ["some ranks have no registered memory and use ordinary buffers"],
           "device": [ON_GPUS], "device registered": [
               ON_GPUS, "they are in registered memory (hpccoll.Comm.empty(xp=cupy))"],
           "device unregistered": [ON_GPUS, "registration failed"]}
#: Texts on the processors of two ranks; for more ranks they are unknown.
CACHES = {True: ", which share a cache", False: ", which share no cache", None: ""}
#: Width of an algorithm's name in characters.
LONGEST = 21
#: Priorities: columns dropped first on narrow terminals, and columns that a collective may lack.
OTHER, NONE = 90, 99
#: Maximum number of hosts and variables listed in the header.
NAMED = 4


class BenchReport:
    """Receiver of a benchmark's results, on rank 0; a subclass uses what it needs."""

    def begin(self, environment: Mapping[str, Any]) -> None:
        """Handle the start of the benchmark."""

    def begin_collective(self, name: str, labels: Sequence[str]) -> None:
        """Handle the start of a collective; ``labels`` of candidates may appear."""

    def group(self, results: Sequence[Any], refused: Mapping[str, str]) -> None:
        """Handle a measured case; ``refused`` maps unsupported candidates to reasons."""

    def end(self, groups: Sequence[Sequence[Any]], interrupted: bool) -> None:
        """Handle the end of the measurement."""


class Lines:
    """Lines on a console, flushed immediately."""

    def __init__(self, console: Console):
        self.console = console

    def say(self, line: str, style: str = "") -> None:
        self.write(Text(f"# {line}".rstrip(), style or "dim"))

    def write(self, line: Text) -> None:
        """Write a line without wrapping, and flush it."""
        self.console.print(line, soft_wrap=True)
        self.console.file.flush()


class BenchTable(Lines, BenchReport):
    """Table of a benchmark, printed while it runs."""

    def __init__(self, console: Console):
        super().__init__(console)
        self.environment: Mapping[str, Any] = {}
        self.refused: dict[str, str] = {}

    def comment(self, text: str, style: str = "") -> None:
        self.say(text, style)

    def begin(self, environment: Mapping[str, Any]) -> None:
        self.environment = environment
        for line in header(environment):
            self.comment(line)

    def say_refused(self, refused: Mapping[str, str]) -> None:
        """Write why candidates are omitted, once for each reason."""
        for label, problem in refused.items():
            if self.refused.get(label) != problem:
                self.comment(f"{display_name(label)} is omitted: {problem}")
        self.refused.update(refused)

    def say_end(self, groups: Sequence[Group], interrupted: bool) -> None:
        """Write wrong results, an interrupt, and the summary."""
        failures(self, groups)
        if interrupted:
            self.say("interrupted: some cases were not measured", "bold red")
        for line in comparison_result.sentences(groups, self.environment):
            self.comment(line, "bold")


class SizeTable(BenchTable):
    """Report of ``--format table``: a line per size, and a summary in sentences.

    Args:
        console: output; its width is that of lines.
        named: labels of the user's candidates; each has a column.
    """

    def __init__(self, console: Console, named: Sequence[str] = ()):
        super().__init__(console)
        self.named = named
        self.labels: Sequence[str] = ()
        #: Named candidates of the collective with a column.
        self.shown: list[str] = []
        #: Columns of the collective; created with its first size.
        self.table: FittedTable | None = None

    def comment(self, text: str, style: str = "") -> None:
        """Write a comment, wrapped to the width; long words are not broken."""
        for line in wrap_comment(text, self.console.width):
            self.write(Text(line, style or "dim"))

    def begin_collective(self, name: str, labels: Sequence[str]) -> None:
        self.labels, self.refused, self.table = labels, {}, None

    def group(self, results: Group, refused: Mapping[str, str]) -> None:
        self.say_refused(refused)
        if not results:
            return
        if self.table is None:
            self.table = self.write_head(results[0])
        native = next((r for r in results if r.candidate == NATIVE), None)
        one = comparison_result.judged_candidate(results) or native
        pair = comparison_result.compare_native(results, one)
        kind = pair.kind if pair else ""
        text = Text(self.table.line(self.cells(results, native, one, pair),
                                    kind == comparison_result.FASTER))
        text.stylize({comparison_result.FASTER: "green", comparison_result.SLOWER: "red",
                      comparison_result.NOISY: "yellow"}.get(kind, ""))
        self.write(text)

    def write_head(self, first: Result) -> FittedTable:
        """Write the head of a collective: its constants, and the columns."""
        kind = [first.dtype or "", first.op or "", "in place" * first.in_place,
                "" if first.root is None else f"root {first.root}"]
        self.say("")
        self.say(", ".join([first.collective, *filter(None, kind)]) + "; medians", "bold")
        longest = min(max((len(display_name(label)) for label in self.labels), default=9), LONGEST)
        known = NATIVE in self.labels
        auto = AUTO in self.labels
        rest = len([label for label in self.labels if label not in (NATIVE, AUTO)]) > (not auto)
        self.shown = [label for label in self.named if label in self.labels and rest]
        columns = [Header("size", least=8),
                   Header(self.library, least=9, spare=0 if known else NONE),
                   Header("auto" if auto else "fastest", least=8),
                   Header("ratio", least=5, spare=0 if known else NONE,
                          meaning=f"time of {self.library} divided by that time: above 1 it is "
                                  "faster, and marked * if that exceeds the noise"),
                   Header("GB/s", least=5, spare=0 if first.nbytes else NONE,
                          meaning=self.bandwidth),
                   Header("from-to", least=9, spare=OTHER + 1 if known else NONE,
                          meaning="the ratio in the middle three of five parts of the run; a * "
                                  "needs both above 1"),
                   Header("ran" if auto else "which", right=False,
                          least=LONGEST if auto else max(longest, 9)),
                   *(Header(name, least=8, spare=0 if is_reference(label) else number)
                     for number, (name, label) in enumerate(
                         zip(column_names(self.shown), self.shown), 1)),
                   Header("best other", right=False, least=max(longest, 10),
                          spare=OTHER if rest else NONE),
                   Header("ratio", least=5, spare=OTHER if rest and known else NONE),
                   Header("limit", least=5, spare=OTHER + 2 if first.limit_seconds else NONE,
                          meaning=self.limit)]
        kept = [column for column in columns if column.spare != NONE]
        table = FittedTable(kept, width=self.console.width)
        self.columns = [n for n, column in enumerate(columns) if column.spare != NONE]
        for line in dict.fromkeys(table.legend()):
            self.comment(line)
        if any(name in column_names(self.shown) for name in table.hidden):
            self.comment(table.left_out())
        self.write(Text(table.head, "bold"))
        return table

    @property
    def library(self) -> str:
        """Return the MPI library's name."""
        return comparison_result.library_of(self.environment)

    @property
    def limit(self) -> str:
        """Return the heading of the limit's column."""
        rate = rate_text(self.environment.get("copy_rate") or 0)
        return (f"share of the copy bandwidth of this node ({rate}, measured now); 1 is as fast as "
                "memory")

    @property
    def bandwidth(self) -> str:
        """Return the meaning of the column of the bus bandwidth."""
        rate = self.environment.get("copy_rate") or 0
        return "bus bandwidth, as of nccl-tests" + (
            f"; copies on all ranks read and write {rate_text(rate)}" if rate else "")

    def cells(self, results: Group, native: Result | None, one: Result | None,
              pair: comparison_result.Comparison | None) -> list[str]:
        """Return the cells of one size: of the judged candidate, and of the best other one."""
        ran = {one.candidate, one.serves} if one else set()
        rest = [r for r in results
                if r.candidate not in ran and r.candidate != NATIVE and not r.failures]
        second = min(rest, key=lambda r: r.median, default=None)
        beside = comparison_result.compare_native(results, second)
        nbytes = results[0].nbytes
        cells = [size_text(nbytes) if nbytes else "-",
                 "-" if native is None else time_text(native.median, 3),
                 "-" if one is None else time_text(one.median, 3),
                 f"{pair.ratio:.2f}" if pair else "-",
                 "-" if one is None else _gigabytes(one.bus_bandwidth(one.median)),
                 f"{_times(pair.spread.low)}-{_times(pair.spread.high)}" if pair else "-",
                 "-" if one is None else display_name(
                     one.serves if one.candidate == AUTO else one.candidate),
                 *(_time_of(results, label) for label in self.shown),
                 display_name(second.candidate) if second else "-",
                 f"{beside.ratio:.2f}" if beside else "-",
                 f"{one.limit:.2f}" if one is not None and one.limit is not None else "-"]
        return [cells[n] for n in self.columns]

    def end(self, groups: Sequence[Group], interrupted: bool) -> None:
        self.say("")
        self.say_end(groups, interrupted)


class TableReport(BenchTable):
    """Report of ``--format table --full``: a line per candidate, all columns.

    Args:
        tolerance: permitted slowdown of ``auto`` against the best candidate, relative to its time.
    """

    def __init__(self, console: Console, tolerance: float = regret.TOLERANCE):
        super().__init__(console)
        self.width, self.tolerance = 0, tolerance

    def begin(self, environment: Mapping[str, Any]) -> None:
        super().begin(environment)
        self.say("time is the median over iterations of the slowest rank; times in us, bandwidths "
                 "in GB/s")
        self.say("ratio is native / candidate: above 1, the candidate is faster than the host MPI")
        if environment.get("copy_rate"):
            self.say("limit is the share of the memory limit: concurrent copies on all ranks read "
                     f"and write {rate_text(environment['copy_rate'])}")
        self.say("(name) at the end of a line: the algorithm that auto ran")

    def begin_collective(self, name: str, labels: Sequence[str]) -> None:
        self.width = max(9, *(len(display_name(label)) for label in labels))
        self.refused = {}
        self.say("")
        self.say(name, "bold")
        self.say(f"{'size':>9} {'type':>10} {'redop':>6} {'root':>5} | "
                 f"{'candidate':{self.width}} {'time':>10} {'ratio':>7} {'limit':>6} "
                 f"{'algbw':>8} {'busbw':>8} {'mean':>10} {'p99':>10} "
                 f"{'min':>10} {'max':>10} {'cv%':>6} {'iters':>6} {'#wrong':>7}")

    def group(self, results: Group, refused: Mapping[str, str]) -> None:
        self.say_refused(refused)
        faster = ratios(results)
        for number, result in enumerate(results):
            self.write(self.line(result, faster.get(result.candidate), number == 0))

    def line(self, result: Result, ratio: float | None, first: bool) -> Text:
        """Return one candidate's line; only the first of a group names the case."""
        root = "-" if result.root is None else result.root
        where = (f"{size_text(result.nbytes):>11} {result.dtype or '-':>10} "
                 f"{result.op or '-':>6} {root:>5}" if first else " " * 35)
        name = display_name(result.candidate)
        line = Text(f"{where} | {name:{self.width}} {_us(result.median)} ")
        style = "" if ratio is None else "green" if ratio > 1 else "red" if ratio < SLOWER else ""
        line.append(f"{'-' if ratio is None else f'{ratio:.2f}':>7}", style)
        line.append(f" {'-' if result.limit is None else f'{result.limit:.2f}':>6} ")
        line.append(f"{_rate(result.algorithm_bandwidth(result.median))} "
                    f"{_rate(result.bus_bandwidth(result.median))} ")
        line.append(f"{_us(result.mean)} {_us(result.percentile(99))}")
        line.append(f" {_us(min(result.seconds))} {_us(max(result.seconds))} "
                    f"{100 * result.variation:6.1f} {len(result.seconds):6}")
        line.append(f" {result.failures:7}", "bold red" if result.failures else "")
        if result.serves != result.candidate:
            line.append(f"  ({display_name(result.serves)})", "dim")
        return line

    def end(self, groups: Sequence[Group], interrupted: bool) -> None:
        self.say("")
        by_collective: dict[str, list[Group]] = {}
        for group in groups:
            by_collective.setdefault(group[0].collective, []).append(group)
        for name, measured in by_collective.items():
            means = [f"{display_name(candidate)} {mean:.2f} ({cases})"
                     for candidate, (mean, cases) in mean_ratios(measured).items()
                     if candidate != NATIVE]
            if means:
                self.say(f"geometric mean of the ratio (cases), {name}: {', '.join(means)}")
        for line in regret.lines(groups, self.tolerance):
            self.say(line)
        self.say_end(groups, interrupted)


def _gigabytes(bytes_per_second: float) -> str:
    """Return GB/s in five characters.

    >>> _gigabytes(3.14159e9), _gigabytes(123.4e9), _gigabytes(25.8e6)
    ('3.14', '123', '0.026')
    """
    rate = bytes_per_second / 1e9
    return f"{rate:.0f}" if rate >= 100 else f"{rate:.3f}"[:5] if rate < 1 else f"{rate:.3g}"


def failures(report: Lines, groups: Sequence[Group]) -> None:
    """Write the number of wrong elements, by case and candidate."""
    wrong = [r for group in groups for r in group if r.failures]
    total = sum(r.failures for r in wrong)
    report.say(f"wrong elements: {total}" + " (every result was checked)" * (not total),
               "bold red" if total else "")
    for r in wrong:
        report.say(f"WRONG: {r.collective} {r.candidate} ({r.serves}), {size_text(r.nbytes)}: "
                   f"{r.wrong} wrong elements of output, {r.changed} changed ones of input",
                   "bold red")


def header(environment: Mapping[str, Any]) -> list[str]:
    """Return header lines about machine, software and job."""
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
        f"{environment['cores']} cores, {environment['cpu']}"
        + CACHES[environment.get("shared_cache")],
        environment["command"],
    ]
    if environment.get("hides"):
        lines.append(f"the source folder hides {environment['hides']}, which has compiled parts: "
                     f"{REMEDY}")
    lines += BUFFERS.get(environment.get("buffers", ""), [])
    lines += [f"calls: {environment['calls']}"] if environment.get("calls") else []
    if environment.get("peers"):
        lines.append("peers: " + ", ".join(
            f"{name} of PyTorch {version}" for name, version in environment["peers"].items()))
    lines += [f"{name}={value}" for name, value in environment["variables"].items()]
    if ranks == 1:
        lines.append("1 rank sends no messages; use mpiexec -n 4 python -m "
                     + environment["command"])
    return lines


def _time_of(results: Group, label: str) -> str:
    """Return the time of one candidate at one size."""
    one = next((r for r in results if r.candidate == label), None)
    return "-" if one is None else "wrong" if one.failures else time_text(one.median, 3)


def _us(seconds: float) -> str:
    number = seconds * 1e6
    return f"{number:10.{2 if number < 1000 else 1 if number < 100_000 else 0}f}"


def _times(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio < 10 else f"{ratio:.0f}"


def _rate(rate: float) -> str:
    """Return bytes per second in GB/s; a dash if that is 0 to three digits."""
    return f"{rate / 1e9:8.3f}" if rate >= 5e5 else f"{'-':>8}"
