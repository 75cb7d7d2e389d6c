"""A node's shared memory: the channels between its ranks, and registered regions.

For each channel to another rank of the node, a rank has one line of control memory and a few cells
that messages are copied through: small cells for short messages, and others, whose memory exists
as far as messages have needed it. A region is further shared memory, whose arrays users get.

    channel = sender's line [word ... | where ... | nbytes ... | call hash ...] and its cells
              receiver's line [taken ... | asleep for a message | asleep for a cell |
                               cost of reads | cost of copies out of cells]

The messages of a channel are numbered from 1 and use the places of the line in turn. ``word``
announces a message: its number, and its size if it is in the cell of that place, mixed with the
first bits of its call hash (:mod:`hpccoll.transport.call_hashes`). ``taken`` is the number of the
last message that was read there. Ranks on shared cores sleep, and their peers wake them.
"""

from __future__ import annotations

import bisect
import ctypes
import os
import platform
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, cast

import numpy
from mpi4py import MPI

from hpccoll.errors import SharedMemoryError
from hpccoll.transport.shm.mapping import SharedMemory, share

#: What ``ndarray.data`` is.
View: TypeAlias = "memoryview[int]"

#: Number of tags with channels for blocking calls, and for each other purpose.
CHANNELS = 2
#: Bytes of one rank's lines; they limit the number of purposes with channels.
LINES_BYTES = 64 << 10
#: Bytes of a cell for anything but blocking calls.
OTHER_CELL_BYTES = 64 << 10
#: Bytes of a small cell: four of them are a page. With cells of 256 bytes, messages of 8 bytes took
#: a tenth longer: a processor fetches lines behind the one that it reads.
SMALL_CELL_BYTES = 1024
#: Tags whose lines exist from the start: of blocking calls, of objects and of nonblocking calls.
#: Those of persistent calls exist when a channel is made.
EARLY_TAGS = 3 * CHANNELS
#: Places of a channel; a power of two, at most 4 to fit a line.
PLACES = 4
#: Mask that makes a message's number its place.
LAST = PLACES - 1
#: Bytes of cells per rank, divided among its channels, and the minimum for one cell.
CELLS_BYTES, LEAST_CELL_BYTES = 12 << 20, 4 << 10
#: Bytes of a cache line, with room for adjacent-line prefetching.
LINE = 128
#: Regions that the compiled executor knows, and a table of none.
MOST_REGIONS = 64
NO_REGIONS = numpy.zeros(2, numpy.int64)
#: A word is the number of a message above its size, mixed with its call hash, whose highest bit is
#: never set. ELSEWHERE instead of the size: the message is not in the cell, see the line.
SIZE_BITS = 24
ELSEWHERE = (1 << SIZE_BITS) - 1
#: The upper bits of ``where`` are the number of a region, the lower ones the offset.
OFFSET_BITS = 48

#: The window whose ``MPI_Win_sync`` is the memory barrier of the process. Not one for each
#: communicator: COMM_WORLD is never freed, so its window would remain when MPI ends.
_windows: list[tuple[int, MPI.Win]] = []


class Channel:
    """One direction between two ranks, seen from either side.

    Args:
        line, taken: words of the sender, and of the receiver.
        cells: for messages that do not fit a small cell; none where there is no shared memory.
        small: cells for messages of up to ``SMALL_CELL_BYTES``.
        grow: makes the first bytes of all cells exist, and returns whether there was room; ``None``
            at the receiver, to which the sender's cells exist when a message is in one.
        peer: process of the other rank, 0 if its memory cannot be read; its index in the node; the
            table of registered memory.
    """

    def __init__(self, line: View, taken: View, cells: Sequence[numpy.ndarray], tag: int,
                 fence: Callable[[], Any] | None, small: Sequence[numpy.ndarray] = (),
                 grow: Callable[[int], bool] | None = None,
                 peer: tuple[int, int, numpy.ndarray] = (0, 0, NO_REGIONS)):
        self.line, self.taken, self.cells, self.tag, self.fence = line, taken, cells, tag, fence
        self.small, self.grow, self.peer = small, grow, peer
        #: Bytes of a cell, and how many of them exist.
        self.cell_bytes = cells[0].nbytes if len(cells) else 0
        self.ready = 0 if grow is not None else self.cell_bytes
        #: Numbers of the last messages.
        self.sent = self.received = 0

    def cells_for(self, nbytes: int) -> Sequence[numpy.ndarray]:
        """Return the cells for messages of a size; none if they do not fit, or there is no room."""
        if nbytes <= SMALL_CELL_BYTES and self.small:
            return self.small
        if nbytes > self.cell_bytes:
            return ()
        if nbytes > self.ready and self.grow is not None:
            # Messages of growing sizes would make pages exist one at a time.
            enough = min(1 << (nbytes - 1).bit_length(), self.cell_bytes)
            if not self.grow(enough):
                return ()
            self.ready = enough
        return self.cells


class Region:
    """Memory of users' arrays that the other ranks of the node can read.

    Attributes:
        memory: of every rank, as bytes; device memory as mapped in this process.
        copy_out: ``copy_out(rank, tag, place, source, into)`` waits for a message in device memory
            and copies it to the host; ``None`` for host memory.
    """

    def __init__(self, memory: list[Any], rank: int, number: int,
                 copy_out: Callable[..., None] | None = None):
        self.memory, self.mine, self.number, self.copy_out = memory, memory[rank], number, copy_out
        self.start = _address(self.mine) if self.mine.nbytes else 0
        self.stop = self.start + self.mine.nbytes


class SharedNode:
    """The ranks of a communicator that share memory with this one; creating it is collective.

    Args:
        comm: the communicator.
        node_comm: the communicator of this node, freed with this object; ``comm`` on one node.
        cell_bytes: largest message that may be copied through a cell; less with many ranks.
        more: first tags of groups of ``CHANNELS`` tags, which get channels as long as there is room
            for their lines.
        channel: the class of the channels.

    Attributes:
        comm: communicator of the node's ranks.
        local: index in ``comm`` of every other rank of the node, by rank in the communicator;
            empty without shared memory.
        cell_bytes: as above, reduced for the number of ranks.
        tags: tags with channels, and their places in memory.
        readv: ``process_vm_readv``; ``None`` if ranks may not read each other's memory.
    """

    def __init__(self, comm: MPI.Intracomm, node_comm: MPI.Intracomm, cell_bytes: int,
                 more: Sequence[int] = (), channel: type[Channel] = Channel):
        self.channel = channel
        self.comm, self.rank, self.owned = node_comm, node_comm.Get_rank(), node_comm is not comm
        members = node_comm.allgather((comm.Get_rank(), os.getpid()))
        count = len(members)
        self.pids = [pid for _, pid in members]
        self.cell_bytes = _cell_bytes(count, cell_bytes)
        most = LINES_BYTES // (count * CHANNELS * 2 * LINE)
        self.tags = {tag: place for place, tag in enumerate(
            first + offset for first in (0, *more[:most]) for offset in range(CHANNELS))}
        self.early_bytes = count * min(len(self.tags), EARLY_TAGS) * 2 * LINE
        self.small_start = count * len(self.tags) * 2 * LINE
        self.cells_start = self.small_start + count * len(self.tags) * PLACES * SMALL_CELL_BYTES
        cells = CHANNELS * self.cell_bytes + (len(self.tags) - CHANNELS) * OTHER_CELL_BYTES
        self.shared = share(node_comm, self.cells_start + count * PLACES * cells, self.early_bytes)
        self.local = {rank: index for index, (rank, _) in enumerate(members)
                      if index != self.rank and self.shared}
        self.channels: dict[tuple[int, int, int], Channel] = {}
        self.regions: dict[int, Region] = {}
        #: Sorted addresses and numbers of the regions with memory of this rank.
        self.starts: list[tuple[int, int]] = []
        #: The same for the compiled executor, see ``_channels.h``: number of rows, words of a row,
        #: rows. It reads later regions as it reads private memory.
        self.table = numpy.zeros(2 + MOST_REGIONS * (2 + count), numpy.int64)
        self.table[1] = 2 + count
        self.fence = _fence() if self.local else None
        self.readv: Any = self._probe() if self.local else None

    def send_channel(self, peer: int, tag: int) -> Channel:
        """Return the channel from this rank to a peer."""
        return self._channel(self.rank, self.local[peer], tag)

    def recv_channel(self, peer: int, tag: int) -> Channel:
        """Return the channel from a peer to this rank."""
        return self._channel(self.local[peer], self.rank, tag)

    def _channel(self, source: int, sink: int, tag: int) -> Channel:
        key = source, sink, tag
        if key not in self.channels:
            # Not reached without shared memory: ``local`` is empty.
            shared, place, ranks = cast(SharedMemory, self.shared), self.tags[tag], len(self.pids)
            line = self._line(shared, source, place * ranks + sink)
            taken = self._line(shared, sink, place * ranks + source)[LINE:]
            small = self.small_start + (place * ranks + sink) * PLACES * SMALL_CELL_BYTES
            cell_bytes, cells = self.cell_bytes, self.cells_start + PLACES * (
                sink * CHANNELS + place) * self.cell_bytes
            if place >= CHANNELS:
                cell_bytes, cells = OTHER_CELL_BYTES, self.cells_start + PLACES * (
                    ranks * CHANNELS * self.cell_bytes
                    + (sink * (len(self.tags) - CHANNELS) + place - CHANNELS) * OTHER_CELL_BYTES)
            sends, memory = source == self.rank, shared.parts[source]

            def cut(start: int, nbytes: int) -> list[numpy.ndarray]:
                return list(memory[start:start + PLACES * nbytes].reshape(PLACES, nbytes))

            def grow(nbytes: int) -> bool:
                return all([shared.populate(source, cells + number * cell_bytes, nbytes)
                            for number in range(PLACES)])
            # Without room for small cells this sender uses no cells.
            room = not sends or shared.populate(source, small, PLACES * SMALL_CELL_BYTES)
            other = sink if sends else source
            peer = self.pids[other] if self.readv is not None else 0, other, self.table
            # The progress thread may have created it meanwhile: two would use equal numbers.
            return self.channels.setdefault(key, self.channel(
                line[:LINE].data.cast("q"), taken.data.cast("q"),
                cut(cells, cell_bytes) if room else [], tag, self.fence,
                cut(small, SMALL_CELL_BYTES) if room else [], grow if sends else None, peer))
        return self.channels[key]

    def _line(self, shared: SharedMemory, rank: int, number: int) -> numpy.ndarray:
        """Return the words of a rank for a channel, which either end may be the first to need.

        Raises:
            SharedMemoryError: the file system for shared memory is full.
        """
        start, nbytes = number * 2 * LINE, 2 * LINE
        if start >= self.early_bytes and not shared.populate(rank, start, nbytes):
            raise SharedMemoryError("no room for a persistent collective in /dev/shm; remove "
                                    "files there, or set HPCCOLL_SHARED_MEMORY=no")
        return shared.parts[rank][start:start + nbytes]

    # -- registered memory -------------------------------------------------------------------
    def allocate(self, nbytes: int) -> Region | None:
        """Allocate registered memory; collective over the node, sizes may differ.

        Returns:
            ``None``, on every rank, if the node has no room for it.
        """
        shared = share(self.comm, nbytes)
        return None if shared is None else self.register(shared.parts)

    def register(self, memory: list[Any], copy_out: Callable[..., None] | None = None) -> Region:
        """Register memory whose messages are read in place; the same on all ranks of the node."""
        region = Region(memory, self.rank, len(self.regions) + 1, copy_out)
        self.regions[region.number] = region
        if region.number <= MOST_REGIONS:
            parts = [0 if copy_out is not None else _address(part) for part in memory]
            start = 2 + (region.number - 1) * int(self.table[1])
            self.table[start:start + 2 + len(parts)] = (
                region.start, 0 if copy_out is not None else region.mine.nbytes, *parts)
            self.table[0] = region.number
        if region.mine.nbytes:
            bisect.insort(self.starts, (region.start, region.number))
        return region

    def locate(self, array: Any) -> int | None:
        """Return the place of an array in registered memory; ``None`` if it is elsewhere."""
        address = _address(array)
        index = bisect.bisect_right(self.starts, (address, len(self.regions) + 1)) - 1
        if index < 0:
            return None
        region = self.regions[self.starts[index][1]]
        if address + array.nbytes > region.stop:
            return None
        return region.number << OFFSET_BITS | address - region.start

    def region(self, peer: int, where: int, nbytes: int) -> Any:
        """Return bytes of the registered memory of a peer."""
        offset = where & ((1 << OFFSET_BITS) - 1)
        return self.regions[where >> OFFSET_BITS].memory[self.local[peer]][offset:offset + nbytes]

    def on_device(self, where: int) -> bool:
        """Return True if a message is in the device memory of a peer."""
        number = where >> OFFSET_BITS
        return bool(number) and self.regions[number].copy_out is not None

    def copy_out(self, peer: int, tag: int, place: int, where: int, into: numpy.ndarray) -> None:
        """Wait for a message in device memory and copy it."""
        copy = cast(Callable[..., None], self.regions[where >> OFFSET_BITS].copy_out)
        copy(self.local[peer], tag, place, self.region(peer, where, into.nbytes), into)

    # -- other processes' memory -------------------------------------------------------------
    def read_private(self, peer: int, address: int, into: Any) -> None:
        """Copy memory of the process of a peer into an array.

        Every call creates its own vectors, because the progress thread may read at the same time.
        """
        pid, left = self.pids[self.local[peer]], into.nbytes
        mine = into.__array_interface__["data"][0]
        while left:
            # Linux copies at most 2 GiB minus one page.
            copied = self.readv(pid, _Vector(mine, left), 1, _Vector(address, left), 1, 0)
            if copied <= 0:
                error = ctypes.get_errno()
                raise OSError(error, f"cannot read memory of rank {peer}: {os.strerror(error)}")
            mine, address, left = mine + copied, address + copied, left - copied

    def _probe(self) -> Any:
        """Return ``process_vm_readv`` if every rank of the node can read the memory of the others.

        In containers, ranks can have the same process number and addresses, and would
        read their own memory. So every rank tests it with random bytes of the others.
        """
        import secrets
        mark = secrets.token_bytes(64)
        address = numpy.frombuffer(mark, numpy.uint8).__array_interface__["data"][0]
        marks = self.comm.allgather((address, mark))
        worked, readv = True, None
        try:
            readv = ctypes.CDLL(None, use_errno=True).process_vm_readv
            readv.restype = ctypes.c_ssize_t
            readv.argtypes = (ctypes.c_int, ctypes.POINTER(_Vector), ctypes.c_ulong,
                              ctypes.POINTER(_Vector), ctypes.c_ulong, ctypes.c_ulong)
            self.readv = readv
            copy = numpy.zeros(len(mark), numpy.uint8)
            for peer, index in self.local.items():
                address, wanted = marks[index]
                self.read_private(peer, address, copy)
                worked &= copy.tobytes() == wanted
        except (OSError, AttributeError):
            worked = False
        # No lower-case reduction, see mapping.py.
        return readv if all(self.comm.allgather(worked)) else None

    def free(self) -> None:
        """Release the shared memory; collective over the node. Arrays in it stay valid."""
        self.channels.clear()
        self.regions.clear()
        self.starts.clear()
        if self.owned:
            self.comm.Free()


def _address(array: Any) -> int:
    """Return the address of an array, unique in the process over host and device memory."""
    if isinstance(array, numpy.ndarray):
        return int(array.__array_interface__["data"][0])
    return int(array.data.ptr)


def _cell_bytes(ranks: int, most: int) -> int:
    """Return the bytes of one cell on a node."""
    even = CELLS_BYTES // (PLACES * CHANNELS * max(ranks - 1, 1))
    return min(max(even // LINE * LINE, LEAST_CELL_BYTES), most)


def _fence() -> Callable[[], Any] | None:
    """Return a memory barrier; ``None`` if none is needed. See decision 0007."""
    if platform.machine() in ("x86_64", "AMD64", "i686"):
        return None
    if not _windows:
        _windows.append((os.getpid(), MPI.Win.Allocate(8, 1, comm=MPI.COMM_SELF)))
        _windows[0][1].Lock_all(MPI.MODE_NOCHECK)  # MPI_Win_sync wants an access epoch
        # MPI_Finalize deletes the attributes of this communicator first.
        MPI.COMM_SELF.Set_attr(MPI.Comm.Create_keyval(delete_fn=at_exit), True)
    return _windows[0][1].Sync


# Also at exit: mpi4py calls MPI_Finalize after the interpreter has ended, without callbacks.
def at_exit(*_: Any) -> None:
    """Free the window of this process: MPICH warns about a window that remains at the end."""
    while _windows:
        process, window = _windows.pop()
        if process != os.getpid():  # this one was forked
            continue
        window.Unlock_all()
        window.Free()


class _Vector(ctypes.Structure):
    """``struct iovec``."""

    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]
