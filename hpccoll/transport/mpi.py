"""MPI point-to-point messages, as single requests or as persistent ones.

The stamp of a tag goes into MPI's tag, as far as MPI's largest one leaves room: messages of calls
that disagree are of different tags, so a receive never gets one (:class:`Tags`).

A batch is polled with ``Testall``, never waited for with a blocking MPI call. Polling is as fast as
``Waitall`` here, and it survives oversubscription, Ctrl-C and deadlines.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from mpi4py import MPI

from hpccoll.errors import MessageSizeError
from hpccoll.transport import NOTHING, Posting
from hpccoll.transport.stamps import KIND, split

#: Messages of up to so many bytes leave their sender's memory when they are posted, whatever the
#: library; larger ones may be read much later, when a sender that gave up has other data there.
SAFE = 64
_startall, _testall = MPI.Prequest.Startall, MPI.Request.Testall


#: Tags below this are for blocking calls; most messages have one of them, and most of MPI's tags.
FIRST_TAG = 16
#: Most of the other tags.
MOST_TAGS = 1 << 16


class Tags:
    """How tags with their stamps become MPI's, none larger than ``bound``.

    Args:
        bound: the largest that MPI has, 32767 or more.

    Attributes:
        turns: tags from ``FIRST_TAG`` on that there are.
    """

    def __init__(self, bound: int):
        self.half = bound // 2 + 1
        self.ways = self.half // FIRST_TAG
        self.turns = min(MOST_TAGS, bound + 1 - self.half)
        self.other_ways = (bound + 1 - self.half) // self.turns

    def of(self, tag: int) -> int:
        """MPI's tag of a tag with a stamp.

        >>> Tags(32767).of(3), Tags(32767).of(19), Tags(32767).of(1 << 32 | 3)
        (3, 16387, 19)
        """
        tag, stamp = split(tag)
        # Kinds of elements go with each other sometimes, and tags never do.
        stamp &= ~KIND
        if tag < FIRST_TAG:
            return tag + FIRST_TAG * (stamp % self.ways)
        return self.half + tag - FIRST_TAG + self.turns * (stamp % self.other_ways)

    def foreign(self, found: int, tag: int) -> bool:
        """Tell whether a message that was found is of a tag's, but of another call's stamp."""
        wanted = self.of(tag)
        if found == wanted or (found < self.half) != (wanted < self.half):
            return False
        if wanted < self.half:
            return found % FIRST_TAG == wanted % FIRST_TAG
        return (found - wanted) % self.turns == 0


class MpiEndpoint:
    """This process's side of a private communicator."""

    #: MPI's messages have one receiver each.
    offers = NOTHING

    def __init__(self, comm: MPI.Intracomm):
        self.comm, self.rank, self.size = comm, comm.Get_rank(), comm.Get_size()
        self.tags = Tags(cast(int, MPI.COMM_WORLD.Get_attr(MPI.TAG_UB)))
        #: Raises where a rank has said that it has given up.
        self.heard: Callable[[], None] | None = None

    def direct(self, peers: Sequence[int], tag: int) -> bool:
        """MPI delivers into the receiver's memory, never in place."""
        return False

    def batch(self, postings: Sequence[Posting], tag: int,
              repeated: bool) -> PersistentBatch | SingleBatch:
        """Prepare messages; see :class:`hpccoll.transport.Endpoint`."""
        return (PersistentBatch if repeated else SingleBatch)(self, postings, self.tags.of(tag))


def _has_lost(comm: MPI.Comm) -> bool:
    """Tell whether the library knows that ranks of a communicator died, or that it was revoked."""
    try:
        return bool(comm.Is_revoked() or comm.Get_failed().Get_size())
    except (NotImplementedError, MPI.Exception):
        return False  # it has no ULFM


class SingleBatch:
    """Messages posted with ``Isend`` and ``Irecv``; received sizes are checked."""

    def __init__(self, endpoint: MpiEndpoint, postings: Sequence[Posting], tag: int):
        self.endpoint, self.comm, self.tag = endpoint, endpoint.comm, tag
        self.large = largest(postings) > SAFE
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
            # Libraries that say "look into the statuses" need not have filled them.
            if kind == MPI.ERR_TRUNCATE or kind == MPI.ERR_IN_STATUS and not _has_lost(self.comm):
                raise MessageSizeError(f"a message is longer than its receive ({error}); pass the "
                                       "same counts on all ranks") from error
            raise
        if self.large and self.requests and self.endpoint.heard is not None:
            self.endpoint.heard()
        # A test after the last one waits for nothing, and checks no status a second time.
        statuses, self.statuses, self.requests = self.statuses, [], []
        for (sends, peer, (_, nbytes, _)), status in zip(self.postings, statuses):
            if not sends and status.Get_count(MPI.BYTE) != nbytes:
                raise MessageSizeError(
                    f"message size differs: rank {peer} sent {status.Get_count(MPI.BYTE)} bytes, "
                    f"rank {self.comm.Get_rank()} expected {nbytes}; pass the same counts on all "
                    "ranks")
        return True

    def missing(self) -> list[int]:
        """Ranks whose messages have not come, or have not been taken."""
        return missing(self.requests, self.peers)

    def free(self) -> None:
        self.requests = []


class PersistentBatch:
    """Messages prepared once with ``Send_init`` and ``Recv_init``, started many times."""

    def __init__(self, endpoint: MpiEndpoint, postings: Sequence[Posting], tag: int):
        comm, self.endpoint = endpoint.comm, endpoint
        self.large, self.peers = largest(postings) > SAFE, peers_of(postings)
        self.requests = [(comm.Send_init if sends else comm.Recv_init)(
            wire(array), peer, tag) for sends, peer, array, _ in postings]

    def start(self) -> None:
        _startall(self.requests)

    def test(self, tries: int = 1) -> bool:
        while not _testall(self.requests):
            tries -= 1
            if tries <= 0:
                return False
        if self.large and self.endpoint.heard is not None:
            self.endpoint.heard()
        return True

    def missing(self) -> list[int]:
        """Ranks whose messages have not come, or have not been taken."""
        return missing(self.requests, self.peers)

    def free(self) -> None:
        for request in self.requests:
            request.Free()
        self.requests = []


def peers_of(postings: Sequence[Posting]) -> list[int]:
    """Of each message whom it goes to or comes from."""
    return [posting.peer for posting in postings]


def missing(requests: Sequence[MPI.Request], peers: Sequence[int]) -> list[int]:
    """The peers whose requests are not complete; who has to take a message is in no later call."""
    return [peer for request, peer in zip(requests, peers) if not request.Get_status()]


def largest(postings: Sequence[Posting]) -> int:
    """Bytes of the largest message to receive."""
    return max((posting.array.nbytes for posting in postings if not posting.sends), default=0)


def wire(array: Any) -> list[Any]:
    """An array as mpi4py takes it: memory, bytes, MPI.BYTE; device memory is passed as it is.

    Requests keep the memory object alive, but the memory object does not keep the array alive:
    whoever made the batch must keep its buffers.
    """
    if hasattr(array, "__cuda_array_interface__"):
        return [array, array.nbytes, MPI.BYTE]
    address = array.__array_interface__["data"][0]
    return [MPI.memory.fromaddress(address, array.nbytes), array.nbytes, MPI.BYTE]
