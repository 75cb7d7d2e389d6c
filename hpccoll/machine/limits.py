"""Limits of messages and of spinning, for dedicated and for oversubscribed processors."""

from __future__ import annotations

from typing import NamedTuple

#: Failed tests before a rank yields its processor, if every rank has one.
SPINS = 5
#: Blocking collectives of a communicator, of buffers and objects, before the one that sets it up.
FIRST_CALLS = 8
#: Bytes of a cache line: aligned copies are fastest.
LINE = 64


class Limits(NamedTuple):
    """Sizes of messages; docs/performance.md has the measurements.

    Attributes:
        cell_bytes: largest message that may be copied through a cell of shared memory.
        segment_bytes: bytes of a block in one message.
        large_segment_bytes: the same for large blocks, which exceed the cache.
        large_block_bytes: blocks of more bytes are large.
        spins: failed tests before a rank yields its processor; 0 for an immediate yield.
    """

    cell_bytes: int
    segment_bytes: int
    large_segment_bytes: int
    large_block_bytes: int
    spins: int

    def without_large_segments(self) -> Limits:
        """Return the limits of one node with the compiled executor, whose segments fit a cell."""
        return self._replace(large_segment_bytes=self.segment_bytes)

    def on_devices(self, path: str) -> Limits:
        """Return the limits with the segments of a data path for devices."""
        return self._replace(**DEVICE_SEGMENTS[path])

    def segment_of(self, nbytes: int | None) -> int:
        """Return the bytes per message of a block; ``nbytes`` is None if a rank lacks its size."""
        large = nbytes is not None and nbytes > self.large_block_bytes
        return self.large_segment_bytes if large else self.segment_bytes


#: Every rank has a processor: segments that stay in its cache, several in flight.
DEDICATED = Limits(
    cell_bytes=256 << 10, segment_bytes=256 << 10,
    large_segment_bytes=1 << 20, large_block_bytes=16 << 20, spins=SPINS)
#: More ranks than processors: each rank copies as much as possible in its time slice.
OVERSUBSCRIBED = Limits(
    cell_bytes=512 << 10, segment_bytes=512 << 10,
    large_segment_bytes=4 << 20, large_block_bytes=1 << 20, spins=0)
#: Segments for programs that use GPUs, by data path, measured on one H100 (docs/gpu.md). A segment
#: of staged memory costs 0.45 ms of Python; one of registered memory serializes ranks that share a
#: GPU. They belong to the communicator, because ranks may pass different kinds of memory.
DEVICE_SEGMENTS = {
    "staged": {"segment_bytes": 4 << 20, "large_segment_bytes": 4 << 20,
               "large_block_bytes": 4 << 20},
    "ipc": {"segment_bytes": 4 << 20, "large_segment_bytes": 16 << 20,
            "large_block_bytes": 8 << 20}}
