"""Records that ``hpccoll bench --json`` wrote, read again without MPI."""

from __future__ import annotations

import json
import math
from typing import Any, Mapping, NamedTuple

from hpccoll.errors import HpccollError

#: Version of the record; a change that breaks readers raises it.
SCHEMA = 1


class Key(NamedTuple):
    """What must be the same for two medians to be compared."""

    collective: str
    ranks: int
    dtype: str | None
    op: str | None
    root: int | None
    in_place: bool
    nbytes: int
    candidate: str


class Entry(NamedTuple):
    """What one candidate did on one case: the median, and the columns of the table."""

    seconds: float
    wrong: int
    ratio: float | None
    limit: float | None


class Record(NamedTuple):
    """One run of the benchmark."""

    path: str
    environment: Mapping[str, Any]
    settings: Mapping[str, Any]
    entries: dict[Key, Entry]

    @property
    def library(self) -> str:
        """Name and version of the MPI library."""
        return str(self.environment.get("library") or self.environment["mpi"])


def read(path: str) -> Record:
    """Read a record.

    Raises:
        HpccollError: it is none, or cannot be read; the message names the file and the reason.
    """
    try:
        with open(path, encoding="utf-8") as file:
            data = json.load(file)
    except OSError as error:
        raise HpccollError(f"cannot read {path!r}: {error.strerror}") from error
    except ValueError as error:
        raise HpccollError(f"{path!r} is no record of hpccoll bench --json: {error}") from error
    try:
        if data["schema"] != SCHEMA:
            raise HpccollError(f"{path!r} was written by another version of hpccoll: schema "
                               f"{data['schema']!r}, this one reads {SCHEMA}")
        entries = {_key(result): _entry(result) for result in data["results"]}
        data["environment"]["mpi"]
        return Record(path, data["environment"], data["settings"], entries)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise HpccollError(f"{path!r} is no record of hpccoll bench --json: {error!r}") from error


def _key(result: Mapping[str, Any]) -> Key:
    return Key(*(result[name] for name in Key._fields))


def _entry(result: Mapping[str, Any]) -> Entry:
    statistics = result["statistics"]
    seconds = statistics["p50_seconds"]
    if not 0 < seconds < math.inf:
        raise ValueError(f"a median of {seconds!r} seconds")
    return Entry(seconds, result["wrong"] + result["changed"], statistics["ratio"],
                 statistics.get("limit"))
