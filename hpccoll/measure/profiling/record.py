"""Record of a rank's calls: start, end and kind of each.

    RankRecord (process) --has--> CallRecord (communicator) --has--> CallKind, three numbers a call

Times are those of :func:`time.perf_counter`. The last :data:`KEPT` calls of a communicator are
kept individually, earlier ones as sums. A file for each rank stores them after the job:

    HPCCOLL_TRACE=FOLDER  -->  FOLDER/calls-JOB-rankR.json on every rank  -->  read(FOLDER)
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy

from hpccoll import record_file

#: Calls of a communicator that are kept individually.
KEPT = 200_000
#: Numbers per call: its kind, start and end.
WIDTH = 3
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
    """Calls of a kind on one rank: their number, and seconds in them and in their waits."""

    calls: int
    seconds: float
    waited: float = 0.0


class Rows(Protocol):
    """Compiled recorder of calls."""

    def drain(self) -> bytes:
        """Return and remove the recorded calls: three numbers each."""


class EventRecorder(Protocol):
    """Recorder of moments inside of calls."""

    def as_json(self) -> dict[str, Any]:
        """Return plain data, see :mod:`hpccoll.runtime.events.phase_events`."""


class CallRecord:
    """The calls of one communicator on one rank.

    Args:
        ranks: its ranks, as numbers of ``COMM_WORLD``.
        number: of the communicator among those of the same ranks.

    Attributes:
        kinds: by their numbers in ``times``.
        ordered: number of earlier calls that all ranks make in one order.
        earlier: calls that are not kept, and their seconds, by kind.
        waited: seconds in waits for requests, by kind.
        rows: compiled recorder of calls that are not in ``times`` yet.
        moments: recorder of moments inside of calls, if any.
        noted: the same as plain data, of a record from a file.
    """

    def __init__(self, name: str, ranks: tuple[int, ...], number: int = 0):
        self.name, self.ranks, self.number = name, ranks, number
        self.kinds: list[CallKind] = []
        self.times = array("d")
        self.ordered = 0
        self.earlier: dict[int, CallSums] = {}
        self.waited: dict[int, float] = {}
        self.rows: Rows | None = None
        self.moments: EventRecorder | None = None
        self.noted: Mapping[str, Any] | None = None
        self._numbers: dict[CallKind, int] = {}

    def number_of(self, kind: CallKind) -> int:
        number = self._numbers.get(kind)
        if number is None:
            number = self._numbers[kind] = len(self.kinds)
            self.kinds.append(kind)
        return number

    def add(self, kind: int, start: float, stop: float) -> None:
        self.take()
        self.times.extend((kind, start, stop))
        if len(self.times) > 2 * KEPT * WIDTH:
            self._sum_up(KEPT)

    def take(self) -> None:
        """Move the calls from the compiled recorder into this record."""
        if self.rows is not None:
            self.absorb(self.rows.drain())

    def absorb(self, data: bytes) -> None:
        """Record calls given as three numbers each."""
        self.times.frombytes(data)
        if len(self.times) > 2 * KEPT * WIDTH:
            self._sum_up(KEPT)

    def add_wait(self, kind: int, start: float, stop: float) -> None:
        one = self.kinds[kind]
        self.waited[kind] = self.waited.get(kind, 0.0) + stop - start
        self.add(self.number_of(one._replace(title=one.title + WAIT)), start, stop)

    def forget(self, kept: int) -> None:
        """Keep the last calls, and add the earlier ones to the sums."""
        self.take()
        self._sum_up(kept)

    def _sum_up(self, kept: int) -> None:
        cut = max(len(self.times) // WIDTH - kept, 0)
        old = numpy.array(self.times[:cut * WIDTH]).reshape(-1, WIDTH)
        for kind, sums in _sum_calls(old).items():
            known = self.earlier.get(kind, CallSums(0, 0.0))
            self.earlier[kind] = CallSums(known.calls + sums.calls, known.seconds + sums.seconds)
        self.ordered += int(ordered_kinds(self.kinds)[old[:, 0].astype(int)].sum())
        del self.times[:cut * WIDTH]

    def calls(self) -> numpy.ndarray:
        """Return the kept calls, one per row: kind, start, end."""
        self.take()
        return numpy.array(self.times).reshape(-1, WIDTH)

    def sums(self) -> dict[int, CallSums]:
        found = _sum_calls(self.calls())
        every = {*found, *self.earlier, *self.waited}
        none = CallSums(0, 0.0)
        pairs = {kind: (found.get(kind, none), self.earlier.get(kind, none)) for kind in every}
        return {kind: CallSums(new.calls + old.calls, new.seconds + old.seconds,
                               self.waited.get(kind, 0.0)) for kind, (new, old) in pairs.items()}

    def as_json(self) -> dict[str, Any]:
        """Return plain data."""
        self.take()
        return {"name": self.name, "ranks": list(self.ranks), "number": self.number,
                "kinds": [list(kind) for kind in self.kinds], "ordered": self.ordered,
                "earlier": {str(kind): list(sums) for kind, sums in self.earlier.items()},
                "waited": {str(kind): seconds for kind, seconds in self.waited.items()},
                "times": list(self.times)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CallRecord:
        """Construct a record from the output of :meth:`as_json`."""
        self = cls(data["name"], tuple(data["ranks"]), data["number"])
        for kind in data["kinds"]:
            self.number_of(CallKind(*kind))
        self.ordered, self.times = data["ordered"], array("d", data["times"])
        self.earlier = {int(kind): CallSums(*sums) for kind, sums in data["earlier"].items()}
        self.waited = {int(kind): seconds for kind, seconds in data["waited"].items()}
        self.noted = data.get("noted")
        return self


def ordered_kinds(kinds: list[CallKind]) -> numpy.ndarray:
    """Return a mask of the kinds whose calls all ranks make in one order."""
    return numpy.array([not kind.title.endswith((INIT, WAIT)) for kind in kinds], bool)


def _sum_calls(calls: numpy.ndarray) -> dict[int, CallSums]:
    kinds = calls[:, 0].astype(int)
    counts = numpy.bincount(kinds)
    seconds = numpy.bincount(kinds, calls[:, 2] - calls[:, 1])
    return {int(kind): CallSums(int(counts[kind]), float(seconds[kind]))
            for kind in numpy.flatnonzero(counts)}


class RankRecord(NamedTuple):
    """All records of one rank.

    Attributes:
        rank: in ``COMM_WORLD``.
        clock: name of its clock; ranks with one name read the same.
        ahead: times of this rank, and how far the clock of rank 0 was ahead then.
    """

    rank: int
    clock: str
    ahead: tuple[tuple[float, float], ...]
    began: float
    ended: float
    communicators: tuple[CallRecord, ...]


# -- a file for each rank ----------------------------------------------------------------------
def save(folder: str, record: RankRecord, job: str, ranks: int) -> None:
    """Write the file of one of ``ranks`` ranks."""
    record_file.write(record_file.path_of(folder, record_file.CALLS, job, record.rank),
                      record_file.CALLS, {
        "job": job, "ranks": ranks, **record._asdict(),
        "communicators": list(map(_record_as_json, record.communicators))})


def _record_as_json(record: CallRecord) -> dict[str, Any]:
    """Return a complete record as plain data, with rounded times."""
    data = record.as_json()
    data["times"] = [round(seconds, 9) for seconds in data["times"]]
    return data if record.moments is None else {**data, "noted": record.moments.as_json()}


def read(folder: Path) -> tuple[list[RankRecord], int]:
    """Return the newest job's records in a folder, and its number of ranks."""
    found = [record_file.read(file, record_file.CALLS, _parse)
             for file in record_file.newest(folder, record_file.CALLS)]
    return [record for record, _ in found], max(ranks for _, ranks in found)


def _parse(data: Mapping[str, Any]) -> tuple[RankRecord, int]:
    ahead = tuple((when, seconds) for when, seconds in data["ahead"])
    return RankRecord(data["rank"], data["clock"], ahead, data["began"], data["ended"],
                      tuple(map(CallRecord.from_json, data["communicators"]))), data["ranks"]
