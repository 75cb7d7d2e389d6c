"""Validation of the fields of machine files, with errors that name the field."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from hpccoll.errors import ArgumentError


def reject_duplicates(file: str):
    """Return a hook for :func:`json.loads` that rejects duplicate fields."""
    def as_mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        for index, (key, _) in enumerate(pairs):
            if key in dict(pairs[:index]):
                raise ArgumentError("machine", f"{file}: {key} is given twice")
        return dict(pairs)
    return as_mapping


def check(data: Any, where: str, required: tuple, optional: tuple, file: str) -> None:
    """Raise if a field is missing or unknown."""
    if not isinstance(data, Mapping):
        raise ArgumentError("machine", f"{file}: {where}: expected an object with the fields "
                                       f"{', '.join(required)}, got {data!r}")
    for name in required:
        if name not in data:
            raise ArgumentError("machine", f"{file}: {where} lacks the field {name}")
    for name in data:
        if name not in required + optional:
            raise ArgumentError("machine", f"{file}: {where} has an unknown field {name}",
                                f"use one of {', '.join(required + optional)}")


def text(data: Mapping, name: str, file: str, default: str | None = None,
          where: str = "") -> str:
    """Return a text field."""
    value = data.get(name, default)
    if not isinstance(value, str) or not value and default is None:
        raise ArgumentError("machine", f"{file}: {where}{name}: expected a string, got {value!r}")
    return value


def number(data: Mapping, name: str, where: str, file: str, default: float | None = None,
           least: float | None = None) -> float:
    """Return a number: positive, or at least ``least``."""
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


def cost(what: str, value: float, unit: str = "seconds") -> None:
    """Raise unless a value is a valid cost."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
        raise ArgumentError("machine", f"{what}: expected a finite number of {unit}, 0 or more, "
                                       f"got {value!r}")


def rate(what: str, value: float) -> None:
    """Raise unless a value is a valid rate."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
        raise ArgumentError("machine", f"{what}: expected a positive number of bytes per second, "
                                       f"got {value!r}")


def choice(what: str, value: object, known: tuple[str, ...]) -> None:
    """Raise unless a value is one of the known words."""
    if value not in known:
        raise ArgumentError("machine", f"{what}: expected {' or '.join(known)}, got {value!r}")


def as_integer(what: str, value: object, least: int = 1) -> int:
    """Return an integer, which may be stored as a float."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not (
            math.isfinite(value) and value == int(value) and value >= least):
        raise ArgumentError("machine", f"{what}: expected an integer of {least} or more, got "
                                       f"{value!r}")
    return int(value)
