"""What people and programs read of overlap: a line per candidate, and a record in JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from rich.text import Text

from hpccoll.tools.bench.overlap import Overlap, OverlapOutcome
from hpccoll.tools.bench.records import SCHEMA
from hpccoll.tools.bench.report import Lines, header
from hpccoll.tools.bench.session import Options


class OverlapTable(Lines):
    """The table, grouped by size; comment lines start with ``#``."""

    def begin(self, environment: Mapping[str, Any]) -> None:
        """Write the header."""
        for line in header(environment):
            self.say(line)
        self.say("nonblocking collectives: pure is begin and wait; overlapped is begin, compute, "
                 "wait; times are medians in us")
        self.say("overlap is 100 % - (overlapped - compute) / pure: the part of the collective "
                 "that computation hides")

    def collective(self, name: str) -> None:
        """Write the head of the columns."""
        self.say("")
        self.say(f"i{name}", "bold")
        self.say(f"{'size':>11} {'type':>10} {'redop':>6} {'root':>5} | {'candidate':20} "
                 f"{'pure(us)':>12} {'compute(us)':>12} {'overlapped(us)':>14} {'overlap%':>9} "
                 f"{'#wrong':>7}")

    def group(self, results: Sequence[Overlap], refused: Mapping[str, str]) -> None:
        """Write the lines of one case."""
        for label, problem in refused.items():
            self.say(f"{label} is left out: {problem}")
        for number, r in enumerate(results):
            pure, compute, overlapped = (1e6 * seconds for seconds in r.medians)
            root = "-" if r.root is None else r.root
            where = (f"{r.nbytes:>13} {r.dtype or '-':>10} {r.op or '-':>6} {root:>5}"
                     if number == 0 else " " * 37)
            line = Text(f"{where} | {r.candidate:20} {pure:12.2f} {compute:12.2f} "
                        f"{overlapped:14.2f} {r.percent:9.1f}")
            line.append(f" {r.failures:7}", "bold red" if r.failures else "")
            self.write(line)

    def end(self, failures: int, interrupted: bool) -> None:
        """Write the footer."""
        self.say("")
        self.say(f"wrong elements: {failures}", "bold red" if failures else "")
        if interrupted:
            self.say("interrupted: not everything was measured", "bold red")


def write_record(file: TextIO, options: Options, outcome: OverlapOutcome) -> None:
    """Write environment, settings and every single time, as JSON."""
    entries = [{**r._asdict(), "statistics": {
        **dict(zip(("pure_seconds", "compute_seconds", "overlapped_seconds"), r.medians)),
        "overlap_percent": r.percent}} for group in outcome.groups for r in group]
    json.dump({"schema": SCHEMA, "environment": outcome.environment,
               "settings": options.as_data(), "complete": not outcome.interrupted,
               "results": [], "overlap": entries}, file, indent=1)
    file.write("\n")
