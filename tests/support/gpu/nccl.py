"""A double of CuPy's module of NCCL, with NCCL's rules.

    machine = Devices(4)
    with installed(True, machine) as cupy:
        cupy.cuda.nccl = library(machine)

Ranks are objects of one process, on the devices of one machine; or processes with a machine each,
which meet in a ``folder``. A call is queued on its stream, and happens when all ranks have made
theirs and what is before it on all their streams has: nothing then comes too early, and a rank
that waits for one that never comes waits for ever, which is an error here.

It refuses what NCCL refuses - ranks that share a GPU, its communicator after an abort - and, since
NCCL may do anything then, ranks whose calls differ, memory that is none of the GPU's, and buffers
that overlap in another way than NCCL's own "in place". The n-th message from a rank to another one
is the n-th that the other one receives from it, in whichever groups.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy

from support.gpu.nccl_meetings import (
    DTYPES,
    OPERATORS,
    TYPES,
    Awaiting,
    FolderMeeting,
    FolderMessage,
    MessageMeeting,
    NcclMeeting,
    NcclPart,
    Together,
)
from support.gpu.streams import CudaError, Devices, Stream


class NcclError(RuntimeError):
    """What NCCL refuses, or what a rule forbids."""


class Shared:
    """What the ranks of all communicators of one machine share; thread safe."""

    def __init__(self, machine: Devices, shift: int, folder: Path | None, version: int):
        self.machine, self.shift, self.folder, self.version = machine, shift, folder, version
        self.lock, self.numbers = threading.Lock(), 0
        self.meetings: dict[Any, NcclMeeting] = {}
        self.users: dict[Any, dict[int, int]] = {}
        self.depth = threading.local()

    def unique_id(self) -> bytes:
        """The name of a new communicator."""
        with self.lock:
            self.numbers += 1
            return b"%d-%d" % (os.getpid(), self.numbers)

    def meeting(self, key: bytes, number: int, size: int) -> NcclMeeting:
        """The place where all ranks meet for their collectives in a group."""
        return self._place((key, number), lambda: NcclMeeting(size), lambda folder: FolderMeeting(
            size, folder / f"{key.decode()}-{number}"))

    def message(self, key: bytes, ranks: tuple[int, int], number: int) -> NcclMeeting:
        """The place where a sender and a receiver meet for a message."""
        return self._place((key, ranks, number), lambda: MessageMeeting(ranks),
                           lambda folder: FolderMessage(ranks, folder / (
                               f"{key.decode()}-{ranks[0]}to{ranks[1]}-{number}")))

    def _place(self, where: Any, here: Callable[[], NcclMeeting],
               there: Callable[[Path], NcclMeeting]) -> NcclMeeting:
        with self.lock:
            if where not in self.meetings:
                self.meetings[where] = here() if self.folder is None else there(self.folder)
            return self.meetings[where]

    def memory(self, address: int, count: int, dtype: int, device: int) -> numpy.ndarray:
        """Memory of a device, which is kept as CuPy's pool does, until the stream is past it."""
        nbytes = count * numpy.dtype(DTYPES[dtype]).itemsize
        where = self.machine.memory_at(address - self.shift, nbytes, device)
        if where is None:
            raise CudaError(f"illegal memory access: {nbytes} bytes at {address:#x} are none of "
                            f"device {device}")
        return where.view(DTYPES[dtype])

    def stream(self, ptr: int) -> Stream:
        """The stream behind a number; 0 is that of the current device."""
        for reference in self.machine.streams:
            one = reference()
            if one is not None and one.ptr == ptr:
                return one
        return self.machine.nulls[self.machine.device]

    def open(self) -> list[tuple[Communicator, Stream, NcclPart]] | None:
        """The calls of a group that this thread has begun; ``None`` outside of one."""
        stack = getattr(self.depth, "calls", None)
        return stack[0] if stack else None

    def start(self) -> None:
        """Begin a group; groups in groups are one."""
        if not getattr(self.depth, "calls", None):
            self.depth.calls = []
        self.depth.calls.append([])

    def end(self) -> None:
        """End a group: its calls are queued."""
        if not getattr(self.depth, "calls", None):
            raise NcclError("NCCL_ERROR_INVALID_USAGE: groupEnd without groupStart")
        calls = self.depth.calls[0]
        self.depth.calls.pop()
        if self.depth.calls:
            return
        for comm in dict.fromkeys(one for one, _, _ in calls):
            mine = [(stream, part) for one, stream, part in calls if one is comm]
            comm.enqueue(mine[0][0], [part for _, part in mine])


class Communicator:
    """One rank of an NCCL communicator."""

    def __init__(self, shared: Shared, ndev: int, commId: bytes, rank: int):
        shared.machine.called("ncclCommInitRank")
        self.shared, self.key, self.number = shared, commId, 0
        self._size, self._rank, self.device = ndev, rank, shared.machine.device
        users = shared.users.setdefault(self.key, {})
        if shared.folder is None and self.device in users.values() and not (
                shared.version >= 23000 and os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE") == "1"):
            raise NcclError("NCCL_ERROR_INVALID_USAGE: Duplicate GPU detected")
        users[rank] = self.device
        self.ended = ""
        self.own: list[Awaiting] = []
        self.messages: Counter[tuple[str, int]] = Counter()
        shared.machine.held["communicators"] += 1

    def rank_id(self) -> int:
        """This rank."""
        return self._rank

    def size(self) -> int:
        """How many there are."""
        return self._size

    def device_id(self) -> int:
        """The device that it is for."""
        return self.device

    def check_async_error(self) -> None:
        """Raise what went wrong meanwhile."""
        self._usable()
        self.shared.machine.called("ncclAsyncError")

    def abort(self) -> None:
        """End whatever is queued; it is as if it had been done, but for its results."""
        for task in self.own:
            if not task.done:
                for meeting, seat in task.seats:
                    meeting.left.add(seat)
        self._end("aborted")

    def destroy(self) -> None:
        """Give it back."""
        self._usable()
        if any(not task.done for task in self.own):
            raise CudaError("ncclCommDestroy: calls are still under way")
        self._end("destroyed")

    def _end(self, how: str) -> None:
        if not self.ended:
            self.shared.machine.held["communicators"] -= 1
        self.ended = how

    def _usable(self) -> None:
        if self.ended:
            raise NcclError(f"NCCL_ERROR_INVALID_ARGUMENT: the communicator was {self.ended}")

    def enqueue(self, stream: Stream, parts: Sequence[NcclPart]) -> None:
        """Queue calls that are one."""
        self._usable()
        if stream.device_id != self.device:
            raise CudaError(f"a stream of device {stream.device_id} for NCCL on {self.device}")
        for one in parts:
            if one.kind == "recv" and any(
                    numpy.may_share_memory(one.recv, other.send)
                    for other in parts if other.kind == "send"):
                raise CudaError("NCCL: what is sent lies where something is received")
        seats = self._seats(parts)
        stream.push(_nothing)
        if stream.graph is not None:
            return
        task = Awaiting([(meeting, seat) for meeting, seat, _ in seats], Together(
            [meeting.join(seat, mine, stream.last) for meeting, seat, mine in seats]))
        self.own = [one for one in self.own if not one.done] + [task]
        with self.shared.machine.lock:
            self.shared.machine.pending.append(task)
            stream.last = task

    def _seats(self, parts: Sequence[NcclPart]
               ) -> list[tuple[NcclMeeting, int, Sequence[NcclPart]]]:
        """Where this rank meets others for the calls of a group, and its calls there."""
        found: list[tuple[NcclMeeting, int, Sequence[NcclPart]]] = []
        whole = [part for part in parts if part.kind not in ("send", "recv")]
        if whole:
            found.append((self.shared.meeting(self.key, self.number, self._size), self._rank,
                          whole))
            self.number += 1
        for part in parts:
            if part.kind in ("send", "recv"):
                seat, number = int(part.kind == "recv"), self.messages[part.kind, part.root]
                ranks = (self._rank, part.root) if seat == 0 else (part.root, self._rank)
                found.append((self.shared.message(self.key, ranks, number), seat, [part]))
                self.messages[part.kind, part.root] += 1
        return found

    def _call(self, kind: str, send: int, recv: int, count: int, datatype: int, op: int, root: int,
              stream: int, blocks: tuple[int, int] = (1, 1)) -> None:
        """Make a call; ``blocks`` of what is sent and received have ``count`` elements each."""
        self.shared.machine.called(kind)
        self._usable()
        size = count * numpy.dtype(DTYPES[datatype]).itemsize
        if send and recv and send < recv + blocks[1] * size and recv < send + blocks[0] * size:
            small, large = (send, recv) if blocks[0] < blocks[1] else (recv, send)
            if small != large + (blocks[0] != blocks[1]) * self._rank * size:
                raise CudaError(f"{kind}: buffers overlap, and not as NCCL's in place does")
        memory = [self.shared.memory(address, number * count, datatype, self.device)
                  if address else None for address, number in zip((send, recv), blocks,
                                                                 strict=True)]
        part = NcclPart(kind, memory[0], memory[1], count, datatype, op, root)
        where, group = self.shared.stream(stream), self.shared.open()
        if group is None:
            self.enqueue(where, [part])
        else:
            group.append((self, where, part))

    def allReduce(self, sendbuf: int, recvbuf: int, count: int, datatype: int, op: int,
                  stream: int) -> None:
        """Combine on all ranks."""
        self._call("allReduce", sendbuf, recvbuf, count, datatype, op, -1, stream)

    def reduce(self, sendbuf: int, recvbuf: int, count: int, datatype: int, op: int, root: int,
               stream: int) -> None:
        """Combine at the root."""
        self._call("reduce", sendbuf, recvbuf if self._rank == root else 0, count, datatype, op,
                   root, stream)

    def broadcast(self, sendbuff: int, recvbuff: int, count: int, datatype: int, root: int,
                  stream: int) -> None:
        """Copy the root's."""
        self._call("broadcast", sendbuff if self._rank == root else 0, recvbuff, count, datatype,
                   -1, root, stream)

    def allGather(self, sendbuf: int, recvbuf: int, count: int, datatype: int, stream: int) -> None:
        """Collect one block of every rank."""
        self._call("allGather", sendbuf, recvbuf, count, datatype, -1, -1, stream,
                   (1, self._size))

    def reduceScatter(self, sendbuf: int, recvbuf: int, recvcount: int, datatype: int, op: int,
                      stream: int) -> None:
        """Combine, a block to every rank."""
        self._call("reduceScatter", sendbuf, recvbuf, recvcount, datatype, op, -1, stream,
                   (self._size, 1))

    def send(self, sendbuf: int, count: int, datatype: int, peer: int, stream: int) -> None:
        """Send to a rank."""
        self._call("send", sendbuf, 0, count, datatype, -1, peer, stream)

    def recv(self, recvbuf: int, count: int, datatype: int, peer: int, stream: int) -> None:
        """Receive from a rank."""
        self._call("recv", 0, recvbuf, count, datatype, -1, peer, stream)


def library(machine: Devices, shift: int = 0, folder: Path | None = None,
            version: int = 22703) -> SimpleNamespace:
    """The module, for a machine; ``shift`` as in :func:`support.gpu.device.module`."""
    shared = Shared(machine, shift, folder, version)

    def communicator(ndev: int, commId: bytes, rank: int) -> Communicator:
        return Communicator(shared, ndev, commId, rank)

    return SimpleNamespace(
        available=True, NcclCommunicator=communicator,
        get_unique_id=lambda: shared.unique_id(), get_version=lambda: version,
        groupStart=lambda: shared.start(), groupEnd=lambda: shared.end(),
        **{f"NCCL_{name}": number for name, number in (*TYPES.items(), *OPERATORS.items())})


def _nothing() -> None:
    """The place of a call in its stream."""
