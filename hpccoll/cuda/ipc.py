"""CUDA IPC through CuPy: device memory that all ranks of a node can read.

    PeerMemory   state of one rank: its events, events of its peers, opened memory
    IpcQueue     queue of one call: events between ranks, launches, copies
    probe_ipc    tests if a process can read another one's device memory

Registered memory is allocated by ``cudaMalloc``, not from CuPy's pool: a handle opens a whole
allocation, so peers would see other arrays of the pool and need an offset. CUDA recommends
multiples of 2 MiB for the same reason.

Peers must close memory before its owner may free it. So the owner frees it with the communicator,
after all peers have closed it; without that agreement it keeps the memory until the process ends.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from itertools import product
from typing import Any, NamedTuple

import numpy
from mpi4py import MPI

from hpccoll.cuda.device_paths import Answer
from hpccoll.cuda.kernels import Action, fuse
from hpccoll.cuda.stream_ordered import Queue
from hpccoll.cuda.transport import READ, READY
from hpccoll.machine.backoff import wait_until
from hpccoll.transport.shm.channels import CHANNELS, PLACES

#: Granularity of registered memory in bytes, as recommended in CUDA's manual.
PIECE = 2 << 20
#: Bytes of the test that ranks read their peers' memory.
MARK = 4096

#: Program of a child process that reads device memory of its parent.
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
    """Keep objects alive that peers may still use, also during interpreter exit.

    CuPy would free them then, without a check that the driver still works.
    """
    for one in things:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(one))


def allocate_unpooled(cupy: Any, nbytes: int) -> Any:
    """Allocate memory of the current device outside CuPy's pool.

    If memory is short, the free blocks of the pool are released first.
    """
    try:
        return cupy.cuda.Memory(nbytes)
    except Exception:  # any driver error: a second failure is raised
        cupy.get_default_memory_pool().free_all_blocks()
        return cupy.cuda.Memory(nbytes)


class EventPlace(NamedTuple):
    """Identity of an event of a rank.

    Attributes:
        kind: READY or READ.
        peer: the rank of the node that uses it.
        tag, place: tag and slot of the channel.
    """

    kind: int
    peer: int
    tag: int
    place: int


def places(ranks: int) -> list[EventPlace]:
    """Return all events of a rank, in the order in which it sends their handles."""
    return [EventPlace(*one) for one in product((READY, READ), range(ranks), range(CHANNELS),
                                           range(PLACES))]


class PeerMemory:
    """State of one rank for device memory that the ranks of a node share.

    The constructor sends nothing; :meth:`connect` and :meth:`register` are collective on the node.

    Args:
        node_comm: the ranks of the node.

    Attributes:
        device: the device of all memory and events.
        stream: the stream for copies outside calls.
        mine, theirs: this rank's events, and the addresses of the events of its peers.
        memory: allocations of this rank, kept alive for its peers.
        opened: addresses of opened memory of peers.
    """

    def __init__(self, node_comm: MPI.Intracomm):
        self.node_comm, self.rank, self.size = node_comm, node_comm.Get_rank(), node_comm.Get_size()
        self.cupy: Any = importlib.import_module("cupy")
        self.device: Any = None
        self.stream: Any = None
        self.mine: dict[EventPlace, Any] = {}
        self.theirs: dict[EventPlace, int] = {}
        self.memory: list[Any] = []
        self.opened: list[int] = []

    def connect(self) -> str:
        """Exchange events; return an error text, the same on all ranks, or empty."""
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

        answers, problem = self._run_on_all(make)

        def take() -> None:
            with self.device:
                for peer, place in product(range(self.size), places(self.size)):
                    if peer != self.rank and place.peer == self.rank:
                        handle = answers[peer][places(self.size).index(place)]
                        self.theirs[place._replace(peer=peer)] = (
                            cupy.cuda.runtime.ipcOpenEventHandle(handle))

        return problem or self._run_on_all(take)[1]

    def register(self, nbytes: int) -> list[Any] | str:
        """Allocate memory that all ranks read; sizes may differ.

        A transfer verifies that they can read it.

        Returns:
            The memory of all ranks as bytes; or an error text, the same on all ranks.
        """
        import secrets
        cupy, mark = self.cupy, secrets.token_bytes(MARK)
        owned, before = len(self.memory), len(self.opened)

        def make() -> tuple[bytes, int, bytes]:
            with self.device:
                whole = max(-(-nbytes // PIECE), 1) * PIECE
                memory = allocate_unpooled(cupy, whole)
                self.memory.append(memory)
                self._bytes(memory, MARK).set(numpy.frombuffer(mark, "u1"), stream=self.stream)
                for place, event in self.mine.items():
                    if place[2:] == (0, 0) and place.kind == READY:
                        event.record(self.stream)
                return cupy.cuda.runtime.ipcGetMemHandle(memory.ptr), nbytes, mark

        answers, problem = self._run_on_all(make)

        def take() -> list[Any]:
            found: list[Any] = []
            with self.device:
                for peer, (handle, size, wanted) in enumerate(answers):
                    if peer == self.rank:
                        found.append(self._bytes(self.memory[-1], nbytes))
                        continue
                    pointer = cupy.cuda.runtime.ipcOpenMemHandle(handle)
                    self.opened.append(pointer)
                    # By the number of the device whose kernels read it, not of its owner's device.
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
            found, problem = self._run_on_all(take, shared=False)
        if not problem:
            return list(found)
        self._close(before)
        self.node_comm.Barrier()
        del self.memory[owned:]
        return problem

    def _bytes(self, memory: Any, nbytes: int) -> Any:
        return self.cupy.ndarray(nbytes, "u1", self.cupy.cuda.MemoryPointer(memory, 0))

    def _run_on_all(self, work: Callable[[], Any], shared: bool = True) -> tuple[Any, str]:
        """Run a function on all ranks; return all results if ``shared``, and the first failure.

        Any driver error counts as a failure, because this rank has to report it to the others.
        """
        result, problem = None, ""
        try:
            result = work()
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
        answers = self.node_comm.allgather((result if shared else None, problem))
        failed = next(((rank, why) for rank, (_, why) in enumerate(answers) if why), None)
        return ([one for one, _ in answers] if shared else result,
                f"rank {failed[0]} of the node: {failed[1]}" if failed else "")

    def copy_out(self, peer: int, tag: int, place: int, source: Any, into: numpy.ndarray) -> None:
        """Copy a message of a peer to the host, after it is complete."""
        with self.device:
            runtime = self.cupy.cuda.runtime
            runtime.streamWaitEvent(self.stream.ptr,
                                    self.theirs[EventPlace(READY, peer, tag, place)])
            # Into given memory: a host that can read device memory would get a view of it, before
            # the message is complete.
            source.get(stream=self.stream, out=into.view("u1"))
            self.stream.synchronize()

    def _close(self, first: int = 0) -> None:
        with self.device:
            for pointer in self.opened[first:]:
                self.cupy.cuda.runtime.ipcCloseMemHandle(pointer)
            del self.opened[first:]

    def free(self, agreed: bool, over: Callable[[], bool]) -> None:
        """Close the memory of peers; collective over the node.

        If the ranks have not ``agreed`` on a barrier, or if ``over`` returns True before all ranks
        have entered it, this rank keeps its own memory for its peers.
        """
        if agreed:
            # After failed work in this process every CUDA call fails; the others wait here.
            with suppress(Exception), self.device or nullcontext():
                self._close()
                for event in self.theirs.values():
                    self.cupy.cuda.runtime.eventDestroy(event)
        if not agreed or not self._all_closed(over):
            keep(self.memory, self.mine)
        self.theirs, self.mine, self.memory = {}, {}, []

    def _all_closed(self, over: Callable[[], bool]) -> bool:
        try:
            request = self.node_comm.Ibarrier()
            wait_until(lambda: request.Test() or over())
            return request.Test()
        except MPI.Exception:  # a rank has died
            return False


class IpcQueue:
    """Queue of the device work of one call.

    Args:
        peers: memory and events of this rank's node.
        queue: the caller's device and stream.
    """

    def __init__(self, peers: PeerMemory, queue: Queue):
        self.peers, self.device, self.stream = peers, *queue[:2]
        self.cupy, self.copyto = peers.cupy, peers.cupy.copyto

    def run(self, actions: Sequence[Action]) -> None:
        """Queue local steps, in as few launches as possible."""
        with self.device, self.stream:
            for function, operands in fuse(actions):
                function(*operands)

    def signal(self, kind: int, peer: int, tag: int, place: int) -> None:
        """Record this rank's event for a rank of the node."""
        with self.device:
            self.peers.mine[EventPlace(kind, peer, tag, place)].record(self.stream)

    def follow(self, kind: int, peer: int, tag: int, place: int) -> None:
        """Make work that is queued later wait for that rank's event."""
        with self.device:
            self.cupy.cuda.runtime.streamWaitEvent(
                self.stream.ptr, self.peers.theirs[EventPlace(kind, peer, tag, place)])

    def load(self, array: Any, host: numpy.ndarray) -> None:
        """Copy pageable host memory, which may change after the return."""
        with self.device:
            array.set(host, stream=self.stream)

    def allocate(self, count: int, make: Callable[[int], Any]) -> Any:
        """Return memory of the pool that only this stream can reuse."""
        with self.device, self.stream:
            return make(count)

    def settle(self) -> None:
        """Make work after a failed call wait for all reads by peers of this rank."""
        for place in self.peers.theirs:
            if place.kind == READ:
                self.follow(*place)


@functools.lru_cache(maxsize=1)
def probe_ipc() -> Answer:
    """Test once per process if another process can read this one's device memory."""
    import subprocess
    mark = os.urandom(64)
    try:
        cupy: Any = importlib.import_module("cupy")
        memory = allocate_unpooled(cupy, PIECE)
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
    except Exception as error:  # any driver error
        return Answer(False, f"{type(error).__name__}: {error}")
    if status:
        return Answer(False, "the test process, which read device memory of this one, " + (
            f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"))
    return Answer(True, "the test process read device memory of this one; for arrays of "
                        "comm.empty(xp=cupy)")
