"""Records of a rank's calls, read from the ring of events: start, end and kind of each.

    RankRecord (process) --has--> CallRecord (communicator) --has--> CallKind, three numbers a call

Times are those of :func:`time.perf_counter`. The ring keeps the last calls individually, and sums
of all. A file for each rank stores them after the job:

    HPCCOLL_TRACE=FOLDER  -->  FOLDER/calls-JOB-rankR.json on every rank  -->  read(FOLDER)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy

from hpccoll import record_file
from hpccoll.runtime.events.ring import CALL, EventRing

#: Suffixes of starts of persistent requests, and of waits for requests: in no fixed order.
INIT, WAIT = "_init", " wait"
#: Size of a call on objects, which is unknown.
OBJECTS = -1


class CallKind(NamedTuple):
    """Common properties of calls.

    Attributes:
        title: the method in lower case, ``allreduce_init`` for a start of such a request,
            ``iallreduce wait`` for a wait for one, ``bcast of objects`` for a lower-case method.
        nbytes: of the larger buffer; :data:`OBJECTS` if there is none.
        what: type and operator, if known.
        root: -1 if there is none.
    """

    title: str
    nbytes: int
    what: str
    root: int
    served: str


class CallSums(NamedTuple):
    """All calls of a kind on one rank: their number, and seconds in them."""

    calls: int
    seconds: float


class CommName(NamedTuple):
    """A communicator: its ranks in ``COMM_WORLD``, and its number among those of these ranks."""

    name: str
    ranks: tuple[int, ...]
    number: int = 0


@dataclass(frozen=True)
class CallRecord:
    """The calls of one communicator on one rank.

    Attributes:
        name, ranks, number: see :class:`CommName`.
        kinds: by their numbers in ``calls`` and ``sums``.
        sums: of all calls.
        calls: the last calls, one per row: kind, start, end.
        ordered: number of earlier calls that all ranks make in one order.
        phases: recorded inside the calls, if any; see :mod:`hpccoll.runtime.events.phase_events`.
    """

    name: str
    ranks: tuple[int, ...]
    number: int
    kinds: Sequence[CallKind]
    sums: Sequence[CallSums]
    calls: numpy.ndarray
    ordered: int = 0
    phases: Mapping[str, Any] | None = None

    def last(self, kept: int) -> CallRecord:
        """Return the record with the last calls only, without phases."""
        cut = max(len(self.calls) - kept, 0)
        earlier = ordered_kinds(self.kinds)[self.calls[:cut, 0].astype(int)]
        return replace(self, calls=self.calls[cut:], ordered=self.ordered + int(earlier.sum()),
                       phases=None)

    def as_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {"name": self.name, "ranks": self.ranks, "number": self.number,
                "kinds": self.kinds, "sums": self.sums, "ordered": self.ordered,
                "calls": numpy.round(self.calls, 9).ravel().tolist(), "phases": self.phases}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CallRecord:
        """Construct a record from the output of :meth:`as_json`."""
        return cls(data["name"], tuple(data["ranks"]), data["number"],
                   [CallKind(*kind) for kind in data["kinds"]],
                   [CallSums(*sums) for sums in data["sums"]],
                   numpy.array(data["calls"], float).reshape(-1, 3), data["ordered"],
                   data["phases"])


def records_of(ring: EventRing, comms: Sequence[CommName],
               phases: Mapping[int, Any]) -> tuple[CallRecord, ...]:
    """Return the records of communicators, by their numbers in the ring."""
    calls, kinds = ring.events(CALL), ring.kinds
    found = []
    for comm, named in enumerate(comms):
        numbers = [number for number in range(1, len(kinds)) if kinds[number][0] == comm]
        mine = calls[calls["comm"] == comm]
        rows = numpy.stack([numpy.searchsorted(numbers, mine["what"]) * 1.0, mine["start"] / 1e9,
                            mine["stop"] / 1e9], 1)
        turns = mine["number"][mine["number"] >= 0]
        inside = phases.get(comm)
        found.append(CallRecord(
            *named, [kinds[number][1] for number in numbers],
            [CallSums(calls, nanoseconds / 1e9)
             for calls, nanoseconds in ring.sums[numbers].tolist()],
            rows, int(turns.min()) if len(turns) else int(ring.ordered[comm]),
            inside.as_json() if inside is not None else None))
    return tuple(found)


def ordered_kinds(kinds: Sequence[CallKind]) -> numpy.ndarray:
    """Return a mask of the kinds whose calls all ranks make in one order."""
    return numpy.array([not kind.title.endswith((INIT, WAIT)) for kind in kinds], bool)


class RankRecord(NamedTuple):
    """All records of one rank.

    Attributes:
        rank: in ``COMM_WORLD``.
        clock: name of its clock; ranks with one name read the same.
        ahead: times of this rank, and how far the clock of rank 0 was ahead then.
        spans: of training, as of :meth:`~hpccoll.runtime.events.ring.EventRing.spans`.
    """

    rank: int
    clock: str
    ahead: tuple[tuple[float, float], ...]
    began: float
    ended: float
    communicators: tuple[CallRecord, ...]
    spans: Sequence[tuple[int, str, str, float, float, int, float]] = ()


# -- a file for each rank ----------------------------------------------------------------------
def save(folder: str, record: RankRecord, job: str, ranks: int) -> None:
    """Write the file of one of ``ranks`` ranks."""
    record_file.write(record_file.path_of(folder, record_file.CALLS, job, record.rank),
                      record_file.CALLS, {
        "job": job, "ranks": ranks, **record._asdict(),
        "communicators": [one.as_json() for one in record.communicators]})


def read(folder: Path) -> tuple[list[RankRecord], int]:
    """Return the newest job's records in a folder, and its number of ranks."""
    found = [record_file.read(file, record_file.CALLS, _parse)
             for file in record_file.newest(folder, record_file.CALLS)]
    return [record for record, _ in found], max(ranks for _, ranks in found)


def _parse(data: Mapping[str, Any]) -> tuple[RankRecord, int]:
    ahead = tuple((when, seconds) for when, seconds in data["ahead"])
    return RankRecord(data["rank"], data["clock"], ahead, data["began"], data["ended"],
                      tuple(map(CallRecord.from_json, data["communicators"])),
                      data["spans"]), data["ranks"]
