"""Files of records: what ranks write about their calls, their state and their training steps.

    calls-JOB-rankR.json    collectives, when the program ends         hpccoll trace FOLDER
    flight-JOB-rankR.json   last calls, at a failure or on request     hpccoll trace diagnose FOLDER
    steps-JOB-rankR.json    steps of all ranks, when an exchange ends  hpccoll trace report FOLDER

All begin with the same fields, the version of the format first: other versions are refused. A file
with events is in the Trace Event Format of Chrome, which https://ui.perfetto.dev shows; its
``otherData`` has the fields.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from hpccoll.atomic_file import open_replacement
from hpccoll.errors import ArgumentError

T = TypeVar("T")
#: Format of the files, with its version.
FORMAT = "hpccoll record 1"
CALLS, FLIGHT, STEPS = "calls", "flight", "steps"


class Kind(NamedTuple):
    """Kind of files in messages: what one is, when it is written, and the command that reads it."""

    name: str
    when: str
    command: str


KINDS = {
    CALLS: Kind("record of calls", "when the program ends", "hpccoll trace"),
    FLIGHT: Kind("flight record", "when a call fails, on SIGUSR1, and in comm.dump()",
                 "hpccoll trace diagnose"),
    STEPS: Kind("timeline of a gradient exchange", "when an exchange is closed",
                "hpccoll trace report")}


def path_of(folder: str | os.PathLike[str], kind: str, job: str, rank: int) -> Path:
    """Return the path of a rank's file, in a folder that is made if it does not exist."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    return Path(folder) / f"{kind}-{job or 'job'}-rank{rank:05}.json"


def write(path: str | os.PathLike[str], kind: str, fields: Mapping[str, Any],
          events: Iterable[Mapping[str, Any]] | None = None) -> None:
    """Write a file atomically.

    Args:
        fields: contents, as plain data; ``job``, ``rank`` and ``ranks`` first.
        events: ``M`` names a line, ``X`` is a span, ``i`` an instant; times in microseconds.
    """
    import json
    head = {"format": FORMAT, "kind": kind, "host": os.uname().nodename, "pid": os.getpid(),
            "when": time.time(), **fields}
    with open_replacement(path) as file:
        if events is None:
            json.dump(head, file)
        else:
            file.write(f'{{"otherData": {json.dumps(head)}, "displayTimeUnit": "ms",\n'
                       '"traceEvents": [\n')
            file.write(",\n".join(map(json.dumps, events)))
            file.write("\n]}\n")


def line_names(process: int, name: str, lines: Mapping[str, int]) -> Iterator[dict[str, Any]]:
    """Yield events that name a process and its lines; ``lines`` maps names to numbers."""
    yield {"ph": "M", "name": "process_name", "pid": process, "args": {"name": name}}
    yield from ({"ph": "M", "name": "thread_name", "pid": process, "tid": line,
                 "args": {"name": text}} for text, line in lines.items())


def read(path: str | os.PathLike[str], kind: str, parse: Callable[[Any], T]) -> T:
    """Read a file that :func:`write` wrote; ``parse`` gets its contents.

    Raises:
        ArgumentError: the file cannot be read, or has another version or other contents.
    """
    import json
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
        head = data.get("otherData", data)
        if head["format"] != FORMAT:
            raise ValueError(f"its format is {head['format']!r}, not '{FORMAT}'")
        if head["kind"] != kind:
            raise ValueError(f"its kind is {head['kind']!r}, not {kind!r}")
        return parse(data)
    except OSError as error:
        raise ArgumentError("trace", f"cannot read {os.fspath(path)!r}: "
                                     f"{error.strerror}") from error
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ArgumentError("trace", f"{os.fspath(path)!r} is no {KINDS[kind].name}: {error}"
                            ) from error


def newest(folder: str | os.PathLike[str], kind: str) -> list[Path]:
    """Return the files of one kind that the newest job in a folder wrote, by rank.

    Raises:
        ArgumentError: there are none.
    """
    files = {one: sorted(Path(folder).glob(f"{one}-*-rank*.json"),
                         key=lambda file: (file.stat().st_mtime, file.name)) for one in KINDS}
    if not files[kind]:
        other = next((known for one, known in KINDS.items() if files[one]), None)
        raise ArgumentError(
            "trace", f"{os.fspath(folder)!r} has no {KINDS[kind].name}"
            + (f", but a {other.name}" if other else ""),
            f"use {other.command} {folder}" if other else "pass the folder that HPCCOLL_TRACE "
            f"names; ranks write to it {KINDS[kind].when}")
    job = files[kind][-1].name.rpartition("-rank")[0]
    return sorted(file for file in files[kind] if file.name.rpartition("-rank")[0] == job)
