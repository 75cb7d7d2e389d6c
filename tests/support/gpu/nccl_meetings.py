"""Where the ranks of :mod:`support.gpu.nccl` meet: what each calls, and what all get of it.

Ranks are objects of one process, or processes that find each other's calls in a folder.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple

import numpy

from hpccoll.testing.exact import MEANING, from_bfloat16, to_bfloat16
from support.gpu.streams import CudaError, GpuTask

#: NCCL's numbers of types and operators.
TYPES = {"INT8": 0, "CHAR": 0, "UINT8": 1, "INT32": 2, "INT": 2, "UINT32": 3, "INT64": 4,
         "UINT64": 5, "FLOAT16": 6, "HALF": 6, "FLOAT32": 7, "FLOAT": 7, "FLOAT64": 8, "DOUBLE": 8,
         "BFLOAT16": 9}
OPERATORS = {"SUM": 0, "PROD": 1, "MAX": 2, "MIN": 3, "AVG": 4}
#: How the double computes with them; bfloat16 in words.
DTYPES = ("i1", "u1", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "u2")
MEANINGS = ("sum", "prod", "max", "min")
BFLOAT16 = TYPES["BFLOAT16"]
#: Seconds between two looks into the folder, and until a rank gives another one up.
PAUSE, PATIENCE = 0.002, 60.0


class NcclPart(NamedTuple):
    """What one rank calls."""

    kind: str
    send: Any
    recv: Any
    count: int  # type: ignore[assignment]  # MPI's word; tuple.count is not used
    dtype: int
    op: int = -1
    root: int = -1

    @property
    def agreed(self) -> tuple[Any, ...]:
        """What has to be the same on all ranks."""
        return self.kind, self.count, self.dtype, self.op, self.root


class NcclMeeting:
    """A group of calls that all ranks of a communicator make, ranks being objects here."""

    #: Seconds that whoever waits gives the others: objects come before somebody waits, or never.
    patience = 0.0

    def __init__(self, size: int):
        self.size, self.done = size, False
        self.parts: dict[int, Sequence[NcclPart]] = {}
        self.after: list[GpuTask] = []
        self.left: set[int] = set()

    def join(self, rank: int, parts: Sequence[NcclPart], before: GpuTask) -> Sequence[GpuTask]:
        """A rank makes its calls, behind other work; returns what they come after."""
        self.parts[rank] = parts
        self.after.append(before)
        return self.after

    @property
    def missing(self) -> str:
        """The ranks that do not do their part, in words."""
        ranks = [self.name_of(rank) for rank in range(self.size)
                 if not self.has(rank) or rank in self.left and not self.done]
        return f"NCCL's ranks {ranks} do not call, or have left" if ranks else ""

    def name_of(self, seat: int) -> int:
        """The rank on a seat."""
        return seat

    def has(self, rank: int) -> bool:
        """Tell whether a rank has made its calls."""
        return rank in self.parts

    def perform(self, rank: int) -> None:
        """Do the calls of all ranks, once."""
        if not self.done:
            self.done = True
            for mine, results in enumerate(outcome([self.parts[r] for r in range(self.size)])):
                deliver(self.parts[mine], results)


class FolderMeeting(NcclMeeting):
    """The same where every rank is a process, and they meet in a folder."""

    patience = PATIENCE

    def __init__(self, size: int, path: Path):
        super().__init__(size)
        self.path = path

    def _file(self, rank: int, what: str) -> Path:
        return self.path.with_name(f"{self.path.name}-{rank}-{what}")

    def join(self, rank: int, parts: Sequence[NcclPart], before: GpuTask) -> Sequence[GpuTask]:
        """See :meth:`NcclMeeting.join`; what other ranks queue cannot be seen, but waited for."""
        self.parts[rank] = parts
        self._file(rank, "joined").touch()
        return [before]

    def has(self, rank: int) -> bool:
        """See :meth:`NcclMeeting.has`."""
        return rank in self.parts or self._file(rank, "joined").exists()

    def perform(self, rank: int) -> None:
        """Do this rank's part: the others' are read when they have come as far."""
        self.write(rank)
        deliver(self.parts[rank], outcome([self.read(other) for other in range(self.size)])[rank])

    def write(self, rank: int) -> None:
        """Show this rank's calls to the others."""
        mine = self._file(rank, "data")
        mine.with_suffix(".new").write_bytes(pickle.dumps([
            part._replace(recv=None) for part in self.parts[rank]]))
        mine.with_suffix(".new").rename(mine)

    def read(self, other: int) -> list[NcclPart]:
        """The calls of a rank, when it has come as far."""
        file, end = self._file(other, "data"), time.monotonic() + PATIENCE
        while not file.exists():
            if time.monotonic() > end:
                raise CudaError(f"NCCL's rank {self.name_of(other)} has called, and never comes")
            time.sleep(PAUSE)
        return list(pickle.loads(file.read_bytes()))


class MessageMeeting(NcclMeeting):
    """A message: the sender has seat 0, the receiver seat 1."""

    def __init__(self, ranks: tuple[int, int]):
        super().__init__(2)
        self.ranks = ranks

    def name_of(self, seat: int) -> int:
        """See :class:`NcclMeeting`."""
        return self.ranks[seat]

    def perform(self, rank: int) -> None:
        """Copy the message, once."""
        if not self.done:
            self.done = True
            self.receive(self.parts[0][0])

    def receive(self, sent: NcclPart) -> None:
        """Write what was sent to where the receiver wants it."""
        mine = self.parts[1][0]
        if (sent.count, sent.dtype) != (mine.count, mine.dtype):
            raise CudaError(f"NCCL: what rank {self.ranks[0]} sends is not what rank "
                            f"{self.ranks[1]} receives")
        mine.recv[...] = sent.send


class FolderMessage(MessageMeeting, FolderMeeting):
    """The same where every rank is a process."""

    def __init__(self, ranks: tuple[int, int], path: Path):
        FolderMeeting.__init__(self, 2, path)
        self.ranks = ranks

    def perform(self, rank: int) -> None:
        """Do this rank's part: send, or receive what has been sent."""
        if rank == 0:
            self.write(0)
        if rank == 1:
            self.receive(self.read(0)[0])


class Together(Sequence[GpuTask]):
    """The tasks of several lists, which may grow."""

    def __init__(self, lists: Sequence[Sequence[GpuTask]]):
        self.lists = lists

    def __getitem__(self, index: Any) -> Any:
        return [task for one in self.lists for task in one][index]

    def __len__(self) -> int:
        return sum(map(len, self.lists))


class Awaiting(GpuTask):
    """Calls of one rank in one group, on its stream."""

    __slots__ = ("seats",)

    def __init__(self, seats: Sequence[tuple[NcclMeeting, int]], after: Sequence[GpuTask]):
        super().__init__(self.perform, after)
        self.seats = seats

    def perform(self) -> None:
        """Make the calls that the rank has not left."""
        for meeting, seat in self.seats:
            if seat not in meeting.left:
                meeting.perform(seat)

    @property
    def missing(self) -> str:  # type: ignore[override]
        """See :class:`support.gpu.streams.GpuTask`."""
        return next((meeting.missing for meeting, seat in self.seats
                     if seat not in meeting.left and meeting.missing), "")

    def awaited(self) -> str:
        """See :class:`support.gpu.streams.GpuTask`."""
        end = time.monotonic() + max(meeting.patience for meeting, _ in self.seats)
        while (missing := self.missing) and time.monotonic() < end:
            time.sleep(PAUSE)
        return missing


def outcome(parts: Sequence[Sequence[NcclPart]]) -> list[list[numpy.ndarray | None]]:
    """What each rank gets by each of its collectives: flat arrays, ``None`` where nothing."""
    if len({len(mine) for mine in parts}) > 1:
        raise CudaError("NCCL: some ranks make fewer calls in a group")
    found: list[list[numpy.ndarray | None]] = [[] for _ in parts]
    for row in zip(*parts, strict=True):
        if len({one.agreed for one in row}) > 1:
            raise CudaError(f"NCCL: ranks call {sorted({one.agreed for one in row})}")
        for mine, result in zip(found, COLLECTIVES[row[0].kind](row), strict=True):
            mine.append(result)
    return found


def deliver(parts: Sequence[NcclPart], results: Sequence[numpy.ndarray | None]) -> None:
    """Write results to where a rank wants them."""
    for part, result in zip(parts, results, strict=True):
        if result is not None and part.recv is not None:
            part.recv[...] = result


def combined(parts: Sequence[NcclPart]) -> numpy.ndarray:
    """The contributions of all ranks, combined in their order."""
    one, terms = parts[0], [numpy.array(part.send) for part in parts]
    if one.op == OPERATORS["AVG"]:
        raise CudaError("no operator of MPI's")
    function = MEANING[MEANINGS[one.op]]
    with numpy.errstate(all="ignore"):
        if one.dtype == BFLOAT16:
            return to_bfloat16(reduce(function, map(from_bfloat16, terms)))
        return reduce(function, terms)


#: What every rank gets.
COLLECTIVES: Mapping[str, Callable[[Sequence[NcclPart]], list[numpy.ndarray | None]]] = {
    "allReduce": lambda parts: [combined(parts)] * len(parts),
    "reduce": lambda parts: [combined(parts) if rank == parts[0].root else None
                             for rank in range(len(parts))],
    "broadcast": lambda parts: [numpy.array(parts[parts[0].root].send)] * len(parts),
    "allGather": lambda parts: [numpy.concatenate([part.send for part in parts])] * len(parts),
    "reduceScatter": lambda parts: list(numpy.split(combined(parts), len(parts))),
}
