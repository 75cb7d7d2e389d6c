"""Loopback: p ranks in one process, for proofs by running and for tests without MPI.

A send completes only when its receive is posted (zero buffering), so a schedule that relies
on buffering stalls here. A receiving buffer is spoiled when it is posted and written only
when the message is matched, as MPI allows, so reading it early shows. With ``eager=False``
data is read at the time of the match, the latest moment MPI allows; with ``eager=True`` at
the time of the post, the earliest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy

from hpccoll.errors import MessageSizeError
from hpccoll.transport import Batch, Posting


class Loopback:
    """A world of ``size`` ranks; ``endpoint(rank)`` is one rank's side."""

    def __init__(self, size: int, eager: bool = False):
        self.size, self.eager = size, eager
        #: Unmatched ends of messages by source, destination and tag; all of one kind.
        self.queues: dict[tuple[int, int, int], deque[Any]] = {}

    def endpoint(self, rank: int) -> LoopbackEndpoint:
        """One rank's side of this world."""
        return LoopbackEndpoint(self, rank)


class LoopbackEndpoint:
    """One rank's side of a :class:`Loopback`."""

    def __init__(self, world: Loopback, rank: int):
        self.world, self.rank, self.size = world, rank, world.size

    def direct(self, peers: Sequence[int], tag: int) -> bool:
        """Loopback delivers into the receiver's memory, never in place."""
        return False

    def batch(self, postings: Sequence[Posting], tag: int, repeated: bool) -> Batch:
        """Prepare messages; see :class:`hpccoll.transport.Endpoint`."""
        return LoopbackBatch(self, postings, tag)


class LoopbackBatch:
    """Messages of one loopback rank."""

    def __init__(self, endpoint: LoopbackEndpoint, postings: Sequence[Posting], tag: int):
        self.endpoint, self.postings, self.tag = endpoint, postings, tag
        self.pending: list[_Posted] = []

    def start(self) -> None:
        self.pending = [_Posted(sends, array) for sends, _, array, _ in self.postings]
        world, rank = self.endpoint.world, self.endpoint.rank
        for (sends, peer, array, _), posted in zip(self.postings, self.pending):
            if not sends:
                spoil(array)
            elif world.eager:
                posted.array = array.copy()
            pair = (rank, peer, self.tag) if sends else (peer, rank, self.tag)
            queue = world.queues.setdefault(pair, deque())
            if queue and queue[0].sends != sends:
                partner = queue.popleft()
                source, sink = (posted, partner) if sends else (partner, posted)
                if source.array.nbytes != sink.array.nbytes:
                    source.error = sink.error = MessageSizeError(
                        f"a message of {source.array.nbytes} bytes from rank {pair[0]} met a "
                        f"receive of {sink.array.nbytes} bytes on rank {pair[1]}")
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


class _Posted:
    """A message that waits for its partner."""

    def __init__(self, sends: bool, array: Any):
        self.sends, self.array, self.done = sends, array, False
        self.error: MessageSizeError | None = None


def spoil(array: Any) -> None:
    """Overwrite a buffer with a pattern no test expects."""
    array.view(numpy.uint8)[...] = 0xA5
