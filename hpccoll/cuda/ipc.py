"""Device memory that the ranks of a node read in each other: CUDA IPC, through CuPy.

    PeerMemory   one rank's side: events of its own and of its peers, memory that was opened
    IpcQueue     where the work of one call is queued: events between ranks, launches, copies
    probe_ipc    whether a process can read another one's device memory

Registered memory is allocated by ``cudaMalloc``, not of CuPy's pool: a handle opens a whole
allocation, so it would show peers the pool's other arrays, and the address in it would have to be
looked for. CUDA advises multiples of 2 MiB for the same reason.

Who opened memory closes it before its owner may free it. So the owner keeps it until all have, when
the communicator is freed; where that cannot be agreed upon, until the process ends.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from itertools import product
from typing import Any, NamedTuple

import numpy
from mpi4py import MPI

from hpccoll.cuda.kernels import Action, fused
from hpccoll.cuda.resident import Queue
from hpccoll.cuda.transport import READ, READY
from hpccoll.cuda.ways import Answer
from hpccoll.transport.shm.channels import CHANNELS, PLACES

#: Registered memory is allocated in pieces of so many bytes, as CUDA's manual advises.
PIECE = 2 << 20
#: Seconds between two looks whether all ranks have closed what they had open.
PAUSE = 1e-4
#: Bytes by which ranks find out whether they read their peers' memory.
MARK = 4096

#: Reads device memory of the process that starts it.
_PROBE = """
import sys, cupy
cupy.cuda.Device(int(sys.argv[1])).use()
handle, event, mark = map(bytes.fromhex, sys.argv[2:])
pointer = cupy.cuda.runtime.ipcOpenMemHandle(handle)
cupy.cuda.runtime.streamWaitEvent(0, cupy.cuda.runtime.ipcOpenEventHandle(event))
memory = cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(pointer, len(mark), None), 0)
sys.exit(0 if cupy.asnumpy(cupy.ndarray(len(mark), "u1", memory)).tobytes() == mark else 1)
"""


def keep(*things: Any) -> None:
    """Keep what peers may still have open, also while the interpreter ends.

    CuPy would free it then: it does not look whether the driver can still be asked.
    """
    for one in things:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(one))


def allocated(cupy: Any, nbytes: int) -> Any:
    """Memory of the current device that is not of CuPy's pool.

    What the pool keeps for later arrays is given back where there is no other room.
    """
    try:
        return cupy.cuda.Memory(nbytes)
    except Exception:  # whatever the driver says: a second failure is told
        cupy.get_default_memory_pool().free_all_blocks()
        return cupy.cuda.Memory(nbytes)


class EventPlace(NamedTuple):
    """Which of a rank's events one is.

    Attributes:
        kind: READY or READ.
        peer: the rank of the node that it is for.
        tag, place: of the channel.
    """

    kind: int
    peer: int
    tag: int
    place: int


def places(ranks: int) -> list[EventPlace]:
    """All events of a rank, in the order in which it tells their handles."""
    return [EventPlace(*one) for one in product((READY, READ), range(ranks), range(CHANNELS),
                                           range(PLACES))]


class PeerMemory:
    """One rank's side of device memory that the ranks of a node share.

    Making one sends nothing; :meth:`connect` and :meth:`register` are collective over the node.

    Args:
        near: the ranks of the node.

    Attributes:
        device: of all memory, and of all events.
        stream: for copies that belong to no call.
        mine, theirs: this rank's events by place, and addresses of those that peers have for it.
        memory: allocations of this rank, kept for its peers.
        opened: addresses of memory of peers.
    """

    def __init__(self, near: MPI.Intracomm):
        self.near, self.rank, self.size = near, near.Get_rank(), near.Get_size()
        self.cupy: Any = importlib.import_module("cupy")
        self.device: Any = None
        self.stream: Any = None
        self.mine: dict[EventPlace, Any] = {}
        self.theirs: dict[EventPlace, int] = {}
        self.memory: list[Any] = []
        self.opened: list[int] = []

    def connect(self) -> str:
        """Exchange events; say why that was not possible, the same on all ranks, if so."""
        cupy = self.cupy

        def make() -> list[bytes]:
            self.device = cupy.cuda.Device()
            with self.device:
                self.stream = cupy.cuda.Stream(non_blocking=True)
                for place in places(self.size):
                    if place.peer != self.rank:
                        self.mine[place] = cupy.cuda.Event(disable_timing=True, interprocess=True)
                return [cupy.cuda.runtime.ipcGetEventHandle(self.mine[place].ptr)
                        if place in self.mine else b"" for place in places(self.size)]

        told, problem = self._told(make)

        def take() -> None:
            with self.device:
                for peer, place in product(range(self.size), places(self.size)):
                    if peer != self.rank and place.peer == self.rank:
                        handle = told[peer][places(self.size).index(place)]
                        self.theirs[place._replace(peer=peer)] = (
                            cupy.cuda.runtime.ipcOpenEventHandle(handle))

        return problem or self._told(take)[1]

    def register(self, nbytes: int) -> list[Any] | str:
        """Allocate memory that all ranks read; sizes may differ.

        Data is moved to see whether they do.

        Returns:
            The memory of all ranks as bytes; or why there is none, the same on all ranks.
        """
        cupy, mark = self.cupy, secrets.token_bytes(MARK)
        owned, before = len(self.memory), len(self.opened)

        def make() -> tuple[bytes, int, bytes]:
            with self.device:
                whole = max(-(-nbytes // PIECE), 1) * PIECE
                memory = allocated(cupy, whole)
                self.memory.append(memory)
                self._bytes(memory, MARK).set(numpy.frombuffer(mark, "u1"), stream=self.stream)
                for place, event in self.mine.items():
                    if place[2:] == (0, 0) and place.kind == READY:
                        event.record(self.stream)
                return cupy.cuda.runtime.ipcGetMemHandle(memory.ptr), nbytes, mark

        told, problem = self._told(make)

        def take() -> list[Any]:
            found: list[Any] = []
            with self.device:
                for peer, (handle, size, wanted) in enumerate(told):
                    if peer == self.rank:
                        found.append(self._bytes(self.memory[-1], nbytes))
                        continue
                    pointer = cupy.cuda.runtime.ipcOpenMemHandle(handle)
                    self.opened.append(pointer)
                    # By number: that of the device whose kernels read it, which is not its owner's.
                    memory = cupy.cuda.UnownedMemory(pointer, max(size, MARK), None, self.device.id)
                    cupy.cuda.runtime.streamWaitEvent(
                        self.stream.ptr, self.theirs[EventPlace(READY, peer, 0, 0)])
                    if self._bytes(memory, MARK).get(stream=self.stream).tobytes() != wanted:
                        raise OSError(f"memory test failed: wrong data from rank {peer} of the "
                                      "node")
                    found.append(self._bytes(memory, size))
            return found

        found: Any = None
        if not problem:
            found, problem = self._told(take, shared=False)
        if not problem:
            return list(found)
        self._close(before)
        self.near.Barrier()
        del self.memory[owned:]
        return problem

    def _bytes(self, memory: Any, nbytes: int) -> Any:
        return self.cupy.ndarray(nbytes, "u1", self.cupy.cuda.MemoryPointer(memory, 0))

    def _told(self, work: Callable[[], Any], shared: bool = True) -> tuple[Any, str]:
        """Do something on all ranks: what each found if that is ``shared``, and who failed first.

        Whatever the driver says is an answer: this rank has to tell the others.
        """
        result, problem = None, ""
        try:
            result = work()
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
        told = self.near.allgather((result if shared else None, problem))
        failed = next(((rank, why) for rank, (_, why) in enumerate(told) if why), None)
        return ([one for one, _ in told] if shared else result,
                f"rank {failed[0]} of the node: {failed[1]}" if failed else "")

    def copy_out(self, peer: int, tag: int, place: int, source: Any, into: numpy.ndarray) -> None:
        """Copy a message of a peer's to the host, when it is there."""
        with self.device:
            runtime = self.cupy.cuda.runtime
            runtime.streamWaitEvent(self.stream.ptr,
                                    self.theirs[EventPlace(READY, peer, tag, place)])
            # Into memory that is given: a host that can read the device's would get a view of it,
            # before the message is there.
            source.get(stream=self.stream, out=into.view("u1"))
            self.stream.synchronize()

    def _close(self, first: int = 0) -> None:
        with self.device:
            for pointer in self.opened[first:]:
                self.cupy.cuda.runtime.ipcCloseMemHandle(pointer)
            del self.opened[first:]

    def free(self, agreed: bool, over: Callable[[], bool]) -> None:
        """Close what peers own; collective over the node.

        Where no barrier can be ``agreed`` upon, or it is ``over`` before all ranks have come, what
        this rank owns is kept for its peers.
        """
        if agreed:
            # Where work of this process has failed, CUDA answers nothing; the others wait here.
            with suppress(Exception), self.device or nullcontext():
                self._close()
                for event in self.theirs.values():
                    self.cupy.cuda.runtime.eventDestroy(event)
        if not agreed or not self._all_closed(over):
            keep(self.memory, self.mine)
        self.theirs, self.mine, self.memory = {}, {}, []

    def _all_closed(self, over: Callable[[], bool]) -> bool:
        try:
            request = self.near.Ibarrier()
            while not request.Test():
                if over():
                    return False
                time.sleep(PAUSE)
        except MPI.Exception:  # a rank is gone
            return False
        return True


class IpcQueue:
    """Where the device work of one call is queued.

    Args:
        peers: memory and events of this rank's node.
        queue: the caller's device and stream.
    """

    def __init__(self, peers: PeerMemory, queue: Queue):
        self.peers, self.device, self.stream = peers, *queue[:2]
        self.cupy, self.copyto = peers.cupy, peers.cupy.copyto

    def run(self, actions: Sequence[Action]) -> None:
        """Queue local steps, in as few launches as can be."""
        with self.device, self.stream:
            for function, operands in fused(actions):
                function(*operands)

    def tell(self, kind: int, peer: int, tag: int, place: int) -> None:
        """Record this rank's event for a rank of the node."""
        with self.device:
            self.peers.mine[EventPlace(kind, peer, tag, place)].record(self.stream)

    def follow(self, kind: int, peer: int, tag: int, place: int) -> None:
        """Let what is queued from here on come after that rank's event."""
        with self.device:
            self.cupy.cuda.runtime.streamWaitEvent(
                self.stream.ptr, self.peers.theirs[EventPlace(kind, peer, tag, place)])

    def load(self, array: Any, host: numpy.ndarray) -> None:
        """Copy host memory, which is not pinned, so that it may change afterwards."""
        with self.device:
            array.set(host, stream=self.stream)

    def allocate(self, count: int, make: Callable[[int], Any]) -> Any:
        """Memory of the pool's that is given out again to this stream only."""
        with self.device, self.stream:
            return make(count)

    def settle(self) -> None:
        """Order what comes after a call that has failed behind all that peers read of this rank."""
        for place in self.peers.theirs:
            if place.kind == READ:
                self.follow(*place)


@functools.lru_cache(maxsize=1)
def probe_ipc() -> Answer:
    """Try, once per process, whether another process can read this one's device memory."""
    mark = os.urandom(64)
    try:
        cupy: Any = importlib.import_module("cupy")
        memory = allocated(cupy, PIECE)
        event = cupy.cuda.Event(disable_timing=True, interprocess=True)
        array = cupy.ndarray(len(mark), "u1", cupy.cuda.MemoryPointer(memory, 0))
        stream = cupy.cuda.Stream(non_blocking=True)
        array.set(numpy.frombuffer(mark, "u1"), stream=stream)
        event.record(stream)
        handles = (cupy.cuda.runtime.ipcGetMemHandle(memory.ptr),
                   cupy.cuda.runtime.ipcGetEventHandle(event.ptr))
        status = subprocess.run([sys.executable, "-c", _PROBE, str(cupy.cuda.Device().id),
                                 *(one.hex() for one in handles), mark.hex()],
                                timeout=120, capture_output=True, check=False).returncode
    except Exception as error:  # whatever the driver says
        return Answer(False, f"{type(error).__name__}: {error}")
    if status:
        return Answer(False, "the test process, which read device memory of this one, " + (
            f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"))
    return Answer(True, "the test process read device memory of this one; for arrays of "
                        "comm.empty(xp=cupy)")
