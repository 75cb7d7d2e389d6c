"""Transports move bytes between this rank and a peer, and know nothing of schedules.

An endpoint is one rank's side of a transport. Its one verb is ``batch``: the messages of a
round, prepared; the batch is then started and tested, once or again and again. Messages
between two ranks with one tag arrive in the order in which they were started.
"""

from __future__ import annotations

from typing import Any, Protocol, Sequence

#: One prepared message: (``send`` or ``recv``, peer, contiguous array).
Posting = tuple[str, int, Any]


class Batch(Protocol):
    """Messages that start together and complete together."""

    def start(self) -> None:
        """Post all messages; buffers belong to the transport until ``test`` says True."""

    def test(self) -> bool:
        """Make progress; tell whether all messages have completed. Never blocks."""

    def free(self) -> None:
        """Give the resources of an idle batch back; it cannot be started again."""


class Endpoint(Protocol):
    """One rank's side of a transport."""

    rank: int
    size: int

    def batch(self, postings: Sequence[Posting], tag: int, repeated: bool) -> Batch:
        """Prepare messages; ``repeated`` says that the batch will be started many times.

        Raises:
            MessageSizeError: from ``test``, when a message arrives with another size.
        """
