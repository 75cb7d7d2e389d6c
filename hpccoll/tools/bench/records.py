"""Reader of records of ``hpccoll bench --json``; needs no MPI."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TextIO, get_type_hints

from hpccoll.errors import HpccollError

#: Version of the record; incremented by incompatible changes.
SCHEMA = 1
#: Valid range of medians in seconds, and of ratios; other values are invalid.
LEAST, MOST = 1e-15, 1e15


class Key(NamedTuple):
    """Key of a case: two medians are comparable if it is equal."""

    collective: str
    ranks: int
    dtype: str | None
    op: str | None
    root: int | None
    in_place: bool
    nbytes: int
    candidate: str


#: Required fields of a result, by name and type.
_KEY = get_type_hints(Key)


class Entry(NamedTuple):
    """Result of one candidate on one case: the median, and the columns of the table."""

    seconds: float
    wrong: int
    ratio: float | None
    limit: float | None


class Record(NamedTuple):
    """One run of the benchmark.

    Attributes:
        settings: all options side by side.
    """

    path: str
    environment: Mapping[str, Any]
    settings: Mapping[str, Any]
    results: Sequence[Mapping[str, Any]]
    entries: dict[Key, Entry]

    @property
    def library(self) -> str:
        """Return name and version of the MPI library."""
        return str(self.environment.get("library") or self.environment["mpi"])


def write(file: TextIO, environment: Mapping[str, Any] | None, **fields: Any) -> None:
    """Write a record: the machine, and what was measured."""
    json.dump({"schema": SCHEMA, "environment": environment, **fields}, file, indent=1)
    file.write("\n")


def read(path: str) -> Record:
    """Read a record."""
    try:
        with open(path, encoding="utf-8") as file:
            data = json.load(file)
    except OSError as error:
        raise HpccollError(f"cannot read {path!r}: {error.strerror}") from error
    except ValueError as error:
        raise HpccollError(f"{path!r} is not a record of hpccoll bench --json: {error}") from error
    except RecursionError:
        raise HpccollError(f"{path!r} is not a record of hpccoll bench --json: nested too "
                           "deep") from None
    try:
        if data["schema"] != SCHEMA:
            raise HpccollError(f"another version of hpccoll wrote {path!r}: schema "
                               f"{data['schema']!r}, this version reads {SCHEMA}")
        entries = {_key(result): _entry(result) for result in data["results"]}
        data["environment"]["mpi"]
        settings = {**data["settings"], **data["settings"].get("settings", {})}
        return Record(path, data["environment"], settings, data["results"], entries)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise HpccollError(f"{path!r} is not a record of hpccoll bench --json: "
                           f"{error!r}") from error


def _key(result: Mapping[str, Any]) -> Key:
    return Key(*_check_types(result, _KEY))


def _entry(result: Mapping[str, Any]) -> Entry:
    statistics = result["statistics"]
    wrong, changed = _check_types(result, {"wrong": int, "changed": int})
    seconds, ratio = _check_types(statistics,
                                  {"p50_seconds": float | int, "ratio": float | int | None})
    if not LEAST < seconds < MOST:
        raise ValueError(f"a median of {seconds!r} seconds")
    if ratio is not None and not LEAST < ratio < MOST:
        raise ValueError(f"a ratio of {ratio!r}")
    return Entry(seconds, wrong + changed, ratio, statistics.get("limit"))


def _check_types(values: Mapping[str, Any], types: Mapping[str, Any]) -> list[Any]:
    """Return values by name; raise unless each has its type."""
    for name, kind in types.items():
        if not isinstance(values[name], kind):
            raise TypeError(f"{name} is {values[name]!r}")
    return [values[name] for name in types]
