"""Machine files: the included ones, by name, and those of the user, by path."""

from __future__ import annotations

import os
from dataclasses import replace
from importlib import resources

from hpccoll.errors import ArgumentError, ArgumentTypeError, did_you_mean
from hpccoll.simulator.machine_model import Machine, machine_from_text
from hpccoll.simulator.shape_files import shape_from_text
from hpccoll.simulator.shapes import Shape

SUFFIX = ".json"


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
