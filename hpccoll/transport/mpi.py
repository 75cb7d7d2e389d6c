"""MPI point-to-point messages, as single requests or as persistent ones.

MPI's tag contains as many bits of the call hash as the largest tag allows. So messages of different
calls have different tags, and a receive does not match them (:class:`Tags`).

A batch is polled with ``Testall``; no blocking MPI call waits for it. Polling is as fast as
``Waitall`` here, and supports oversubscription, Ctrl-C and time-outs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from mpi4py import MPI

from hpccoll.errors import MessageSizeError
from hpccoll.transport import NOTHING, MessageSpec
from hpccoll.transport.call_hashes import KIND, split

#: Messages of up to this size are copied when they are posted, in every library. Larger ones may be
#: read much later, when a failed sender has other data there.
SAFE = 64
_startall, _testall = MPI.Prequest.Startall, MPI.Request.Testall


#: Tags below this are for blocking calls, which get most of MPI's tags.
FIRST_TAG = 16
#: Maximum number of other tags.
MOST_TAGS = 1 << 16


class Tags:
    """Map tags with call hashes to MPI tags of at most ``bound``.

    Args:
        bound: MPI_TAG_UB, at least 32767.

    Attributes:
        turns: number of tags from ``FIRST_TAG`` on.
    """

    def __init__(self, bound: int):
        self.half = bound // 2 + 1
        self.ways = self.half // FIRST_TAG
        self.turns = min(MOST_TAGS, bound + 1 - self.half)
        self.other_ways = (bound + 1 - self.half) // self.turns

    def of(self, tag: int) -> int:
        """Return the MPI tag of a tag with a call hash.

        >>> Tags(32767).of(3), Tags(32767).of(19), Tags(32767).of(1 << 32 | 3)
        (3, 16387, 19)
        """
        tag, call_hash = split(tag)
        # Different kinds of elements may match; different tags never do.
        call_hash &= ~KIND
        if tag < FIRST_TAG:
            return tag + FIRST_TAG * (call_hash % self.ways)
        return self.half + tag - FIRST_TAG + self.turns * (call_hash % self.other_ways)

    def foreign(self, found: int, tag: int) -> bool:
        """Return True if a found MPI tag belongs to ``tag``, but to another call hash."""
        wanted = self.of(tag)
        if found == wanted or (found < self.half) != (wanted < self.half):
            return False
        if wanted < self.half:
            return found % FIRST_TAG == wanted % FIRST_TAG
        return (found - wanted) % self.turns == 0


def tags_of_library() -> Tags:
    """Return the tags that the MPI library has."""
    return Tags(cast(int, MPI.COMM_WORLD.Get_attr(MPI.TAG_UB)))


class MpiEndpoint:
    """One rank's side of a private communicator.

    ``on_alarm`` raises an error if another rank has failed.
    """

    #: MPI's messages have one receiver each.
    offers = NOTHING

    def __init__(self, comm: MPI.Intracomm, on_alarm: Callable[[], None] | None = None):
        self.comm, self.rank, self.size = comm, comm.Get_rank(), comm.Get_size()
        self.tags, self.on_alarm = tags_of_library(), on_alarm

    def direct(self, peers: Sequence[int], tag: int) -> bool:
        """Return False: MPI delivers into the memory of the receiver."""
        return False

    def batch(self, postings: Sequence[MessageSpec], tag: int,
              repeated: bool) -> PersistentBatch | SingleBatch:
        """Prepare messages; see :class:`hpccoll.transport.Endpoint`."""
        return (PersistentBatch if repeated else SingleBatch)(self, postings, self.tags.of(tag))


def _has_lost(comm: MPI.Comm) -> bool:
    """Return True if the library reports failed ranks, or a revoked communicator."""
    try:
        return bool(comm.Is_revoked() or comm.Get_failed().Get_size())
    except (NotImplementedError, MPI.Exception):
        return False  # it has no ULFM


class SingleBatch:
    """Messages posted with ``Isend`` and ``Irecv``; received sizes are checked."""

    def __init__(self, endpoint: MpiEndpoint, postings: Sequence[MessageSpec], tag: int):
        self.endpoint, self.comm, self.tag = endpoint, endpoint.comm, tag
        self.large = largest_receive(postings) > SAFE
        self.postings = [(sends, peer, wire(array)) for sends, peer, array, _ in postings]
        self.peers = peers_of(postings)
        self.requests: list[MPI.Request] = []
        self.statuses: list[MPI.Status] = []

    def start(self) -> None:
        comm, tag = self.comm, self.tag
        self.requests = [comm.Isend(buffer, peer, tag) if sends
                         else comm.Irecv(buffer, peer, tag)
                         for sends, peer, buffer in self.postings]
        self.statuses = [MPI.Status() for _ in self.requests]

    def test(self, tries: int = 1) -> bool:
        try:
            if not _testall(self.requests, self.statuses):
                return False
        except MPI.Exception as error:
            kind = error.Get_error_class()
            # Libraries that return ERR_IN_STATUS may leave the statuses empty.
            if kind == MPI.ERR_TRUNCATE or kind == MPI.ERR_IN_STATUS and not _has_lost(self.comm):
                raise MessageSizeError(f"a message is longer than its receive ({error}); pass the "
                                       "same counts on all ranks") from error
            raise
        if self.large and self.requests and self.endpoint.on_alarm is not None:
            self.endpoint.on_alarm()
        # A later test returns immediately and does not check the statuses again.
        statuses, self.statuses, self.requests = self.statuses, [], []
        for (sends, peer, (_, nbytes, _)), status in zip(self.postings, statuses):
            if not sends and status.Get_count(MPI.BYTE) != nbytes:
                raise MessageSizeError(
                    f"message size differs: rank {peer} sent {status.Get_count(MPI.BYTE)} bytes, "
                    f"rank {self.comm.Get_rank()} expected {nbytes}; pass the same counts on all "
                    "ranks")
        return True

    def missing_ranks(self) -> list[int]:
        """Return the ranks whose messages are not complete."""
        return incomplete_peers(self.requests, self.peers)

    def free(self) -> None:
        self.requests = []


class PersistentBatch:
    """Messages prepared once with ``Send_init`` and ``Recv_init``, started many times."""

    def __init__(self, endpoint: MpiEndpoint, postings: Sequence[MessageSpec], tag: int):
        comm, self.endpoint = endpoint.comm, endpoint
        self.large, self.peers = largest_receive(postings) > SAFE, peers_of(postings)
        self.requests = [(comm.Send_init if sends else comm.Recv_init)(
            wire(array), peer, tag) for sends, peer, array, _ in postings]

    def start(self) -> None:
        _startall(self.requests)

    def test(self, tries: int = 1) -> bool:
        while not _testall(self.requests):
            tries -= 1
            if tries <= 0:
                return False
        if self.large and self.endpoint.on_alarm is not None:
            self.endpoint.on_alarm()
        return True

    def missing_ranks(self) -> list[int]:
        """Return the ranks whose messages are not complete."""
        return incomplete_peers(self.requests, self.peers)

    def free(self) -> None:
        for request in self.requests:
            request.Free()
        self.requests = []


def peers_of(postings: Sequence[MessageSpec]) -> list[int]:
    """Return the peer of each message."""
    return [posting.peer for posting in postings]


def incomplete_peers(requests: Sequence[MPI.Request], peers: Sequence[int]) -> list[int]:
    """Return the peers whose requests are not complete."""
    return [peer for request, peer in zip(requests, peers) if not request.Get_status()]


def largest_receive(postings: Sequence[MessageSpec]) -> int:
    """Return the bytes of the largest message to receive."""
    return max((posting.array.nbytes for posting in postings if not posting.sends), default=0)


def wire(array: Any) -> list[Any]:
    """Return an array as an mpi4py buffer of bytes; device memory is passed unchanged.

    Requests keep the memory object alive, but the memory object does not keep the array alive: the
    caller must keep the buffers of a batch.
    """
    if hasattr(array, "__cuda_array_interface__"):
        return [array, array.nbytes, MPI.BYTE]
    address = array.__array_interface__["data"][0]
    return [MPI.memory.fromaddress(address, array.nbytes), array.nbytes, MPI.BYTE]
