"""Ring exchange of sequence blocks, as ring attention needs it (Liu, Zaharia and Abbeel, 2023).

Every rank sees the blocks of all ranks, one after the other, and never holds more than two beside
its own: while it works on one, it sends that on to the right, and the next one comes in from the
left. A rank sends (P - 1) / P of all blocks together.

    rank 0   [0]  [2]  [1]          three ranks, three turns; each works on the block of
    rank 1   [1]  [0]  [2]          the rank that stands in brackets
    rank 2   [2]  [1]  [0]

All ranks must go round to the end, and one ring at a time on a communicator.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy

from hpccoll.training.groups.neighbours import receive, send, wait_all

#: Tags of blocks, and of the sums that go with them.
BLOCK_TAG, SUM_TAG = 71, 72


def ring_blocks(comm: Any, block: Any, shapes: Sequence[tuple[int, ...]] | None = None
                ) -> Iterator[tuple[int, Any]]:
    """Go round the blocks of all ranks, this one's first.

    Args:
        comm: the ranks in the ring, such as ``mesh.sp``.
        block: this rank's, of any type, the same on all; not written to.
        shapes: of all ranks' blocks; they are asked for if omitted.

    Yields:
        The rank that a block belongs to, and the block, which is read-only and valid until the
        next turn.

    Raises:
        CollectiveTimeout: a neighbour did not come along.
        MessageSizeError: a block has another shape than was said.
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
        yield (rank - turn) % size, _read_only(held)
        wait_all(moving)
        held = coming


def ring_sums(comm: Any, block: Any, sums: Any, shapes: Sequence[tuple[int, ...]] | None = None
              ) -> Iterator[tuple[int, Any, Any]]:
    """Go round the blocks of all ranks, with a sum for each that comes home in the end.

    This is the way of the gradients of keys and values: every rank adds what its queries give to
    the gradient of each block. A block's sum is added up from its own rank on, to the right; what
    is on its way meets what a rank adds only when both are there, so it travels while ranks work.

    Args:
        comm: the ranks in the ring.
        block: this rank's; not written to.
        sums: array for the sum of this rank's block; whatever is in it is overwritten.
        shapes: of all ranks' blocks; they are asked for if omitted.

    Yields:
        The rank that a block belongs to, the block, and zeros of the shape of that rank's sum,
        to be filled in before the next turn. A sum has its block's shape.

    Raises:
        CollectiveTimeout: a neighbour did not come along.
        MessageSizeError: a block has another shape than was said.
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
            # Into the array that was filled in: the order of the terms is that of the ring.
            numpy.add(arriving, added, out=added)
        leaving = [send(comm, added, right, SUM_TAG, "ring of sums")]
    home = numpy.empty_like(added, shape=sums.shape)
    wait_all([receive(comm, home, left, SUM_TAG, "ring of sums"), *leaving])
    sums[...] = home


def _read_only(array: Any) -> Any:
    """A view that cannot be written to."""
    view = array.view()
    view.flags.writeable = False
    return view
