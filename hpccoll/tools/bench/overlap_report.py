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
        self.say("nonblocking collectives: pure is begin and wait; alone is the work with nothing "
                 "under way; total is begin, work, wait; times are medians in us")
        self.say("overlap is 100 % - (total - work meanwhile) / pure: the part of the collective "
                 "that work hides; gain is (alone + pure - total) / pure: what it is worth")
        self.say("cpu is processor time of a rank beyond that of the work alone, waits included")

    def collective(self, name: str) -> None:
        """Write the head of the columns."""
        self.say("")
        self.say(f"i{name}", "bold")
        self.say(f"{'size':>11} {'type':>10} {'redop':>6} {'root':>5} | {'candidate':20} "
                 f"{'work':6} {'pure(us)':>11} {'alone(us)':>11} {'total(us)':>11} "
                 f"{'overlap%':>9} {'gain%':>7} {'cpu(us)':>11} {'#wrong':>7}")

    def group(self, results: Sequence[Overlap], refused: Mapping[str, str]) -> None:
        """Write the lines of one case."""
        for label, problem in refused.items():
            self.say(f"{label} is left out: {problem}")
        for number, r in enumerate(results):
            times = {name: 1e6 * seconds for name, seconds in r.medians.items()}
            root = "-" if r.root is None else r.root
            where = (f"{r.nbytes:>13} {r.dtype or '-':>10} {r.op or '-':>6} {root:>5}"
                     if number == 0 else " " * 37)
            line = Text(f"{where} | {r.candidate:20} {r.work:6} {times['pure']:11.2f} "
                        f"{times['alone']:11.2f} {times['overlapped']:11.2f} {r.percent:9.1f} "
                        f"{r.gain:7.1f} {times['processor']:11.2f}")
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
        **{f"{name}_seconds": seconds for name, seconds in r.medians.items()},
        "overlap_percent": r.percent, "gain_percent": r.gain}}
        for group in outcome.groups for r in group]
    json.dump({"schema": SCHEMA, "environment": outcome.environment,
               "settings": options.as_data(), "complete": not outcome.interrupted,
               "results": [], "overlap": entries}, file, indent=1)
    file.write("\n")
