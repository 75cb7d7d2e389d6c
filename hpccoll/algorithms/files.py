"""Schedules from files: the JSON of ``hpccoll explain --json``, and MSCCL's XML.

A file has the programs for one number of ranks. It is data, and no code of it runs. Like any other
algorithm outside the table it is proved before use.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from hpccoll.algorithms.entry import Algorithm
from hpccoll.algorithms.msccl import read_msccl
from hpccoll.errors import ArgumentError, ScheduleError
from hpccoll.ir.collectives import COLLECTIVES
from hpccoll.ir.in_network import in_network
from hpccoll.ir.schedule import Program, Schedule, Span, Step

#: Supported file name suffixes.
SUFFIXES = (".json", ".xml")


def read(path: str) -> Schedule:
    """Read the schedule of a file.

    Raises:
        ArgumentError: there is no such file.
        ScheduleError: it does not contain a schedule.
    """
    from pathlib import Path
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ArgumentError("algorithm", f"cannot read {path!r}: "
                                         f"{getattr(error, 'strerror', None) or error}") from error
    return read_msccl(text, path) if path.endswith(".xml") else read_json(text, path)


def read_json(text: str, name: str) -> Schedule:
    """Read the text of :func:`hpccoll.explain.as_json`.

    Raises:
        ScheduleError: other text.
    """
    import json
    try:
        data = json.loads(text)
        if data["format"] != 1:
            raise ValueError(f"unknown format {data['format']!r}")
        programs = [_program(each) for each in data["programs"]]
        if len(programs) != data["size"]:
            raise ValueError(f"{len(programs)} programs for {data['size']} ranks")
        return Schedule(COLLECTIVES[data["collective"]], str(data["algorithm"]), data["size"],
                        programs.__getitem__, data["root"] or 0, data["nblocks"],
                        uniform=bool(data.get("uniform", False)))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ScheduleError(f"{name}: not a schedule of hpccoll explain --json: "
                            f"{type(error).__name__}: {error}") from error


def _program(data: Any) -> Program:
    return Program(tuple(tuple(map(_step, steps)) for steps in data["rounds"]),
                   tuple(data["scratch"]), tuple(map(tuple, data.get("after", ()))))


def _step(data: Any) -> Step:
    spans, source = (tuple(Span(str(buffer), int(start), int(stop))
                           for buffer, start, stop in data[field]) for field in ("spans", "source"))
    peer = data["peer"]
    return Step(str(data["kind"]), in_network(map(int, peer["sources"]), map(int, peer["sinks"]))
                if isinstance(peer, dict) else int(peer), spans, source, str(data["side"]))


def entry(path: str) -> Algorithm:
    """Return the algorithm of a file, for one number of ranks and one root.

    Raises:
        HpccollError: it cannot be read.
    """
    made = read(path)

    def build(rank: int, size: int) -> Program:
        """A schedule from a file."""
        return made.program(rank)

    def program_of_root(rank: int, size: int, root: int) -> Program:
        """A schedule from a file."""
        if root != made.root:
            raise ArgumentError("root", f"{path} is for root {made.root}, not {root}")
        return made.program(rank)

    return Algorithm(program_of_root if made.collective.rooted else build, made.collective.name,
                     blocks=made.nblocks, fits=partial(_fits, made.size), uniform=made.uniform,
                     name=made.algorithm, size=made.size)


def _fits(held: int, size: int) -> bool:
    return size == held
