"""Transports move bytes between this rank and a peer.

A transport knows bytes and peers. It imports ``hpccoll.errors`` and this room, nothing else of
the package: schedules, operators and limits stay above it, or are handed in as numbers.

    mpi.py       MPI point-to-point messages; works everywhere
    shm/         shared memory between the ranks of a node
    loopback.py  all ranks in one process, for tests

An endpoint is one rank's side of a transport. Its one verb is ``batch``: the messages of a
round, prepared; the batch is then started and tested, once or again and again. Messages
between two ranks with one tag arrive in the order in which they were started.

The peer of a posting may be a :class:`NetworkOperation`: a multicast or a reduction by the network.
Each transport lists the operations that it supports in ``offers``:

    mpi.py, shm/, checked.py    none: messages between two ranks
    loopback.py                 multicast, reduction in the network

The bits above a tag are the call hash (:mod:`hpccoll.transport.call_hashes`). A receive must not
accept a message with another call hash: it waits, or raises an error.

A new transport is a module, or a package, with a class that follows :class:`Endpoint`. Add it to
``FLAVOURS`` in ``tests/contract/ranks.py``, whose rules it must keep, and to
``runtime/context.py``, which picks the endpoint of a communicator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import setitem
from typing import Any, NamedTuple, Protocol

#: Operations that a network may support, and those that most transports offer.
NETWORK, NOTHING = frozenset(("multicast", "in-network reduction")), frozenset[str]()
#: A deferred call: function and operands.
Action = tuple[Callable[..., Any], tuple[Any, ...]]
#: Use of a received message: function, operands, place, start and stop mean
#: ``function(*operands)`` with ``message[start:stop]`` as ``operands[place]``.
MessageUse = tuple[Callable[..., Any], tuple[Any, ...], int, int, int]


class NetworkOperation(NamedTuple):
    """An operation of the network on messages of several ranks.

    The n-th operation reads the n-th message of each source and completes the n-th receive of each
    sink, when all of them are posted.

    Attributes:
        sources, sinks: ranks.
        combine: ``combine(left, right, into)`` reduces two messages, in any order; ``None`` with
            one source.
    """

    sources: tuple[int, ...]
    sinks: tuple[int, ...]
    combine: Callable[..., Any] | None = None


class MessageSpec(NamedTuple):
    """One message to prepare.

    Attributes:
        sends: True for a message from this rank, False for a message to it.
        peer: the other rank, or a network operation.
        array: contiguous memory to send from or to receive into.
        uses: calls on a received message, in order, instead of storing it in ``array``; only if
            the endpoint is ``direct``.
    """

    sends: bool
    peer: Any
    array: Any
    uses: Sequence[MessageUse] = ()


def copy_action(into: Any, source: Any) -> Action:
    """Return a repeatable call that copies between contiguous NumPy arrays.

    Memory views take 50 ns; ``numpy.copyto`` has 300 ns of overhead.

    Raises:
        TypeError: an array is not in host memory.
    """
    # Not array.data: CuPy has an attribute of that name, which is no memory view.
    return setitem, (memoryview(into.view("u1")), slice(None), memoryview(source.view("u1")))


class Batch(Protocol):
    """Messages that start together and complete together."""

    def start(self) -> None:
        """Post all messages; buffers belong to the transport until ``test`` returns True."""

    def test(self, tries: int = 1) -> bool:
        """Make progress; return True if all messages have completed. Never blocks.

        A transport may poll for a missing message up to ``tries`` times. Once all messages have
        completed, every further test returns True and does nothing.
        """

    def free(self) -> None:
        """Release the resources of an idle batch; it cannot be started again."""


class Endpoint(Protocol):
    """One rank's side of a transport.

    Attributes:
        rank, size: this rank, and the number of ranks.
        offers: supported network operations, from :data:`NETWORK`.
    """

    rank: int
    size: int
    offers: frozenset[str]

    def direct(self, peers: Sequence[int], tag: int) -> bool:
        """Return True if messages from these ranks can be used in place (``Posting.uses``)."""

    def batch(self, postings: Sequence[MessageSpec], tag: int, repeated: bool) -> Batch:
        """Prepare messages; ``repeated`` if the batch will be started many times.

        Raises:
            MessageSizeError: from ``test``, when a message arrives with another size.
        """
