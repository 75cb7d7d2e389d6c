"""Calls on registered device memory, which peers read in place.

    DeviceMemory     registered memory of a communicator on this rank
    RegisteredCall   queue and scratch memory of one call

All memory of messages is registered: the caller's arrays, and one scratch buffer per communicator.
The planner cuts calls into segments whose scratch fits; calls that cannot be cut are staged. The
planner binds a plan to this memory as to any other.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any

from mpi4py import MPI

from hpccoll.cuda.ipc import IpcQueue, PeerMemory
from hpccoll.cuda.staging import has_completed
from hpccoll.cuda.stream_ordered import Queue
from hpccoll.cuda.transport import DeviceEndpoint
from hpccoll.errors import HpccollError
from hpccoll.machine.backoff import wait_until
from hpccoll.transport.shm.endpoint import SharedEndpoint

#: Bytes of the registered scratch memory of a communicator.
SCRATCH_BYTES = 32 << 20


class DeviceMemory:
    """Registered device memory of one communicator.

    Args:
        context: the context of the communicator, whose service this is.

    Attributes:
        scratch: registered bytes, used by one call at a time; ``None`` if nothing is registered.
        problem: why ranks cannot read their peers' memory; empty if they can or have not tried.
    """

    def __init__(self, context: Any):
        self.context = context
        self.peers: PeerMemory | None = None
        self.scratch: Any = None
        self.last: Any = None
        self.problem = ""

    def allocate(self, nbytes: int) -> Any:
        """Allocate registered bytes; collective over the node.

        Returns:
            An array of bytes; or an error text, the same on all ranks.
        """
        if not self.problem and self.peers is None:
            self.problem = self._obstacle() or self._connect()
        return self.problem or self._allocate_registered(nbytes)

    def _obstacle(self) -> str:
        context = self.context
        if context.size == 1:
            return "there is one rank"
        if not context.place.one_node or context.node is None:
            return "the ranks do not all share memory"
        return "" if isinstance(context.endpoint, SharedEndpoint) else (
            "messages have checksums, which the host computes")

    def _connect(self) -> str:
        node = self.context.node
        if node is None:
            return "the ranks do not all share memory"
        self.peers = peers = PeerMemory(node.comm)
        problem = peers.connect()
        scratch = problem or self._allocate_registered(SCRATCH_BYTES)
        if isinstance(scratch, str):
            return scratch
        self.scratch = scratch
        with peers.device:
            self.last = peers.cupy.cuda.Event(disable_timing=True)
        return ""

    def _allocate_registered(self, nbytes: int) -> Any:
        node, peers = self.context.node, self.peers
        if node is None or peers is None:
            return self.problem
        memory = peers.register(nbytes)
        if isinstance(memory, str):
            return memory
        return node.register(memory, peers.copy_out).mine

    def holds(self, call: Any) -> bool:
        """Return True if all of a call's memory is registered here and used directly."""
        node, buffers = self.context.node, [one for one in (call.source, call.sink) if one]
        return node is not None and bool(buffers) and all(
            one.load is None and one.staged is None and hasattr(one.namespace, "cuda")
            and node.locate(one.array) is not None for one in buffers)

    def free(self) -> None:
        """Close memory of peers; collective, except in MPI_Finalize or after a failure."""
        peers = self.peers
        if peers is not None:
            agreed = (self.context.guard.failure is None
                      and self.context.user not in (MPI.COMM_WORLD, MPI.COMM_SELF))
            if agreed and self.last is not None:
                try:  # queued kernels may still read peers' memory
                    self.wait()
                except Exception:  # queued work has failed, or waits for a dead rank
                    agreed = False
            self.peers = self.scratch = self.last = None
            watch = self.context.wait_timer("Free of registered memory")
            peers.free(agreed, partial(self._in_vain, watch))

    def _in_vain(self, watch: Any) -> bool:
        """Return True if a wait cannot complete."""
        try:
            watch.look()
        except HpccollError:
            return True
        return False

    def wait(self) -> None:
        """Wait for the work of the last call, with the usual timeout.

        Raises:
            CollectiveTimeout: it waits for a rank that does not run its part.
            CUDARuntimeError: the work has failed.
        """
        watch = self.context.wait_timer("work on registered memory")
        cupy = _connect_peers(self).cupy
        wait_until(lambda: has_completed(cupy, self.last), watch)


class RegisteredCall:
    """Call on registered memory.

    Args:
        memory: the registered memory of its communicator.
        queue: the caller's device and stream.
    """

    def __init__(self, memory: DeviceMemory, queue: Queue):
        self.memory, self.shared = memory, queue.shared
        self.queue = IpcQueue(_connect_peers(memory), queue)

    def scratch(self, nbytes: int) -> Any:
        """Return ``nbytes`` of scratch memory; ``None`` if there is less.

        Orders the call after the previous one, which used the same memory.
        """
        if nbytes > self.memory.scratch.nbytes:
            return None
        with self.queue.device:  # scratch may be in use on the stream of an earlier call
            self.queue.stream.wait_event(self.memory.last)
        return self.memory.scratch[:nbytes]

    def endpoint(self) -> DeviceEndpoint:
        """Return the transport of the call's messages."""
        channels = self.memory.context.endpoint
        if not isinstance(channels, SharedEndpoint):
            raise TypeError("the ranks have no channels")
        return DeviceEndpoint(channels, self.queue)

    def finish(self) -> None:
        """Order the next call, and reads of the caller on any stream, after this call."""
        with self.queue.device:
            self.memory.last.record(self.queue.stream)
        if not self.shared:
            self.memory.wait()

    def settle(self) -> None:
        """Make work after a failed call wait for all reads by peers of this rank."""
        with suppress(Exception):  # CUDA itself may have failed; the caller gets the first error
            self.queue.settle()
            with self.queue.device:
                self.memory.last.record(self.queue.stream)


def _connect_peers(memory: DeviceMemory) -> PeerMemory:
    if memory.peers is None:
        raise TypeError("nothing is registered")
    return memory.peers
