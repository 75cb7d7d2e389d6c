"""Timeline files in the Trace Event Format of Chrome, for https://ui.perfetto.dev."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from typing import Any

from hpccoll.atomic_file import open_replacement


def save_events(path: str | os.PathLike[str], said: Mapping[str, Any],
                events: Iterable[Mapping[str, Any]]) -> None:
    """Write a timeline atomically.

    Args:
        said: header fields of the file, its ``format`` first.
        events: ``M`` names a line, ``X`` is a span, ``i`` an instant; times in microseconds.
    """
    with open_replacement(path) as file:
        file.write(f'{{"otherData": {json.dumps(said)}, "displayTimeUnit": "ms",\n'
                   '"traceEvents": [\n')
        file.write(",\n".join(map(json.dumps, events)))
        file.write("\n]}\n")


def line_names(process: int, name: str, lines: Mapping[str, int]) -> Iterable[dict[str, Any]]:
    """Yield events that name a process and its lines; ``lines`` maps names to numbers."""
    yield {"ph": "M", "name": "process_name", "pid": process, "args": {"name": name}}
    yield from ({"ph": "M", "name": "thread_name", "pid": process, "tid": line,
                 "args": {"name": text}} for text, line in lines.items())
