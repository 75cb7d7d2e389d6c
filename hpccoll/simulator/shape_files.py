"""Shapes as data and as text: parsed, written, and validated by field."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields as dataclass_fields
from typing import Any

from hpccoll.errors import ArgumentError
from hpccoll.simulator import fields
from hpccoll.simulator.grids import MeshShape, Torus
from hpccoll.simulator.shapes import Shape
from hpccoll.simulator.switched import Dragonfly, FatTree

SHAPES: Mapping[str, type[Shape]] = {
    "torus": Torus, "mesh": MeshShape, "fat_tree": FatTree, "dragonfly": Dragonfly}


def shape_from_data(data: Any, file: str) -> Shape:
    """Parse the ``shape`` of a machine file."""
    if isinstance(data, Mapping):
        kind = data.get("kind")
        if not isinstance(kind, str) or kind not in SHAPES:
            raise ArgumentError.unknown_word("machine", kind, SHAPES,
                                             f"{file}: shape.kind: {kind!r} is unknown")
        made = SHAPES[kind]
        known = tuple(f.name for f in dataclass_fields(made) if f.name != "extents")
        fields.check(data, "shape", ("kind", "extents"), known, file)
        try:
            return made(**{name: value for name, value in data.items() if name != "kind"})
        except ArgumentError as error:
            raise ArgumentError("machine", f"{file}: {_problem(error)}") from error
    raise ArgumentError("machine", f"{file}: shape: expected an object with the fields kind, "
                                   f"extents, got {data!r}")


def shape_as_data(shape: Shape) -> dict[str, Any]:
    """Return the ``shape`` of a machine file."""
    held = {f.name: getattr(shape, f.name) for f in dataclass_fields(shape)
            if getattr(shape, f.name) != f.default}
    return {"kind": shape.kind, **{name: list(value) if isinstance(value, tuple) else value
                                   for name, value in held.items()}}


def shape_from_text(text: str, argument: str = "shape") -> Shape:
    """Parse a shape from text: ``torus:4x4x4``, ``fat_tree:8x4:up=1x2:routing=spread``.

    >>> shape_from_text("mesh:4x2:bytes_per_second=2e9").nodes
    8
    """
    kind, *rest = text.split(":")
    data: dict[str, Any] = {"kind": kind, "extents": rest[0] if rest else ""}
    for part in rest[1:]:
        name, equals, value = part.partition("=")
        if not equals or name in data:
            raise ArgumentError(argument, f"cannot read {part!r} in {text!r}",
                                "write fields as in fat_tree:8x4:up=1x2:routing=spread")
        data[name] = value
    try:
        return shape_from_data({name: value if name == "kind" else _value(value)
                                for name, value in data.items()}, repr(text))
    except ArgumentError as error:
        raise ArgumentError(argument, _problem(error)) from error


def _value(text: str) -> Any:
    """Parse numbers separated by x, words, true and false."""
    words = {"true": True, "false": False}
    parts = []
    for part in text.split("x"):
        try:
            parts.append(words[part] if part in words else float(part))
        except ValueError:
            return text
    return parts if len(parts) > 1 else parts[0]


def _problem(error: ArgumentError) -> str:
    """Return the text of an error after the name of its argument."""
    return str(error).removeprefix(f"{error.argument}: ")
