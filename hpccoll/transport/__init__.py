"""Transports move bytes between this rank and a peer.

A transport knows bytes and peers. It imports ``hpccoll.errors`` and this room, nothing else of
the package: schedules, operators and limits stay above it, or are handed in as numbers.

    mpi.py       MPI point-to-point messages; works everywhere
    shm/         shared memory between the ranks of a node
    loopback.py  all ranks in one process, for tests

An endpoint is one rank's side of a transport. Its one verb is ``batch``: the messages of a
round, prepared; the batch is then started and tested, once or again and again. Messages
between two ranks with one tag arrive in the order in which they were started.

A message may be for, or from, what the network does with messages of several ranks: its posting has
a :class:`NetworkOperation` in place of the peer then. Few transports can do that; each says so in
``offers``.

    mpi.py, shm/, checked.py    nothing: messages of two ranks
    loopback.py                 multicast, reduction in the network

Above a tag's own bits stands the stamp of the call (:mod:`hpccoll.transport.stamps`). A message of
one stamp must never be taken for one of another: it stalls, or is an error.

A new transport is a module, or a package, with a class that follows :class:`Endpoint`. Add it to
``FLAVOURS`` in ``tests/contract/ranks.py``, whose rules it must keep, and to
``runtime/context.py``, which picks the endpoint of a communicator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import setitem
from typing import Any, NamedTuple, Protocol

#: What a network can do beyond messages of two ranks; what most transports offer of it.
NETWORK, NOTHING = frozenset(("multicast", "in-network reduction")), frozenset[str]()
#: A call to make later: function and operands.
Action = tuple[Callable[..., Any], tuple[Any, ...]]
#: What to do with a received message: function, operands, place, start and stop stand for
#: ``function(*operands)`` with ``message[start:stop]`` put into ``operands[place]``.
MessageUse = tuple[Callable[..., Any], tuple[Any, ...], int, int, int]


class NetworkOperation(NamedTuple):
    """What the network makes of messages of several ranks.

    Its n-th operation takes the n-th message of each source, and gives the result to the n-th
    receive of each sink, when all of these are posted.

    Attributes:
        sources, sinks: ranks.
        combine: ``combine(left, right, into)`` reduces two messages, in any order; ``None`` where
            there is one source.
    """

    sources: tuple[int, ...]
    sinks: tuple[int, ...]
    combine: Callable[..., Any] | None = None


class Posting(NamedTuple):
    """One message to prepare.

    Attributes:
        sends: True for a message from this rank, False for a message to it.
        peer: the other rank, or what the network does.
        array: contiguous memory to send from or to receive into.
        uses: what to do with a received message instead of leaving it in ``array``, in order;
            only for endpoints that are ``direct``.
    """

    sends: bool
    peer: Any
    array: Any
    uses: Sequence[MessageUse] = ()


def copying(into: Any, source: Any) -> Action:
    """A copy between contiguous NumPy arrays as a call that can be made again and again.

    Between memory views it takes 50 ns; ``numpy.copyto`` takes 300 before it begins.

    Raises:
        TypeError: an array is no host memory.
    """
    # Not array.data: CuPy has an attribute of that name, which is no memory view.
    return setitem, (memoryview(into.view("u1")), slice(None), memoryview(source.view("u1")))


class Batch(Protocol):
    """Messages that start together and complete together."""

    def start(self) -> None:
        """Post all messages; buffers belong to the transport until ``test`` returns True."""

    def test(self, tries: int = 1) -> bool:
        """Make progress; tell whether all messages have completed. Never blocks.

        A transport may poll for a missing message up to ``tries`` times. Once all messages have
        completed, every further test returns True and does nothing.
        """

    def free(self) -> None:
        """Give the resources of an idle batch back; it cannot be started again."""


class Endpoint(Protocol):
    """One rank's side of a transport.

    Attributes:
        rank, size: of this side, and of all.
        offers: what the network can do for messages of several ranks: of :data:`NETWORK`.
    """

    rank: int
    size: int
    offers: frozenset[str]

    def direct(self, peers: Sequence[int], tag: int) -> bool:
        """Tell whether messages from these ranks can be used in place (``Posting.uses``)."""

    def batch(self, postings: Sequence[Posting], tag: int, repeated: bool) -> Batch:
        """Prepare messages; ``repeated`` says that the batch will be started many times.

        Raises:
            MessageSizeError: from ``test``, when a message arrives with another size.
        """
