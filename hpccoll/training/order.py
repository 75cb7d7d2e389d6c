"""Priority scheduling: arrays are partitioned and sent by priority within a credit.

After ByteScheduler (Peng et al., SOSP 2019): a tensor above the partition size is sent in pieces.
The ready piece with the smallest priority number is sent next while there is credit, which may be
exceeded once. A completed piece returns its bytes to the credit. An urgent array that becomes
ready late waits for no more than the credit in flight.

Ranks that add the same arrays and complete the same transfers in the same order pick the same
transfers.
"""

from __future__ import annotations

import heapq
from collections import deque
from typing import NamedTuple


class ArrayPart(NamedTuple):
    """Elements ``start`` to ``stop`` of an array; sorts in the order of sending."""

    priority: int
    number: int
    start: int
    stop: int
    name: str
    kind: tuple[object, ...]
    nbytes: int


class PriorityScheduler:
    """Scheduler that picks the next pieces to send.

    Args:
        partition_bytes: largest size of a piece; 0 for whole arrays.
        fusion_bytes: largest size of pieces that are sent together.
        credit_bytes: bytes in flight at a time; 0 for no limit.
    """

    def __init__(self, partition_bytes: int, fusion_bytes: int, credit_bytes: int):
        self.partition_bytes, self.fusion_bytes = partition_bytes, fusion_bytes
        self.credit_bytes = credit_bytes
        self._pieces: list[ArrayPart] = []
        self._under_way: deque[int] = deque()
        self._numbers = 0

    def __len__(self) -> int:
        return len(self._pieces)

    @property
    def in_flight(self) -> int:
        """Number of picked transfers that are not complete, if there is a limit."""
        return len(self._under_way)

    def add(self, name: str, count: int, itemsize: int, priority: int,
            kind: tuple[object, ...], whole: bool = False) -> int:
        """Partition an array of ``count`` elements; return the number of pieces.

        Args:
            whole: True to send the array in one piece.
        """
        length = max(count, 1)
        if self.partition_bytes and not whole:
            length = max(self.partition_bytes // itemsize, 1)
        starts = range(0, max(count, 1), length)
        for start in starts:
            stop = min(start + length, count)
            heapq.heappush(self._pieces, ArrayPart(priority, self._numbers, start, stop, name, kind,
                                              (stop - start) * itemsize))
            self._numbers += 1
        return len(starts)

    def complete(self, transfers: int) -> None:
        """Return the credit of the oldest transfers in flight."""
        for _ in range(transfers):
            self._under_way.popleft()

    def pick(self) -> list[list[ArrayPart]]:
        """Return the transfers to start; neighbours of one kind are fused up to the limit."""
        transfers: list[list[ArrayPart]] = []
        left, held = self.credit_bytes - sum(self._under_way), 0
        while self._pieces and (not self.credit_bytes or left > 0):
            piece = heapq.heappop(self._pieces)
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
