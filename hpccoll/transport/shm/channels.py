"""A node's shared memory: the channels between its ranks, and registered regions.

Every rank has one line of control memory, and a few slots for messages, for each channel to
another rank of the node. A region is further shared memory, whose arrays users get.

    channel = sender's line [word ... | where ... | nbytes ...] and its slots
              receiver's line [taken ...]

The messages of a channel are numbered from 1 and use the places in turn. ``word`` says that a
message lies there (its number, and its size if it is in the slot), ``taken`` that it was read.
"""

from __future__ import annotations

import atexit
import bisect
import ctypes
import os
import platform
import secrets
from collections.abc import Callable, Sequence
from typing import Any

import numpy
from mpi4py import MPI

from hpccoll.transport.shm.mapping import share

#: Tags that have channels: those of blocking calls, and so many for each other purpose.
CHANNELS = 2
#: Bytes of one rank's lines, which say how many purposes have channels.
LINES_BYTES = 64 << 10
#: Bytes of a slot for anything but blocking calls.
OTHER_SLOT = 16 << 10
#: Places of a channel; a power of two, at most 5 to fit a line.
PLACES = 4
LAST = PLACES - 1
#: Bytes of slots per rank, shared out among its channels, and the least for one slot.
SLOTS_BYTES, LEAST_SLOT = 12 << 20, 4 << 10
#: Bytes of a cache line, with room for adjacent-line prefetching.
LINE = 128
#: A word is a message's number above its size; the largest size means: see the line.
SIZE_BITS = 24
ELSEWHERE = (1 << SIZE_BITS) - 1
#: A region's number is kept in the upper bits of ``where``, the offset in the lower.
OFFSET_BITS = 48

#: The window whose ``MPI_Win_sync`` is this process's memory barrier, once it has needed one. Not
#: one for each communicator: nobody frees COMM_WORLD, so its window would be left when MPI ends.
_windows: list[MPI.Win] = []


class Channel:
    """One direction between two ranks, seen from either side."""

    def __init__(self, line: memoryview, taken: memoryview, slots: Sequence, tag: int,
                 fence: Callable[[], Any] | None):
        self.line, self.taken, self.slots, self.tag, self.fence = line, taken, slots, tag, fence
        self.sent = self.received = 0
        #: Seconds that a byte takes into a slot, lately; other messages may be faster unslotted.
        self.limits = 0.0


class Region:
    """Shared memory that users' arrays live in."""

    def __init__(self, memory: list[numpy.ndarray], rank: int, number: int):
        self.memory, self.mine, self.number = memory, memory[rank], number
        self.start = MPI.Get_address(self.mine) if self.mine.nbytes else 0
        self.stop = self.start + self.mine.nbytes


class SharedNode:
    """The ranks of a communicator that share memory with this one; making it is collective.

    Args:
        comm: the communicator.
        near: this rank's part of its split by nodes; freed with this object.
        most_slot: largest message to copy into a slot, in bytes; less where there are many ranks.
        sure_slot: up to so many bytes, messages always go through slots; above, where that is
            faster than reading them from the sender's memory.
        more: first of ``CHANNELS`` tags each, which get channels too, as long as there is room
            for their lines.

    Attributes:
        comm: communicator of the node's ranks.
        local: index in ``comm`` of every other rank of the node, by rank in the communicator;
            empty where there is no shared memory.
        slot_bytes: largest message that is copied into a slot.
    """

    def __init__(self, comm: MPI.Intracomm, near: MPI.Intracomm, most_slot: int,
                 sure_slot: int, more: Sequence[int] = ()):
        self.comm, self.rank = near, near.Get_rank()
        told = near.allgather((comm.Get_rank(), os.getpid()))
        self.pids = [pid for _, pid in told]
        self.slot_bytes = _slot_bytes(len(told), most_slot)
        self.sure_bytes = min(sure_slot, self.slot_bytes)
        most = LINES_BYTES // (len(told) * CHANNELS * 2 * LINE)
        #: Every tag that has channels, by its place in memory.
        self.tags = {tag: place for place, tag in enumerate(
            first + next_ for first in (0, *more[:most]) for next_ in range(CHANNELS))}
        self.lines = len(told) * len(self.tags) * 2 * LINE
        slots = CHANNELS * self.slot_bytes + (len(self.tags) - CHANNELS) * OTHER_SLOT
        self.shared = share(near, self.lines + len(told) * PLACES * slots, self.lines)
        self.local = {rank: i for i, (rank, _) in enumerate(told)
                      if i != self.rank and self.shared}
        self.channels: dict[tuple, Channel] = {}
        self.regions: dict[int, Region] = {}
        self.starts: list[tuple[int, int]] = []
        self.fence = _fence() if self.local else None
        self.readv = self._probe() if self.local else None

    def outgoing(self, peer: int, tag: int) -> Channel:
        """The channel from this rank to a peer."""
        return self._channel(self.rank, self.local[peer], tag)

    def incoming(self, peer: int, tag: int) -> Channel:
        """The channel from a peer to this rank."""
        return self._channel(self.local[peer], self.rank, tag)

    def sure(self, tag: int) -> int:
        """Bytes up to which messages with a tag always go through slots; 0 without channels."""
        place = self.tags.get(tag, -1)
        return (0 if place < 0 else self.sure_bytes if place < CHANNELS else
                min(self.sure_bytes, OTHER_SLOT))

    def _channel(self, source: int, sink: int, tag: int) -> Channel:
        key = source, sink, tag
        if key not in self.channels:
            parts, place, ranks = self.shared.parts, self.tags[tag], len(self.pids)
            line = 2 * LINE * (sink * len(self.tags) + place)
            taken = 2 * LINE * (source * len(self.tags) + place) + LINE
            slot_bytes, slots = self.slot_bytes, self.lines + PLACES * (
                sink * CHANNELS + place) * self.slot_bytes
            if place >= CHANNELS:
                slot_bytes, slots = OTHER_SLOT, self.lines + PLACES * (
                    ranks * CHANNELS * self.slot_bytes
                    + (sink * (len(self.tags) - CHANNELS) + place - CHANNELS) * OTHER_SLOT)
            memory = parts[source][slots:slots + PLACES * slot_bytes]
            if source == self.rank and not self.shared.populate(slots, memory.nbytes):
                memory = memory[:0]  # no room: this sender does without slots
            self.channels[key] = Channel(
                memoryview(parts[source][line:line + LINE]).cast("q"),
                memoryview(parts[sink][taken:taken + LINE]).cast("q"),
                list(memory.reshape(PLACES, slot_bytes)) if memory.size else [],
                tag, self.fence)
        return self.channels[key]

    # -- registered memory -------------------------------------------------------------------
    def allocate(self, nbytes: int) -> Region | None:
        """Allocate registered memory; collective over the node, sizes may differ.

        Returns:
            ``None``, on every rank, where the node has no room for it.
        """
        shared = share(self.comm, nbytes)
        if shared is None:
            return None
        region = Region(shared.parts, self.rank, len(self.regions) + 1)
        self.regions[region.number] = region
        if nbytes:
            bisect.insort(self.starts, (region.start, region.number))
        return region

    def locate(self, array: numpy.ndarray) -> int | None:
        """The place of an array in registered memory; ``None`` if it is not there."""
        address = array.__array_interface__["data"][0]
        place = bisect.bisect_right(self.starts, (address, len(self.regions) + 1)) - 1
        if place < 0:
            return None
        found = self.regions[self.starts[place][1]]
        if address + array.nbytes > found.stop:
            return None
        return found.number << OFFSET_BITS | address - found.start

    def region(self, peer: int, where: int, nbytes: int) -> numpy.ndarray:
        """Bytes of a peer's registered memory."""
        offset = where & ((1 << OFFSET_BITS) - 1)
        return self.regions[where >> OFFSET_BITS].memory[self.local[peer]][offset:offset + nbytes]

    # -- other processes' memory -------------------------------------------------------------
    def read_private(self, peer: int, address: int, into: Any) -> None:
        """Copy memory of a peer's process into an array.

        The vectors are this call's own: the progress thread may be reading, too.
        """
        pid, left = self.pids[self.local[peer]], into.nbytes
        mine = into.__array_interface__["data"][0]
        while left:
            # Linux copies 2 GiB less a page at most.
            got = self.readv(pid, _Vector(mine, left), 1, _Vector(address, left), 1, 0)
            if got <= 0:
                error = ctypes.get_errno()
                raise OSError(error, f"cannot read memory of rank {peer}: {os.strerror(error)}")
            mine, address, left = mine + got, address + got, left - got

    def _probe(self) -> Any:
        """``process_vm_readv``, if every rank of the node may read the others' memory.

        In containers, ranks can have the same process number and the same addresses, and would
        read their own memory; so what they look for is different on every rank.
        """
        mark = secrets.token_bytes(64)
        address = numpy.frombuffer(mark, numpy.uint8).__array_interface__["data"][0]
        told = self.comm.allgather((address, mark))
        worked, readv = True, None
        try:
            readv = ctypes.CDLL(None, use_errno=True).process_vm_readv
            readv.restype = ctypes.c_ssize_t
            readv.argtypes = (ctypes.c_int, ctypes.POINTER(_Vector), ctypes.c_ulong,
                              ctypes.POINTER(_Vector), ctypes.c_ulong, ctypes.c_ulong)
            self.readv = readv
            copy = numpy.zeros(len(mark), numpy.uint8)
            for peer, index in self.local.items():
                address, wanted = told[index]
                self.read_private(peer, address, copy)
                worked &= copy.tobytes() == wanted
        except (OSError, AttributeError):
            worked = False
        return readv if self.comm.allreduce(worked, MPI.MIN) else None

    def free(self) -> None:
        """Give up the shared memory; collective over the node. Arrays in it stay valid."""
        self.channels.clear()
        self.regions.clear()
        self.starts.clear()
        self.comm.Free()


def _slot_bytes(ranks: int, most: int) -> int:
    """Bytes of one slot on a node of so many ranks."""
    share = SLOTS_BYTES // (PLACES * CHANNELS * max(ranks - 1, 1))
    return min(max(share // LINE * LINE, LEAST_SLOT), most)


def _fence() -> Callable[[], Any] | None:
    """A memory barrier, where one is needed; see decision 0006."""
    if platform.machine() in ("x86_64", "AMD64", "i686"):
        return None
    if not _windows:
        _windows.append(MPI.Win.Allocate(8, 1, comm=MPI.COMM_SELF))
        _windows[0].Lock_all(MPI.MODE_NOCHECK)  # MPI_Win_sync wants an access epoch
        # MPI_Finalize deletes the attributes of this communicator before it does anything else.
        MPI.COMM_SELF.Set_attr(MPI.Comm.Create_keyval(delete_fn=_free_window), True)
    return _windows[0].Sync


# For programs that do not call MPI_Finalize: mpi4py does when the interpreter has gone, without
# callbacks. Registered this early, it comes after what programs themselves do at their end.
@atexit.register
def _free_window(*_: Any) -> None:
    """Free this process's window, if there is one: MPICH minds one that is left at the end."""
    while _windows:
        window = _windows.pop()
        window.Unlock_all()
        window.Free()


class _Vector(ctypes.Structure):
    """``struct iovec``."""

    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]
