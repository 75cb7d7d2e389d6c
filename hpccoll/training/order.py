"""Order by urgency: large arrays in pieces, what is needed first goes first, within a credit.

After ByteScheduler (Peng et al., SOSP 2019): a tensor above the partition size travels in pieces;
of the pieces that are ready the one of the smallest priority number goes next, while there is
credit - which may be overdrawn once - and every piece that arrives gives its bytes back. So an
urgent array that becomes ready late waits for no more than the credit under way.

Ranks that add the same arrays and complete the same transfers in the same order pick the same.
"""

from __future__ import annotations

import heapq
from collections import deque
from typing import NamedTuple


class ArrayPart(NamedTuple):
    """Part of an array: elements ``start`` to ``stop``; in the order in which pieces go."""

    priority: int
    number: int
    start: int
    stop: int
    name: str
    kind: tuple[object, ...]
    nbytes: int


class Urgency:
    """Picks the pieces that travel next.

    Args:
        partition_bytes: of a piece, at most; 0 for whole arrays.
        fusion_bytes: of pieces that travel together, at most.
        credit_bytes: under way at a time; 0 for no limit.
    """

    def __init__(self, partition_bytes: int, fusion_bytes: int, credit_bytes: int):
        self.partition_bytes, self.fusion_bytes = partition_bytes, fusion_bytes
        self.credit_bytes = credit_bytes
        self._ready: list[ArrayPart] = []
        self._under_way: deque[int] = deque()
        self._numbers = 0

    def __len__(self) -> int:
        return len(self._ready)

    @property
    def under_way(self) -> int:
        """Transfers that were picked and are not complete, where there is a limit."""
        return len(self._under_way)

    def add(self, name: str, count: int, itemsize: int, priority: int,
            kind: tuple[object, ...], whole: bool = False) -> int:
        """Cut an array of so many elements into pieces; return how many.

        Args:
            kind: pieces of one kind may travel together.
            whole: the array travels in one piece.
        """
        length = max(count, 1)
        if self.partition_bytes and not whole:
            length = max(self.partition_bytes // itemsize, 1)
        starts = range(0, max(count, 1), length)
        for start in starts:
            stop = min(start + length, count)
            heapq.heappush(self._ready, ArrayPart(priority, self._numbers, start, stop, name, kind,
                                              (stop - start) * itemsize))
            self._numbers += 1
        return len(starts)

    def complete(self, transfers: int) -> None:
        """Give back the credit of the oldest transfers under way."""
        for _ in range(transfers):
            self._under_way.popleft()

    def pick(self) -> list[list[ArrayPart]]:
        """The transfers that begin now: neighbours of one kind share one, up to a partition."""
        transfers: list[list[ArrayPart]] = []
        left, held = self.credit_bytes - sum(self._under_way), 0
        while self._ready and (not self.credit_bytes or left > 0):
            piece = heapq.heappop(self._ready)
            left -= piece.nbytes
            if (transfers and transfers[-1][0].kind == piece.kind
                    and held + piece.nbytes <= self.fusion_bytes):
                transfers[-1].append(piece)
                held += piece.nbytes
            else:
                transfers.append([piece])
                held = piece.nbytes
        if self.credit_bytes:
            self._under_way += [sum(piece.nbytes for piece in pieces) for pieces in transfers]
        return transfers
