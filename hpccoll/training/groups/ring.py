"""Ring exchange of sequence blocks for ring attention (Liu, Zaharia and Abbeel, 2023).

Each rank receives the blocks of all ranks in turn, and holds at most two besides its own: while it
works on one, it sends this block to the right and receives the next one from the left. A rank
sends (P - 1) / P of all blocks in total.

    rank 0   [0]  [2]  [1]          three ranks, three turns; brackets contain the owner of
    rank 1   [1]  [0]  [2]          the block in each turn
    rank 2   [2]  [1]  [0]

All ranks must exhaust the iterator. A communicator supports one ring at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy

from hpccoll.training.groups.neighbours import receive, send, wait_all

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
    """Return a read-only view."""
    view = array.view()
    view.flags.writeable = False
    return view
