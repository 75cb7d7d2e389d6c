"""Where the work of one call on registered device memory is queued.

What ``transport.shm.devices`` asks for: events between ranks, launches, copies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy

from hpccoll.arrays.cuda import Action, fused
from hpccoll.arrays.ipc import EventPlace, PeerMemory
from hpccoll.arrays.resident import Queue
from hpccoll.transport.shm.devices import READ


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
