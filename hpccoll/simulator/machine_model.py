"""Machine model of the simulator: nested levels, each with a latency, a rate and shared links.

A machine is a tree of links, outermost level first: the nodes of ``network``, the sockets of
``node``, and so on. A message belongs to the outermost level at which the groups of sender and
receiver differ. Alone it takes ``alpha + (nbytes + header) * beta`` of that level. Resources:

* **ports** - a rank sends one message at the full rate of its level, or several at parts of it;
  the same for receiving, separately;
* **links** - a group of a level (a node of the network) has one full-duplex link: all messages that
  its ranks send out of it share ``link`` bytes per second, and all incoming ones as well. With
  ``rails`` it has several such links, and its ranks are assigned to them in order;
* **buses** - all messages of a level inside one surrounding group share ``bus`` bytes per second;
* **in the network** - a level whose switches copy a message to several ranks, or reduce messages of
  several (:mod:`hpccoll.ir.in_network`), has ``in_network``: such an operation takes that
  ``alpha`` once the last end is posted, then flows at that rate or slower, through the ports and
  links of all its ranks concurrently;
* **the shape** - between groups of the outermost level, messages also take hops over the links of a
  network (:mod:`~hpccoll.simulator.shapes`).

Ports and links are full duplex, with the full rate in each direction; with ``duplex`` "half", both
directions share it.

Reducing takes ``gamma`` seconds per byte of the result, on the rank's own processor. Posting a
message takes that processor ``overhead`` seconds, on either side. The ``header`` of a message is
its additional load on links in bytes: many small messages delay each other on a link.
Source of the terms: Hockney (alpha, beta); Thakur, Rabenseifner and Gropp (gamma); LogP (overhead,
and its gap, here the header). In the network: a vector goes in and out once, in one latency, while
messages between hosts move 2 (p - 1) / p of it (De Sensi et al., "Flare: Flexible In-Network
Allreduce", SC '21).
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import resources
from typing import Any

from hpccoll.errors import ArgumentError, ArgumentTypeError, did_you_mean
from hpccoll.simulator import fields
from hpccoll.simulator.shape_files import shape_as_data, shape_from_data, shape_from_text
from hpccoll.simulator.shapes import DUPLEX, Shape

#: Fields of a machine file, and of one of its levels: required ones, and optional ones.
REQUIRED, OPTIONAL = ("name", "levels", "reduce_bytes_per_second"), (
    "copy_bytes_per_second", "description", "sources", "duplex", "shape", "idle_watts",
    "reduce_joules_per_byte")
LEVEL_REQUIRED, LEVEL_OPTIONAL = ("name", "alpha_seconds", "bytes_per_second"), (
    "link_bytes_per_second", "bus_bytes_per_second", "overhead_seconds", "header_bytes", "rails",
    "duplex", "joules_per_byte", "in_network")
UNIT_REQUIRED, UNIT_OPTIONAL = ("alpha_seconds", "bytes_per_second"), ("reduces",)
SUFFIX = ".json"


@dataclass(frozen=True)
class SwitchUnit:
    """In-network operations of a level's switches: at least copies.

    Attributes:
        alpha: seconds from the last end posted until the first byte arrives.
        beta: seconds per byte of each rank's stream.
        reduces: True if messages of several ranks are combined as well.
    """

    alpha: float
    beta: float
    reduces: bool = True

    def __post_init__(self):
        for what in ("alpha", "beta"):
            fields.cost(f"in_network {what}", getattr(self, what))


@dataclass(frozen=True)
class Level:
    """One level of a machine: the cost of a message between groups of this level.

    Attributes:
        alpha: seconds until the first byte arrives.
        beta: seconds per byte of a message on unshared resources.
        link: bytes per second into, and out of, each group of this level; unlimited by default.
        bus: bytes per second of all messages of this level in one surrounding group.
        overhead: seconds a processor needs to post one message, sent or received.
        header: additional bytes of a message on its route.
        rails: number of links of a group, each of ``link`` bytes per second; a rank uses one.
        duplex: ``half`` if both directions of a group's link share its rate.
        energy: joules per byte of a message of this level.
        in_network: operations of its switches on messages of several ranks; none by default.
    """

    name: str
    alpha: float
    beta: float
    link: float = math.inf
    bus: float = math.inf
    overhead: float = 0.0
    header: float = 0.0
    rails: int = 1
    duplex: str = "full"
    energy: float = 0.0
    in_network: SwitchUnit | None = None

    def __post_init__(self):
        for what in ("alpha", "beta", "overhead"):
            fields.cost(f"{what} of level {self.name!r}", getattr(self, what))
        fields.cost(f"header of level {self.name!r}", self.header, "bytes")
        for what in ("link", "bus"):
            fields.rate(f"{what} of level {self.name!r}", getattr(self, what))
        rails = fields.as_integer(f"rails of level {self.name!r}", self.rails)
        object.__setattr__(self, "rails", rails)
        if rails > 1 and math.isinf(self.link):
            raise ArgumentError("machine", f"level {self.name!r} has {rails} rails and no rate",
                                "set the rate of one rail")
        fields.choice(f"duplex of level {self.name!r}", self.duplex, DUPLEX)
        fields.cost(f"energy of level {self.name!r}", self.energy, "joules")


@dataclass(frozen=True)
class Machine:
    """Levels from the outside in, and costs of computation.

    A layout with fewer levels than the machine uses its outer ones; one with more uses the
    innermost again for deeper groups, on the same bus and without links.

    Attributes:
        levels: outermost first.
        gamma: seconds per byte reduced.
        copy: seconds per byte copied, except copies of the input, which are never executed.
        duplex: ``half`` if sends and receives share a rank's port.
        shape: shape of the network between groups of the outermost level, if modelled.
        idle: idle watts of a rank's part of the machine.
        reduce_energy: joules per byte reduced.
    """

    name: str
    levels: tuple[Level, ...]
    gamma: float = 0.0
    copy: float = 0.0
    description: str = field(default="", compare=False)
    sources: tuple[str, ...] = field(default=(), compare=False)
    duplex: str = "full"
    shape: Shape | None = None
    idle: float = 0.0
    reduce_energy: float = 0.0

    def __post_init__(self):
        object.__setattr__(self, "levels", tuple(self.levels))
        if not self.levels:
            raise ArgumentError("machine", f"{self.name!r} has no levels", "give at least one")
        names = [level.name for level in self.levels]
        if len(set(names)) < len(names):
            raise ArgumentError("machine", f"{self.name!r} has two levels with the same name",
                                f"its levels are {', '.join(names)}")
        fields.cost(f"gamma of machine {self.name!r}", self.gamma)
        fields.cost(f"copy of machine {self.name!r}", self.copy)
        fields.choice(f"duplex of machine {self.name!r}", self.duplex, DUPLEX)
        fields.cost(f"idle of machine {self.name!r}", self.idle, "watts")
        fields.cost(f"reduce_energy of machine {self.name!r}", self.reduce_energy, "joules")
        if self.shape is not None:
            if not isinstance(self.shape, Shape):
                raise ArgumentError("machine", f"shape of {self.name!r}: expected a Shape, got "
                                               f"{self.shape!r}")
            if not self.shape.bytes_per_second and not self.levels[0].beta:
                raise ArgumentError("machine", f"shape of {self.name!r} has no bytes_per_second, "
                                               f"and level {names[0]!r} has no rate")

    def level(self, depth: int) -> Level:
        """Return the level of messages between different groups at a depth of the layout."""
        return self.levels[min(depth, len(self.levels) - 1)]

    @property
    def posts_in_turn(self) -> bool:
        """Return True if a processor posts the messages of a round one after the other."""
        return any(level.overhead for level in self.levels)

    @property
    def counts_energy(self) -> bool:
        return bool(self.idle or self.reduce_energy or any(level.energy for level in self.levels)
                    or self.shape is not None and self.shape.joules_per_byte)


def machine_from_text(text: str, file: str) -> Machine:
    """Parse a machine from JSON; docs/simulate.md lists the fields."""
    def refuse(word: str):
        raise ArgumentError("machine", f"{file}: {word} is not a valid number")

    try:
        # No number of a machine is required to be an integer, and a float of any length is valid.
        data = json.loads(text, parse_int=float, parse_constant=refuse,
                          object_pairs_hook=fields.reject_duplicates(file))
    except json.JSONDecodeError as error:
        raise ArgumentError("machine", f"{file}: not JSON: {error}") from error
    except RecursionError:
        raise ArgumentError("machine", f"{file}: nested too deep") from None
    fields.check(data, "the file", REQUIRED, OPTIONAL, file)
    if not isinstance(data["levels"], list) or not data["levels"]:
        raise ArgumentError("machine", f"{file}: levels: expected a list of at least one level, "
                                       f"got {data['levels']!r}")
    sources = data.get("sources", [])
    if not isinstance(sources, list) or not all(isinstance(s, str) for s in sources):
        raise ArgumentError("machine", f"{file}: sources: expected a list of strings")
    return Machine(
        fields.text(data, "name", file),
        tuple(_level(level, number, file) for number, level in enumerate(data["levels"])),
        1 / fields.number(data, "reduce_bytes_per_second", "", file),
        1 / fields.number(data, "copy_bytes_per_second", "", file, math.inf),
        fields.text(data, "description", file, ""), tuple(sources),
        _duplex(data, "", file),
        None if "shape" not in data else shape_from_data(data["shape"], file),
        fields.number(data, "idle_watts", "", file, 0.0, least=0),
        fields.number(data, "reduce_joules_per_byte", "", file, 0.0, least=0))


def machine_as_data(machine: Machine) -> dict[str, Any]:
    """Return the fields of a machine file, as :mod:`json` writes them."""
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
        data |= {name: value for name, value, usual in (
            ("header_bytes", level.header, 0), ("rails", level.rails, 1),
            ("duplex", level.duplex, "full"), ("joules_per_byte", level.energy, 0))
            if value != usual}
        if (unit := level.in_network) is not None:
            data["in_network"] = {
                "alpha_seconds": unit.alpha, "reduces": unit.reduces,
                "bytes_per_second": rate(f"in_network beta of level {level.name!r}", unit.beta)}
        levels.append(data)
    data = {"name": machine.name, "description": machine.description,
            "sources": list(machine.sources),
            "reduce_bytes_per_second": rate("gamma", machine.gamma), "levels": levels}
    return data | {name: value for name, value in (
        ("copy_bytes_per_second", machine.copy and 1 / machine.copy),
        ("duplex", machine.duplex if machine.duplex != "full" else None),
        ("shape", machine.shape and shape_as_data(machine.shape)),
        ("idle_watts", machine.idle), ("reduce_joules_per_byte", machine.reduce_energy)) if value}


def _level(data: Any, number: int, file: str) -> Level:
    where = f"levels[{number}]"
    fields.check(data, where, LEVEL_REQUIRED, LEVEL_OPTIONAL, file)
    where += "."
    return Level(
        fields.text(data, "name", file, where=where),
        fields.number(data, "alpha_seconds", where, file, least=0),
        1 / fields.number(data, "bytes_per_second", where, file),
        fields.number(data, "link_bytes_per_second", where, file, math.inf),
        fields.number(data, "bus_bytes_per_second", where, file, math.inf),
        fields.number(data, "overhead_seconds", where, file, 0.0, least=0),
        fields.number(data, "header_bytes", where, file, 0.0, least=0),
        fields.as_integer(f"{file}: {where}rails", data.get("rails", 1)),
        _duplex(data, where, file),
        fields.number(data, "joules_per_byte", where, file, 0.0, least=0),
        _unit(data["in_network"], f"{where}in_network", file) if "in_network" in data else None)


def _unit(data: Any, where: str, file: str) -> SwitchUnit:
    fields.check(data, where, UNIT_REQUIRED, UNIT_OPTIONAL, file)
    where += "."
    reduces = data.get("reduces", True)
    if not isinstance(reduces, bool):
        raise ArgumentError("machine", f"{file}: {where}reduces: expected true or false, got "
                                       f"{reduces!r}")
    return SwitchUnit(fields.number(data, "alpha_seconds", where, file, least=0),
                      1 / fields.number(data, "bytes_per_second", where, file), reduces)


def _duplex(data: Mapping, where: str, file: str) -> str:
    fields.choice(f"{file}: {where}duplex", data.get("duplex", "full"), DUPLEX)
    return data.get("duplex", "full")


def names() -> list[str]:
    """Return the names of the included machines."""
    return sorted(entry.name.removesuffix(SUFFIX) for entry in _folder().iterdir()
                  if entry.name.endswith(SUFFIX))


def find(machine: str | os.PathLike | Machine) -> Machine:
    """Return a machine by name, or from its file."""
    if isinstance(machine, Machine):
        return machine
    if not isinstance(machine, (str, os.PathLike)):
        raise ArgumentTypeError("machine", f"expected a name, a file or a Machine, got {machine!r}")
    name = os.fspath(machine)
    if name in names():
        return machine_from_text((_folder() / (name + SUFFIX)).read_text(encoding="utf-8"), name)
    try:
        with open(name, encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "the file is not text"
        raise ArgumentError("machine", f"cannot read {name!r}: {reason}",
                            f"{did_you_mean(name, names())}; pass a file, or one of "
                            f"{', '.join(names())}".strip("; ")) from error
    return machine_from_text(text, name)


def with_shape(machine: Machine, shape: str | Shape | None) -> Machine:
    """Return the machine with another shape of its network; unchanged without one."""
    if shape is None:
        return machine
    return replace(machine, shape=shape_from_text(shape, "shape") if isinstance(shape, str)
                   else shape)


def _folder():
    return resources.files("hpccoll.simulator") / "data"
