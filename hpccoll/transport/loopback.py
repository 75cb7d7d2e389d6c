"""Loopback: p ranks in one process, for proofs by running and for tests without MPI.

A send completes only when its receive is posted (zero buffering), so a schedule that needs
buffering deadlocks here. A receive buffer is overwritten with a pattern when it is posted, and
gets the message when it is matched, so a test detects an early read. With ``eager=False``
data is read at the match, the latest time that MPI allows; with ``eager=True`` at the post, the
earliest.

A network operation runs when its last message is posted. It reduces from the last source to the
first, because no program may depend on the rank order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy

from hpccoll.errors import MessageSizeError
from hpccoll.transport import NETWORK, Batch, MessageSpec, NetworkOperation


class Loopback:
    """A world of ``size`` ranks; ``endpoint(rank)`` is one rank's side."""

    def __init__(self, size: int, eager: bool = False):
        self.size, self.eager = size, eager
        #: Unmatched sends or receives by source, destination and tag.
        self.queues: dict[tuple[int, int, int], deque[Any]] = {}
        #: Unmatched sends and receives of network operations.
        self.operations: dict[tuple[Any, ...], dict[tuple[bool, int], deque[_PostedMessage]]] = {}

    def join(self, operation: NetworkOperation, tag: int, rank: int,
             posted: _PostedMessage) -> None:
        """Post one send or receive of a network operation; run it if it is complete."""
        sources, sinks, combine = operation
        waiting = self.operations.setdefault((sources, sinks, tag), {})
        waiting.setdefault((posted.sends, rank), deque()).append(posted)
        if len(waiting) < len(sources) + len(sinks):
            return
        given = [waiting[True, source].popleft() for source in reversed(sources)]
        taken = [waiting[False, sink].popleft() for sink in sinks]
        for end in [end for end, held in waiting.items() if not held]:
            del waiting[end]
        sizes = sorted({each.array.nbytes for each in (*given, *taken)})
        if len(sizes) > 1:
            error = MessageSizeError(
                f"messages of one network operation differ in size: {', '.join(map(str, sizes))} "
                f"bytes, of ranks {sources} for ranks {sinks}")
        else:
            error, result = None, given[0].array.copy()
            if result.size and combine is not None:
                for each in given[1:]:
                    combine(result, each.array, result)
            for each in taken:
                each.array[...] = result
        for each in (*given, *taken):
            each.done, each.error = True, error

    def endpoint(self, rank: int) -> LoopbackEndpoint:
        """Return one rank's side of this world."""
        return LoopbackEndpoint(self, rank)


class LoopbackEndpoint:
    """One rank's side of a :class:`Loopback`."""

    offers = NETWORK

    def __init__(self, world: Loopback, rank: int):
        self.world, self.rank, self.size = world, rank, world.size

    def direct(self, peers: Sequence[int], tag: int) -> bool:
        """Return False: loopback delivers into the memory of the receiver."""
        return False

    def batch(self, postings: Sequence[MessageSpec], tag: int, repeated: bool) -> Batch:
        """Prepare messages; see :class:`hpccoll.transport.Endpoint`."""
        return LoopbackBatch(self, postings, tag)


class LoopbackBatch:
    """Messages of one loopback rank."""

    def __init__(self, endpoint: LoopbackEndpoint, postings: Sequence[MessageSpec], tag: int):
        self.endpoint, self.postings, self.tag = endpoint, postings, tag
        self.pending: list[_PostedMessage] = []

    def start(self) -> None:
        self.pending = [_PostedMessage(sends, array) for sends, _, array, _ in self.postings]
        world, rank = self.endpoint.world, self.endpoint.rank
        # The result of a network operation may replace its input, which must stay until then.
        given = [(peer, address(array)) for sends, peer, array, _ in self.postings
                 if sends and isinstance(peer, NetworkOperation)]
        for (sends, peer, array, _), posted in zip(self.postings, self.pending):
            if not sends:
                if not given or (peer, address(array)) not in given:
                    spoil(array)
            elif world.eager:
                posted.array = array.copy()
            if isinstance(peer, NetworkOperation):
                world.join(peer, self.tag, rank, posted)
                continue
            pair = (rank, peer, self.tag) if sends else (peer, rank, self.tag)
            queue = world.queues.setdefault(pair, deque())
            if queue and queue[0].sends != sends:
                partner = queue.popleft()
                source, sink = (posted, partner) if sends else (partner, posted)
                if source.array.nbytes != sink.array.nbytes:
                    source.error = sink.error = MessageSizeError(
                        f"message from rank {pair[0]} to rank {pair[1]} has {source.array.nbytes} "
                        f"bytes, the receive {sink.array.nbytes} bytes")
                else:
                    sink.array[...] = source.array
                source.done = sink.done = True
            else:
                queue.append(posted)

    def test(self, tries: int = 1) -> bool:
        for posted in self.pending:
            if posted.error:
                raise posted.error
        return all(posted.done for posted in self.pending)

    def free(self) -> None:
        self.pending = []


class _PostedMessage:
    """A message without its matching send or receive."""

    def __init__(self, sends: bool, array: Any):
        self.sends, self.array, self.done = sends, array, False
        self.error: MessageSizeError | None = None


def address(array: Any) -> int:
    """Return the address of an array."""
    return int(array.__array_interface__["data"][0])


def spoil(array: Any) -> None:
    """Overwrite a buffer with a pattern that no test expects."""
    array.view(numpy.uint8)[...] = 0xA5
