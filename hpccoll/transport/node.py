"""A node's shared memory: the channels between its ranks, and registered regions.

One window per communicator holds, for every rank of the node, the control lines and slots of
its outgoing channels. A region is a further window whose memory users get as arrays.
"""

from __future__ import annotations

import bisect
import ctypes
import os
import platform
from typing import Any

import numpy
from mpi4py import MPI

#: Tags that have channels: those of blocking calls.
CHANNELS = 2
#: Largest message that is copied into a slot, in bytes; each channel has two slots.
SLOT_BYTES = 8 << 10
#: Bytes of a cache line, with room for adjacent-line prefetching.
LINE = 128
#: Bytes of one channel: the line ``posted``, the line ``taken``, and two slots.
CHANNEL_BYTES = 2 * LINE + 2 * SLOT_BYTES
#: A region's number is kept in the upper bits of ``where``, the offset in the lower.
OFFSET_BITS = 48


class Channel:
    """One direction between two ranks, seen from either side."""

    def __init__(self, line: memoryview, taken: memoryview, slots: tuple, tag: int, fence):
        self.line, self.taken, self.slots, self.tag, self.fence = line, taken, slots, tag, fence
        self.sent = self.received = 0


class Region:
    """A shared window that users' arrays live in."""

    def __init__(self, node: Node, nbytes: int, number: int):
        self.window = MPI.Win.Allocate_shared(nbytes, 1, comm=node.comm)
        self.memory = [numpy.frombuffer(self.window.Shared_query(i)[0], numpy.uint8)
                       for i in range(node.comm.Get_size())]
        self.mine = self.memory[node.comm.Get_rank()]
        self.number = number
        self.start = self.mine.__array_interface__["data"][0] if nbytes else 0
        self.stop = self.start + nbytes


class Node:
    """The ranks of a communicator that share memory with this one; making it is collective.

    Attributes:
        comm: communicator of the node's ranks, freed with this object.
        local: index in ``comm`` of every rank of the node, by rank in the communicator.
    """

    def __init__(self, comm: MPI.Intracomm, near: MPI.Intracomm):
        self.comm = near
        size, mine = self.comm.Get_size(), self.comm.Get_rank()
        self.local = {rank: i for i, rank in enumerate(self.comm.allgather(comm.Get_rank()))
                      if i != mine}
        self.window = MPI.Win.Allocate_shared(size * CHANNELS * CHANNEL_BYTES, 1, comm=self.comm)
        self.memory = [memoryview(self.window.Shared_query(i)[0]) for i in range(size)]
        self.memory[mine][:] = bytes(len(self.memory[mine]))
        self.pids = self.comm.allgather(os.getpid())
        self.channels: dict[tuple, Channel] = {}
        self.regions: dict[int, Region] = {}
        self.starts: list[tuple[int, int]] = []
        self.readv = self._probe()
        self.comm.Barrier()

    def outgoing(self, peer: int, tag: int) -> Channel:
        """The channel from this rank to a peer."""
        return self._channel(self.comm.Get_rank(), self.local[peer], tag)

    def incoming(self, peer: int, tag: int) -> Channel:
        """The channel from a peer to this rank."""
        return self._channel(self.local[peer], self.comm.Get_rank(), tag)

    def _channel(self, source: int, sink: int, tag: int) -> Channel:
        key = source, sink, tag
        if key not in self.channels:
            start = (sink * CHANNELS + tag) * CHANNEL_BYTES
            memory = self.memory[source][start:start + CHANNEL_BYTES]
            back = (source * CHANNELS + tag) * CHANNEL_BYTES + LINE
            slots = numpy.frombuffer(memory[2 * LINE:], numpy.uint8).reshape(2, SLOT_BYTES)
            self.channels[key] = Channel(
                memory[:LINE].cast("q"), self.memory[sink][back:back + LINE].cast("q"),
                (slots[0], slots[1]), tag, self._fence())
        return self.channels[key]

    def _fence(self):
        # x86 keeps stores in order and loads in order, and the interpreter's calls keep the
        # compiler from moving them; elsewhere MPI_Win_sync is the memory barrier.
        return _nothing if platform.machine() in ("x86_64", "AMD64", "i686") else self.window.Sync

    # -- registered memory -------------------------------------------------------------------
    def allocate(self, nbytes: int) -> Region:
        """Allocate registered memory; collective over the node, sizes may differ."""
        region = Region(self, nbytes, len(self.regions) + 1)
        self.regions[region.number] = region
        if nbytes:
            bisect.insort(self.starts, (region.start, region.number))
        return region

    def locate(self, array: numpy.ndarray, slot: int, region: int, private: int,
               message: int) -> tuple[int, int]:
        """Where a receiver finds an array: kind and place."""
        if array.nbytes <= SLOT_BYTES:
            return slot, 0
        address = array.__array_interface__["data"][0]
        place = bisect.bisect_right(self.starts, (address, len(self.regions) + 1)) - 1
        if place >= 0:
            found = self.regions[self.starts[place][1]]
            if address + array.nbytes <= found.stop:
                return region, found.number << OFFSET_BITS | address - found.start
        return (private, address) if self.readv else (message, 0)

    def region(self, peer: int, where: int, nbytes: int) -> numpy.ndarray:
        """Bytes of a peer's registered memory."""
        offset = where & ((1 << OFFSET_BITS) - 1)
        return self.regions[where >> OFFSET_BITS].memory[self.local[peer]][offset:offset + nbytes]

    # -- other processes' memory -------------------------------------------------------------
    def read_private(self, peer: int, address: int, into: Any) -> None:
        """Copy memory of a peer's process into an array."""
        nbytes = into.nbytes
        self.here.base, self.here.length = into.__array_interface__["data"][0], nbytes
        self.there.base, self.there.length = address, nbytes
        if self.readv(self.pids[self.local[peer]], self.here, 1, self.there, 1, 0) != nbytes:
            error = ctypes.get_errno()
            raise OSError(error, f"cannot read memory of rank {peer}: {os.strerror(error)}")

    def _probe(self) -> Any:
        """``process_vm_readv``, if every rank of the node may read its neighbour's memory."""
        magic = numpy.full(8, 0x5EED, numpy.int64)
        address = magic.__array_interface__["data"][0]
        addresses = self.comm.allgather(address)
        worked, readv = True, None
        try:
            readv = ctypes.CDLL(None, use_errno=True).process_vm_readv
            readv.restype = ctypes.c_ssize_t
            self.here, self.there = _Vector(), _Vector()
            readv.argtypes = (ctypes.c_int, ctypes.POINTER(_Vector), ctypes.c_ulong,
                              ctypes.POINTER(_Vector), ctypes.c_ulong, ctypes.c_ulong)
            self.readv = readv
            copy = numpy.zeros_like(magic)
            for peer, index in self.local.items():
                copy[:] = 0
                self.read_private(peer, addresses[index], copy)
                worked &= bool((copy == magic).all())
        except (OSError, AttributeError):
            worked = False
        return readv if self.comm.allreduce(worked, MPI.MIN) else None

    def free(self) -> None:
        """Free the windows; collective over the node."""
        self.channels.clear()
        for region in self.regions.values():
            region.window.Free()
        self.window.Free()
        self.comm.Free()


class _Vector(ctypes.Structure):
    """``struct iovec``."""

    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


def _nothing() -> None:
    """No fence is needed here."""
