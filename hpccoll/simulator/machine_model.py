"""The machine a schedule is timed on: nested levels, each with a latency, a rate and shared links.

A machine is a tree of links, outermost level first: the nodes of ``network``, the sockets of
``node``, and so on. A message belongs to the level at which sender and receiver part. Alone it
takes ``alpha + (nbytes + header) * beta`` of that level. What it shares with other messages:

* **ports** - a rank sends one message at the full rate of its level, or several at parts of it;
  the same for receiving, separately;
* **links** - a group of a level (a node of the network) hangs on one full-duplex link: all that
  its ranks send out of it share ``link`` bytes per second, and all that comes in as well;
* **buses** - all messages of a level inside one surrounding group share ``bus`` bytes per second.

Reducing takes ``gamma`` seconds per byte of the result, on the rank's own processor. Posting a
message takes that processor ``overhead`` seconds, on either side. The ``header`` of a message is
all that it costs its way besides its bytes: many small messages hold each other up on a link.
Source of the terms: Hockney (alpha, beta); Thakur, Rabenseifner and Gropp (gamma); LogP (overhead,
and its gap, here the header).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hpccoll.errors import ArgumentError

#: Fields of a machine file, and of one of its levels; those that must be there, and the rest.
REQUIRED, OPTIONAL = ("name", "levels", "reduce_bytes_per_second"), (
    "copy_bytes_per_second", "description", "sources")
LEVEL_REQUIRED, LEVEL_OPTIONAL = ("name", "alpha_seconds", "bytes_per_second"), (
    "link_bytes_per_second", "bus_bytes_per_second", "overhead_seconds", "header_bytes")


@dataclass(frozen=True)
class Level:
    """One level of a machine: what a message costs whose ends part here.

    Attributes:
        name: for people, and for files.
        alpha: seconds until the first byte arrives.
        beta: seconds per byte of a message that shares nothing.
        link: bytes per second into, and out of, each group of this level; unlimited by default.
        bus: bytes per second of all messages of this level in one surrounding group.
        overhead: seconds a processor needs to post one message, sent or received.
        header: bytes that a message counts as on its way, beyond its own.
    """

    name: str
    alpha: float
    beta: float
    link: float = math.inf
    bus: float = math.inf
    overhead: float = 0.0
    header: float = 0.0

    def __post_init__(self):
        for what in ("alpha", "beta", "overhead"):
            _cost(f"{what} of level {self.name!r}", getattr(self, what))
        _cost(f"header of level {self.name!r}", self.header, "bytes")
        for what in ("link", "bus"):
            _rate(f"{what} of level {self.name!r}", getattr(self, what))


@dataclass(frozen=True)
class Machine:
    """Levels from the outside in, and what computing costs.

    A layout with fewer levels than the machine uses its outer ones; one with more uses the
    innermost again for what is nested deeper, on the same bus and without links.

    Attributes:
        name: for people.
        levels: outermost first.
        gamma: seconds per byte reduced.
        copy: seconds per byte copied, beside copies of the input, which are never carried out.
        description, sources: for people.
    """

    name: str
    levels: tuple[Level, ...]
    gamma: float = 0.0
    copy: float = 0.0
    description: str = field(default="", compare=False)
    sources: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self):
        object.__setattr__(self, "levels", tuple(self.levels))
        if not self.levels:
            raise ArgumentError("machine", f"{self.name!r} has no levels", "give at least one")
        names = [level.name for level in self.levels]
        if len(set(names)) < len(names):
            raise ArgumentError("machine", f"{self.name!r} has two levels of one name",
                                f"its levels are {', '.join(names)}")
        _cost(f"gamma of machine {self.name!r}", self.gamma)
        _cost(f"copy of machine {self.name!r}", self.copy)

    def level(self, depth: int) -> Level:
        """The level of messages whose ends part at a depth of the layout."""
        return self.levels[min(depth, len(self.levels) - 1)]


def machine_from_text(text: str, file: str) -> Machine:
    """Read a machine from JSON; docs/simulate.md lists the fields.

    Args:
        text: the JSON.
        file: what to call it in messages.

    Raises:
        ArgumentError: a missing, unknown, negative, infinite or malformed field; names it and
            the file.
    """
    def refuse(word: str):
        raise ArgumentError("machine", f"{file}: {word} is not a number that can be used")

    try:
        # No number of a machine must be whole, and a float of any length can be read.
        data = json.loads(text, parse_int=float, parse_constant=refuse,
                          object_pairs_hook=_once(file))
    except json.JSONDecodeError as error:
        raise ArgumentError("machine", f"{file}: not JSON: {error}") from error
    except RecursionError:
        raise ArgumentError("machine", f"{file}: nested too deep") from None
    _fields(data, "the file", REQUIRED, OPTIONAL, file)
    if not isinstance(data["levels"], list) or not data["levels"]:
        raise ArgumentError("machine", f"{file}: levels: expected a list of at least one level, "
                                       f"got {data['levels']!r}")
    sources = data.get("sources", [])
    if not isinstance(sources, list) or not all(isinstance(s, str) for s in sources):
        raise ArgumentError("machine", f"{file}: sources: expected a list of texts")
    return Machine(
        _text(data, "name", file), tuple(_level(level, number, file)
                                         for number, level in enumerate(data["levels"])),
        1 / _number(data, "reduce_bytes_per_second", "", file),
        1 / _number(data, "copy_bytes_per_second", "", file, math.inf),
        _text(data, "description", file, ""), tuple(sources))


def machine_as_data(machine: Machine) -> dict[str, Any]:
    """The fields of a machine file, as :mod:`json` writes them.

    Raises:
        ArgumentError: a cost of zero, which a file cannot hold as a rate.
    """
    def rate(what: str, cost: float) -> float:
        if not cost:
            raise ArgumentError("machine", f"{what} of {machine.name!r} is 0, so its rate is "
                                           "infinite and cannot be written")
        return 1 / cost

    levels = []
    for level in machine.levels:
        data = {"name": level.name, "alpha_seconds": level.alpha,
                "bytes_per_second": rate(f"beta of level {level.name!r}", level.beta)}
        data |= {f"{what}_bytes_per_second": getattr(level, what) for what in ("link", "bus")
                 if math.isfinite(getattr(level, what))}
        data |= {"overhead_seconds": level.overhead} if level.overhead else {}
        data |= {"header_bytes": level.header} if level.header else {}
        levels.append(data)
    data = {"name": machine.name, "description": machine.description,
            "sources": list(machine.sources),
            "reduce_bytes_per_second": rate("gamma", machine.gamma), "levels": levels}
    return data | ({"copy_bytes_per_second": 1 / machine.copy} if machine.copy else {})


def _level(data: Any, number: int, file: str) -> Level:
    where = f"levels[{number}]"
    _fields(data, where, LEVEL_REQUIRED, LEVEL_OPTIONAL, file)
    where += "."
    return Level(
        _text(data, "name", file, where=where),
        _number(data, "alpha_seconds", where, file, least=0),
        1 / _number(data, "bytes_per_second", where, file),
        _number(data, "link_bytes_per_second", where, file, math.inf),
        _number(data, "bus_bytes_per_second", where, file, math.inf),
        _number(data, "overhead_seconds", where, file, 0.0, least=0),
        _number(data, "header_bytes", where, file, 0.0, least=0))


def _once(file: str):
    """A hook for :func:`json.loads` that refuses a field given twice."""
    def as_mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        for index, (key, _) in enumerate(pairs):
            if key in dict(pairs[:index]):
                raise ArgumentError("machine", f"{file}: {key} is given twice")
        return dict(pairs)
    return as_mapping


def _fields(data: Any, where: str, required: tuple, optional: tuple, file: str) -> None:
    if not isinstance(data, Mapping):
        raise ArgumentError("machine", f"{file}: {where}: expected an object with the fields "
                                       f"{', '.join(required)}, got {data!r}")
    for name in required:
        if name not in data:
            raise ArgumentError("machine", f"{file}: {where} lacks the field {name}")
    for name in data:
        if name not in required + optional:
            raise ArgumentError("machine", f"{file}: {where} has an unknown field {name}",
                                f"known are {', '.join(required + optional)}")


def _text(data: Mapping, name: str, file: str, default: str | None = None,
          where: str = "") -> str:
    value = data.get(name, default)
    if not isinstance(value, str) or not value and default is None:
        raise ArgumentError("machine", f"{file}: {where}{name}: expected a text, got {value!r}")
    return value


def _number(data: Mapping, name: str, where: str, file: str, default: float | None = None,
            least: float | None = None) -> float:
    """A number of the file: positive, or at least ``least``."""
    if name not in data and default is not None:
        return default
    value = data[name]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ArgumentError("machine", f"{file}: {where}{name}: expected a number, got {value!r}")
    if value < 0 or least is None and value == 0:
        raise ArgumentError("machine", f"{file}: {where}{name}: must be "
                            + ("positive" if least is None else "0 or more")
                            + f", got {value:g}")
    return float(value)


def _cost(what: str, value: float, unit: str = "seconds") -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
        raise ArgumentError("machine", f"{what}: expected a finite number of {unit}, 0 or more, "
                                       f"got {value!r}")


def _rate(what: str, value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
        raise ArgumentError("machine", f"{what}: expected a positive number of bytes per second, "
                                       f"got {value!r}")
