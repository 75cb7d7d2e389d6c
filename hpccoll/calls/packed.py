"""Packing of derived datatypes, and of predefined datatypes with gaps.

Ranks may describe the same elements by different datatypes, derived or not, so all must run the
same algorithm. A rank with a derived datatype packs its input when the call starts, and unpacks its
result at the end. Reductions of derived datatypes are native.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy
from mpi4py import MPI


class Block(NamedTuple):
    """``count`` elements of a datatype at ``displ`` bytes from the start of a buffer."""

    datatype: MPI.Datatype
    count: int  # type: ignore[assignment]  # MPI's word; tuple.count is not used
    displ: int

    @property
    def nbytes(self) -> int:
        """Bytes of the elements, without gaps."""
        return self.count * self.datatype.Get_size()


class PackedBlocks:
    """Blocks of elements in a buffer, and their bytes packed into an array.

    Args:
        memory: the start of the buffer, kept alive; ``None`` for ``MPI.BOTTOM``. As in mpi4py, a
            datatype may extend beyond it: a column starts in the first row of a matrix.
        blocks: the blocks.
        writable: True if they will be unpacked again.
    """

    def __init__(self, memory: numpy.ndarray | None, blocks: Sequence[Block], writable: bool):
        self.memory, self.writable = memory, writable
        self.blocks = [block for block in blocks if block.nbytes]
        self.array = numpy.empty(sum(block.nbytes for block in self.blocks), "u1")
        self.span = 0, 0
        self.datatype = MPI.DATATYPE_NULL

    def load(self, once: bool = False) -> None:
        """Pack the elements; afterwards the caller may free the datatype.

        ``once``: no ``store`` will follow.
        """
        if self.blocks:
            self._commit()
            self.datatype.Pack(self._bytes(), self.array, 0, MPI.COMM_SELF)
            if once or not self.writable:
                self._close()

    def store(self) -> None:
        """Unpack the elements and free the datatype."""
        if self.blocks:
            self.datatype.Unpack(self.array, 0, self._bytes(), MPI.COMM_SELF)
            self._close()

    def _close(self) -> None:
        if self.datatype != MPI.DATATYPE_NULL:
            self.datatype.Free()

    def _bytes(self) -> MPI.memory:
        """Return the memory that the datatype spans."""
        begin = 0 if self.memory is None else self.memory.__array_interface__["data"][0]
        start, stop = self.span
        return MPI.memory.fromaddress(begin + start, stop - start)

    def _commit(self) -> None:
        """Create one datatype for all blocks, from the first byte to the last.

        mpi4py counts elements as bytes of a buffer divided by the extent, which may have any value.
        """
        self._close()
        starts, stops = zip(*map(_span, self.blocks))
        start, stop = self.span = min(starts), max(stops)
        types, counts, displs = zip(*self.blocks)
        whole = MPI.Datatype.Create_struct(counts, [displ - start for displ in displs], types)
        self.datatype = whole.Create_resized(0, stop - start).Commit()
        whole.Free()


def _span(block: Block) -> tuple[int, int]:
    """Return the first used byte of a block, and the first byte after it."""
    _, extent = block.datatype.Get_extent()
    begin, length = block.datatype.Get_true_extent()
    last = (block.count - 1) * extent
    return block.displ + begin + min(last, 0), block.displ + begin + max(last, 0) + length
