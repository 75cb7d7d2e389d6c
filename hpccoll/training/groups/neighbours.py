"""Messages of arrays between neighbours with a time-out, and rings of sequence blocks.

Elements are sent as bytes, because MPI lacks some dtypes such as bfloat16.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy
from mpi4py import MPI

from hpccoll import config
from hpccoll.errors import ArgumentError, MessageSizeError
from hpccoll.runtime.progress.waiting import PendingRun, WaitTimer

#: Seconds between two checks for dead ranks.
AGAIN = 1.0


class MessageRequest:
    """Pending send or receive of an array.

    Args:
        comm: the ranks.
        title: description of the array, for messages.
        peer: the other rank.
        request: MPI request.
        nbytes: expected bytes of a receive; ``None`` for a send.
        keep: object that must live until completion.
    """

    def __init__(self, comm: Any, title: str, peer: int, request: Any, nbytes: int | None,
                 keep: Any):
        self.comm, self.title, self.peer, self.request = comm, title, peer, request
        self.nbytes, self.keep, self.checked = nbytes, keep, time.monotonic()
        self.rank = comm.Get_rank()

    def wait(self) -> None:
        """Wait for completion.

        Raises:
            CollectiveTimeout: no message for ``HPCCOLL_TIMEOUT`` seconds, or a rank stays stopped;
                the message names the peer.
            PeerLost: a rank has died or exited.
            MessageSizeError: the received array has another size.
        """
        environment, status = config.load(), MPI.Status()
        watch = WaitTimer(self, getattr(self.comm, "timeout", environment.timeout),
                          environment.report, self._check_ranks,
                          getattr(self.comm, "check_ranks", None))  # of hpccoll.Comm only
        while not self._test(status):
            watch.pause()
        if self.nbytes is not None and status.Get_count(MPI.BYTE) != self.nbytes:
            raise MessageSizeError(self._size_error(f"{status.Get_count(MPI.BYTE)} bytes"))
        self.keep = None

    def _test(self, status: MPI.Status) -> bool:
        try:
            return bool(self.request.Test(status))
        except MPI.Exception as error:
            if error.Get_error_class() == MPI.ERR_TRUNCATE:
                raise MessageSizeError(self._size_error("more bytes")) from error
            raise

    def pending_peers(self) -> tuple[int, tuple[int, ...]]:
        """Return no round, and the other rank."""
        return 0, (self.peer,)

    def _check_ranks(self, awaited: PendingRun) -> None:
        """Raise if a rank has died or exited; looks once a second."""
        now = time.monotonic()
        if now - self.checked >= AGAIN and hasattr(self.comm, "check_ranks"):
            self.checked = now
            self.comm.check_ranks((self.peer,))

    def _size_error(self, sent: str) -> str:
        return (f"{self.title}: rank {self.peer} sent {sent}, rank {self.rank} "
                f"expects {self.nbytes}; pass the same shapes on all ranks")


def send(comm: Any, array: Any, to: int, tag: int, title: str) -> MessageRequest:
    """Send an array, which must not change before the wait."""
    data = numpy.ascontiguousarray(array).reshape(-1).view("u1")
    return MessageRequest(comm, title, to, comm.Isend(data, to, tag), None, data)


def receive(comm: Any, into: Any, frm: int, tag: int, title: str) -> MessageRequest:
    """Receive into an array."""
    into = numpy.asarray(into)
    if not (into.flags.c_contiguous and into.flags.writeable):
        raise ArgumentError("into", "is read-only or not contiguous", "pass a writable array")
    data = into.reshape(-1).view("u1")
    return MessageRequest(comm, title, frm, comm.Irecv(data, frm, tag), data.nbytes, data)


def wait_all(passages: Sequence[MessageRequest]) -> None:
    """Wait for several messages."""
    for passage in passages:
        passage.wait()


# Ring attention (Liu, Zaharia and Abbeel, 2023): while a rank works on one block, it sends this one
# to the right and receives the next one from the left. It sends (P - 1) / P of all blocks in total.
#
#     rank 0   [0]  [2]  [1]          three ranks, three turns; brackets contain the owner of
#     rank 1   [1]  [0]  [2]          the block in each turn
#     rank 2   [2]  [1]  [0]
#
# All ranks must exhaust the iterator. A communicator supports one ring at a time.

#: Tags of blocks and of their sums.
BLOCK_TAG, SUM_TAG = 71, 72


def ring_blocks(comm: Any, block: Any, shapes: Sequence[tuple[int, ...]] | None = None
                ) -> Iterator[tuple[int, Any]]:
    """Iterate over the blocks of all ranks, this rank's first.

    Args:
        comm: the ranks in the ring, such as ``mesh.sp``.
        block: block of this rank; one dtype on all ranks; not modified.
        shapes: shapes of all ranks' blocks; exchanged if omitted.

    Yields:
        The rank that owns a block, and the block, which is read-only and valid until the next
        turn.

    Raises:
        CollectiveTimeout: a neighbour sent no block in time.
        MessageSizeError: the shape of a block differs from ``shapes``.
    """
    rank, size = comm.Get_rank(), comm.Get_size()
    held: Any = numpy.ascontiguousarray(block)
    known = comm.allgather(held.shape) if shapes is None else shapes
    right, left = (rank + 1) % size, (rank - 1) % size
    for turn in range(size):
        moving, coming = [], None
        if turn < size - 1:
            coming = numpy.empty_like(held, shape=known[(rank - turn - 1) % size])
            moving = [receive(comm, coming, left, BLOCK_TAG, "ring of blocks"),
                      send(comm, held, right, BLOCK_TAG, "ring of blocks")]
        yield (rank - turn) % size, _read_only_view(held)
        wait_all(moving)
        held = coming


def ring_sums(comm: Any, block: Any, sums: Any, shapes: Sequence[tuple[int, ...]] | None = None
              ) -> Iterator[tuple[int, Any, Any]]:
    """Iterate over the blocks of all ranks, and return a sum for each to its owner.

    For gradients of keys and values: each rank adds the contribution of its queries to the gradient
    of each block. The sum of a block starts at its owner and moves to the right. A rank adds its
    contribution when the partial sum has arrived, so communication overlaps with computation.

    Args:
        comm: the ranks in the ring.
        block: block of this rank; not modified.
        sums: output for the sum of this rank's block; overwritten.
        shapes: shapes of all ranks' blocks; exchanged if omitted.

    Yields:
        The rank that owns a block, the block, and zeros of the shape of that rank's sum, to be
        filled before the next turn. A sum has the shape of its block.

    Raises:
        CollectiveTimeout: a neighbour sent no block in time.
        MessageSizeError: the shape of a block differs from ``shapes``.
    """
    rank, size, sums = comm.Get_rank(), comm.Get_size(), numpy.asarray(sums)
    right, left = (rank + 1) % size, (rank - 1) % size
    leaving: list[Any] = []
    for owner, held in ring_blocks(comm, block, shapes):
        added = numpy.zeros_like(sums, shape=held.shape, order="C")
        coming = []
        if owner != rank:
            arriving = numpy.empty_like(added)
            coming = [receive(comm, arriving, left, SUM_TAG, "ring of sums")]
        yield owner, held, added
        wait_all([*coming, *leaving])
        if owner != rank:
            # Add into the filled array: terms are summed in ring order.
            numpy.add(arriving, added, out=added)
        leaving = [send(comm, added, right, SUM_TAG, "ring of sums")]
    home = numpy.empty_like(added, shape=sums.shape)
    wait_all([receive(comm, home, left, SUM_TAG, "ring of sums"), *leaving])
    sums[...] = home


def _read_only_view(array: Any) -> Any:
    view = array.view()
    view.flags.writeable = False
    return view
