"""What is trained, as far as its exchange is concerned: arrays, and when each becomes ready."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hpccoll.errors import ArgumentError
from hpccoll.training.buckets import ArraySpec

#: Fields of a file that must be there, and that may.
REQUIRED = ("arrays", "ready_seconds", "backward_seconds")
OPTIONAL = ("name", "forward_seconds", "optimizer_seconds", "samples", "source", "format")


@dataclass(frozen=True)
class StepModel:
    """Arrays with their times on one rank; all times are seconds from the beginning of the step.

    Attributes:
        name: for titles.
        arrays: what is exchanged, in the order of the program.
        ready: when each array's gradient is there.
        backward: when the backward pass is over, and the program has nothing left to do but wait.
        forward: when the forward pass is over.
        optimizer: seconds that the update of all parameters takes after the exchange.
        samples: that one rank trains on in a step; 0 where that is not known.
        source: where the times come from.
    """

    name: str
    arrays: tuple[ArraySpec, ...]
    ready: tuple[float, ...]
    backward: float
    forward: float = 0.0
    optimizer: float = 0.0
    samples: int = 0
    source: str = ""

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(spec.nbytes for spec in self.arrays)

    @property
    def count(self) -> int:
        """Elements of all arrays: the parameters."""
        return sum(spec.count for spec in self.arrays)

    @property
    def order(self) -> tuple[int, ...]:
        """Indices of the arrays as they become ready; those of one instant from last to first."""
        return tuple(sorted(range(len(self.arrays)), key=lambda i: (self.ready[i], -i)))

    def scaled(self, factor: float) -> StepModel:
        """The same on a device on which compute takes ``factor`` times as long."""
        return StepModel(self.name, self.arrays, tuple(t * factor for t in self.ready),
                         self.backward * factor, self.forward * factor, self.optimizer * factor,
                         self.samples, f"{self.source}; times x {factor:g}")

    def as_json(self) -> dict[str, Any]:
        """The fields of a file."""
        return {
            "format": 1, "name": self.name, "source": self.source, "samples": self.samples,
            "forward_seconds": self.forward, "backward_seconds": self.backward,
            "optimizer_seconds": self.optimizer, "ready_seconds": list(self.ready),
            "arrays": [asdict(spec) | {"shape": list(spec.shape)} for spec in self.arrays]}


def read(path: str | os.PathLike[str]) -> StepModel:
    """Read a file of :meth:`StepModel.as_json`, or of what ``exchange.profile()`` returned.

    Raises:
        ArgumentError: it cannot be read, or does not describe a step; names file and field.
    """
    name = os.fspath(path)
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ArgumentError("model", f"cannot read {name!r}: {error.strerror}") from error
    except ValueError as error:
        raise ArgumentError("model", f"{name!r} is no JSON: {error}") from error
    return from_profile(data, Path(name).stem, name)


def from_profile(data: Any, name: str = "recorded", where: str = "profile") -> StepModel:
    """Make a model of what ``exchange.profile()`` returned.

    Args:
        data: the profile.
        name: where it says none.
        where: what to call it in messages.

    Raises:
        ArgumentError: it does not describe a step; names the field.
    """
    def refuse(problem: str) -> ArgumentError:
        return ArgumentError("model", f"{where}: {problem}")

    if not isinstance(data, Mapping):
        raise refuse(f"expected an object with the fields {', '.join(REQUIRED)}, got {data!r:.60}")
    missing = [field for field in REQUIRED if field not in data]
    unknown = [field for field in data if field not in REQUIRED + OPTIONAL]
    if missing or unknown:
        raise refuse(f"lacks the field {missing[0]}" if missing else
                     f"has an unknown field {unknown[0]}; use one of "
                     f"{', '.join(REQUIRED + OPTIONAL)}")
    arrays = data["arrays"]
    if not isinstance(arrays, list) or not arrays:
        raise refuse("arrays: expected a list of at least one array")
    specs = tuple(_spec(array, f"{where}: arrays[{i}]") for i, array in enumerate(arrays))
    if len({spec.name for spec in specs}) < len(specs):
        raise refuse("arrays: two of them have one name")
    ready = data["ready_seconds"]
    if not isinstance(ready, list) or len(ready) != len(specs):
        raise refuse(f"ready_seconds: expected a list of {len(specs)} times, one for each array")
    times = tuple(_seconds(t, f"{where}: ready_seconds[{i}]") for i, t in enumerate(ready))
    backward = _seconds(data["backward_seconds"], f"{where}: backward_seconds")
    forward = _seconds(data.get("forward_seconds", 0), f"{where}: forward_seconds")
    if not forward <= min(times) or not max(times) <= backward:
        raise refuse("the times of ready_seconds must lie between forward_seconds and "
                     "backward_seconds")
    return StepModel(str(data.get("name") or name), specs, times, backward, forward,
                     _seconds(data.get("optimizer_seconds", 0), f"{where}: optimizer_seconds"),
                     int(_seconds(data.get("samples", 0), f"{where}: samples")),
                     str(data.get("source", "recorded by exchange.profile()")))


def _spec(data: Any, where: str) -> ArraySpec:
    try:
        spec = ArraySpec(str(data["name"]), tuple(data["shape"]), str(data["dtype"]),
                         data["itemsize"])
        whole = all(isinstance(n, int) and n >= 0 for n in (*spec.shape, spec.itemsize))
    except (TypeError, LookupError) as error:
        raise ArgumentError("model", f"{where}: expected name, shape, dtype and itemsize, got "
                                     f"{data!r:.60}") from error
    if not whole or not spec.itemsize:
        raise ArgumentError("model", f"{where}: shape and itemsize must be integers, got "
                                     f"{data!r:.60}")
    return spec


def _seconds(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not (
            0 <= value < math.inf):
        raise ArgumentError("model", f"{where}: expected a number, 0 or more, got {value!r}")
    return float(value)
