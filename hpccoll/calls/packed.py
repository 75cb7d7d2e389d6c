"""Derived datatypes, and those with gaps: elements that lie apart, moved as packed bytes.

Ranks may describe the same elements by different datatypes, one of them derived and another not, so
who has a derived one takes part in the same algorithm as the others. What such a rank sends is
packed into bytes when its call starts, and what it gets is unpacked at the end. In an operator's
place, where the elements themselves count, derived datatypes are the MPI library's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy
from mpi4py import MPI


class Block(NamedTuple):
    """``count`` elements of a datatype, ``displ`` bytes behind a buffer's start."""

    datatype: MPI.Datatype
    count: int  # type: ignore[assignment]  # MPI's word; tuple.count is not used
    displ: int

    @property
    def nbytes(self) -> int:
        """Bytes of the elements, without what lies between them."""
        return self.count * self.datatype.Get_size()


class Packed:
    """Blocks of elements in a buffer, and their bytes packed into an array.

    Args:
        memory: where they begin, which stays alive; ``None`` for ``MPI.BOTTOM``. As for mpi4py, a
            datatype may reach beyond it: a column begins in the first row of a matrix.
        blocks: what is there.
        writable: whether they will be unpacked again.
    """

    def __init__(self, memory: numpy.ndarray | None, blocks: Sequence[Block], writable: bool):
        self.memory, self.writable = memory, writable
        self.blocks = [block for block in blocks if block.nbytes]
        self.array = numpy.empty(sum(block.nbytes for block in self.blocks), "u1")
        self.span = 0, 0
        self.datatype = MPI.DATATYPE_NULL

    def load(self, once: bool = False) -> None:
        """Pack the elements. From now on it does not matter if the caller frees the datatype.

        ``once`` says that there will be no ``store`` after this.
        """
        if self.blocks:
            self._commit()
            self.datatype.Pack(self._bytes(), self.array, 0, MPI.COMM_SELF)
            if once or not self.writable:
                self._close()

    def store(self) -> None:
        """Unpack the elements, and be done."""
        if self.blocks:
            self.datatype.Unpack(self.array, 0, self._bytes(), MPI.COMM_SELF)
            self._close()

    def _close(self) -> None:
        if self.datatype != MPI.DATATYPE_NULL:
            self.datatype.Free()

    def _bytes(self) -> MPI.memory:
        """The bytes that the datatype spans."""
        begin = 0 if self.memory is None else self.memory.__array_interface__["data"][0]
        start, stop = self.span
        return MPI.memory.fromaddress(begin + start, stop - start)

    def _commit(self) -> None:
        """One datatype for all blocks, from the first byte to the last: mpi4py divides the bytes of
        a buffer by a datatype's extent to count elements, and the extent may be anything."""
        self._close()
        starts, stops = zip(*map(_span, self.blocks))
        start, stop = self.span = min(starts), max(stops)
        types, counts, displs = zip(*self.blocks)
        whole = MPI.Datatype.Create_struct(counts, [displ - start for displ in displs], types)
        self.datatype = whole.Create_resized(0, stop - start).Commit()
        whole.Free()


def _span(block: Block) -> tuple[int, int]:
    """The first byte of a block that is used, and the first one behind it."""
    _, extent = block.datatype.Get_extent()
    begin, length = block.datatype.Get_true_extent()
    last = (block.count - 1) * extent
    return block.displ + begin + min(last, 0), block.displ + begin + max(last, 0) + length
