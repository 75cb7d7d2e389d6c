"""Memory that the ranks of a node share: a mapped file without a name.

Rank 0 of the node makes the file. Every rank reserves its own part and maps the whole: its pages
come to lie near it, and a full file system is an error here instead of a bus error later. The name
is removed at once. In every process the memory lives until the last array in it is gone. Why this
and not an MPI window is decision 0007.

Memory that may never be needed is not reserved here, but populated before its first use.
"""

from __future__ import annotations

import errno
import mmap
import os
import secrets
from typing import NamedTuple

import numpy
from mpi4py import MPI

#: Where shared memory has a file system.
DIRECTORY = "/dev/shm"

#: ``MADV_POPULATE_WRITE``: makes pages exist, or fails where touching them would be a bus error.
POPULATE = 23


class SharedMemory(NamedTuple):
    """Memory that a node's ranks share.

    Attributes:
        parts: every rank's part as bytes, zero at first.
        mapping: all parts.
        start: offset of this rank's part in bytes.
    """

    parts: list[numpy.ndarray]
    mapping: mmap.mmap
    start: int

    def populate(self, offset: int, nbytes: int) -> bool:
        """Make a range of this rank's part exist; tell whether there was room."""
        start = (self.start + offset) // mmap.PAGESIZE * mmap.PAGESIZE
        try:
            self.mapping.madvise(POPULATE, start, self.start + offset + nbytes - start)
        except OSError as error:
            return error.errno == errno.EINVAL  # a kernel before 5.14 cannot tell
        return True


def share(node: MPI.Intracomm, nbytes: int, reserve: int | None = None) -> SharedMemory | None:
    """Make shared memory; collective over ``node``.

    Args:
        node: the ranks that share it.
        nbytes: bytes of this rank's part; ranks may give different numbers.
        reserve: bytes at the start of this rank's part that must exist; all by default.

    Returns:
        ``None``, on every rank, if the node has no file system for shared memory, or no room.
    """
    sizes = node.allgather(nbytes)
    page = mmap.PAGESIZE
    starts = [0]
    for size in sizes:
        starts.append(starts[-1] + -(-size // page) * page)
    total = max(starts[-1], page)
    rank = node.Get_rank()
    path = node.bcast(os.path.join(DIRECTORY, f"hpccoll-{secrets.token_hex(8)}"))
    file, mapping = -1, None
    try:
        if rank == 0:
            file = _opened(path, os.O_CREAT | os.O_EXCL)
        node.Barrier()
        if rank != 0:
            file = _opened(path, 0)
        if file >= 0:
            mapping = _mapped(file, total, starts[rank], nbytes if reserve is None else reserve)
        # Whatever may fail on one rank alone comes before this agreement: an error after it would
        # leave the other ranks waiting.
        if not node.allreduce(mapping is not None, MPI.LAND) or mapping is None:
            return None
    finally:
        if file >= 0:
            os.close(file)
        if rank == 0 and file >= 0:
            os.unlink(path)
    whole = numpy.frombuffer(mapping, numpy.uint8)
    return SharedMemory([whole[start:start + size] for start, size in zip(starts, sizes)], mapping,
                        starts[rank])


def _opened(path: str, flags: int) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC | flags, 0o600)
    except OSError:
        return -1


def _mapped(file: int, total: int, start: int, nbytes: int) -> mmap.mmap | None:
    """Reserve a rank's part and map the whole file, to which every rank gives the same length."""
    try:
        os.ftruncate(file, total)
        if nbytes:
            os.posix_fallocate(file, start, nbytes)
        return mmap.mmap(file, total)
    except OSError:
        return None
