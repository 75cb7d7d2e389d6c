"""A file for each rank with what it noted; all of a job read again.

    HPCCOLL_TRACE=FOLDER  -->  FOLDER/calls-JOB-rankR.json on every rank  -->  read(FOLDER)
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpccoll.atomic_file import replacing
from hpccoll.errors import ArgumentError
from hpccoll.measure.observed.record import CallRecord, RankRecord

FORMAT = "hpccoll calls 1"


def save(folder: str, record: RankRecord, job: str, ranks: int) -> None:
    """Write the file of a rank, of so many.

    Raises:
        OSError: it cannot be written.
    """
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    with replacing(place / f"calls-{job or 'alone'}-rank{record.rank:05}.json") as file:
        json.dump({"format": FORMAT, "job": job, "ranks": ranks, **record._asdict(),
                   "communicators": list(map(_told, record.communicators))}, file)


def _told(record: CallRecord) -> dict[str, Any]:
    """A record with all that it has, times rounded."""
    data = record.as_json()
    data["times"] = [round(seconds, 9) for seconds in data["times"]]
    return data if record.moments is None else {**data, "noted": record.moments.as_json()}


def read(folder: Path) -> tuple[list[RankRecord], int]:
    """The newest job's records in a folder, and how many ranks it had.

    Raises:
        ArgumentError: there are none, or a file is something else.
    """
    files = sorted(folder.glob("calls-*-rank*.json"), key=lambda file: file.stat().st_mtime)
    if not files:
        raise ArgumentError("trace", f"{str(folder)!r} holds no collectives",
                            "HPCCOLL_TRACE names the folder that they are written to, at the end "
                            "of the program")
    job = files[-1].name.rpartition("-rank")[0]
    found = [_read(file) for file in files if file.name.rpartition("-rank")[0] == job]
    return [record for record, _ in found], max(ranks for _, ranks in found)


def _read(file: Path) -> tuple[RankRecord, int]:
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        if data["format"] != FORMAT:
            raise ValueError(f"its format is {data['format']!r}, not '{FORMAT}'")
        ahead: Sequence[tuple[float, float]] = [(when, seconds) for when, seconds in data["ahead"]]
        return RankRecord(data["rank"], data["clock"], tuple(ahead), data["began"], data["ended"],
                          tuple(map(CallRecord.from_json, data["communicators"]))), data["ranks"]
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ArgumentError("trace", f"{str(file)!r} holds no calls of hpccoll's: {error}"
                            ) from error
