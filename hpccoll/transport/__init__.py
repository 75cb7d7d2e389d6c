"""Transports move bytes between this rank and a peer, and know nothing of schedules.

An endpoint is one rank's side of a transport. Its one verb is ``batch``: the messages of a
round, prepared; the batch is then started and tested, once or again and again. Messages
between two ranks with one tag arrive in the order in which they were started.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import setitem
from typing import Any, NamedTuple, Protocol

import numpy


class Posting(NamedTuple):
    """One message to prepare.

    Attributes:
        kind: ``send`` or ``recv``.
        peer: the other rank.
        array: contiguous memory sent from or received into.
        uses: what to do with a received message instead of leaving it in ``array``, for
            endpoints that read messages in place: (function, operands, place, start, stop) -
            ``function(*operands)`` with ``message[start:stop]`` put into ``operands[place]``.
    """

    kind: str
    peer: int
    array: Any
    uses: Sequence[tuple[Callable, tuple, int, int, int]] = ()


def copying(into: numpy.ndarray, source: numpy.ndarray) -> tuple[Callable, tuple]:
    """A copy between contiguous arrays as a call that can be made again and again.

    Between memory views it takes 50 ns; ``numpy.copyto`` takes 300 before it begins.
    """
    return setitem, (memoryview(into.view("u1")), slice(None), memoryview(source.view("u1")))


class Batch(Protocol):
    """Messages that start together and complete together."""

    def start(self) -> None:
        """Post all messages; buffers belong to the transport until ``test`` says True."""

    def test(self, tries: int = 1) -> bool:
        """Make progress; tell whether all messages have completed. Never blocks.

        A message that is missing may be looked for ``tries`` times. Once all have completed, every
        further test says so again, and does nothing.
        """

    def free(self) -> None:
        """Give the resources of an idle batch back; it cannot be started again."""


class Endpoint(Protocol):
    """One rank's side of a transport."""

    rank: int
    size: int

    def direct(self, peers: Sequence[int], tag: int) -> bool:
        """Tell whether messages from these ranks can be used in place (``Posting.uses``)."""

    def batch(self, postings: Sequence[Posting], tag: int, repeated: bool) -> Batch:
        """Prepare messages; ``repeated`` says that the batch will be started many times.

        Raises:
            MessageSizeError: from ``test``, when a message arrives with another size.
        """
