"""How much moves at once, and how long a rank spins: with a processor each, and without."""

from __future__ import annotations

from typing import NamedTuple

#: Failed tests before the processor is offered to others, where every rank has one.
SPINS = 5


class Limits(NamedTuple):
    """How ranks share processors and caches; docs/performance.md has the measurements.

    Attributes:
        slot: largest message, in bytes, that may be copied through shared memory.
        sure_slot: largest that always is; see :mod:`hpccoll.transport.shm.endpoint`.
        segment, large_segment: bytes of a block per message; in large blocks, whose data comes
            from memory and not from a cache, the second.
        large: blocks above so many bytes are large.
        spins: failed tests before the processor is offered to others.
    """

    slot: int
    sure_slot: int
    segment: int
    large_segment: int
    large: int
    spins: int

    def segment_of(self, nbytes: int | None) -> int:
        """Bytes per message of a block; ``None`` where not all ranks know its size."""
        return self.segment if nbytes is None or nbytes <= self.large else self.large_segment


#: Every rank has a processor: pieces that stay in its cache, several of them in flight.
DEDICATED = Limits(256 << 10, 16 << 10, 256 << 10, 1 << 20, 2 << 20, SPINS)
#: Ranks wait for each other's turn: as much as possible is moved in one turn.
OVERSUBSCRIBED = Limits(512 << 10, 512 << 10, 512 << 10, 4 << 20, 1 << 20, 0)
