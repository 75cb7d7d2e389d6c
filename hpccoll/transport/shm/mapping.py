"""Memory that the ranks of a node share: a mapped file without a name.

Rank 0 of the node makes the file, and the others open it where /proc shows rank 0's files. Where
they may not, it has a name, which is removed when all have opened it. Every rank reserves its own
part and maps the whole: its pages come to lie near it, and a full file system is an error here
instead of a bus error later. In every process the memory lives until the last array in it is gone.
Why this and not an MPI window is decision 0007.

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

#: Where shared memory has a file system, and what the names of our files there begin with.
DIRECTORY, PREFIX = "/dev/shm", "hpccoll-"
#: Files that never have a name, and files that have one until all ranks have opened them.
UNNAMED, NAMED = "unnamed", "named"

#: ``MADV_POPULATE_WRITE``: makes pages exist, or fails where touching them would be a bus error.
POPULATE = 23


class SharedMemory(NamedTuple):
    """Memory that a node's ranks share.

    Attributes:
        parts: every rank's part as bytes, zero at first.
        mapping: all parts.
        starts: offsets of the parts in bytes.
    """

    parts: list[numpy.ndarray]
    mapping: mmap.mmap
    starts: list[int]

    def populate(self, rank: int, offset: int, nbytes: int) -> bool:
        """Make a range of a rank's part exist; return whether there was room."""
        first = self.starts[rank] + offset
        start = first // mmap.PAGESIZE * mmap.PAGESIZE
        try:
            self.mapping.madvise(POPULATE, start, first + nbytes - start)
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
    total, rank = max(starts[-1], page), node.Get_rank()
    part = total, starts[rank], nbytes if reserve is None else reserve
    mapping = _mapped_by_all(node, UNNAMED, part) or _mapped_by_all(node, NAMED, part)
    if mapping is None:
        return None
    whole = numpy.frombuffer(mapping, numpy.uint8)
    return SharedMemory([whole[start:start + size] for start, size in zip(starts, sizes)], mapping,
                        starts)


def _mapped_by_all(node: MPI.Intracomm, kind: str, part: tuple[int, int, int]) -> mmap.mmap | None:
    """A file that rank 0 makes, mapped by all ranks; ``None``, on all, if some rank cannot."""
    leads, file, found, path, mapping = node.Get_rank() == 0, -1, (0, 0), "", None
    if leads:
        path, file = _made(kind)
        found = _identity(file)
    path, wanted = node.bcast((path, found))
    try:
        if not leads and path:
            file = _opened(path, 0)
            # Where ranks number their processes differently, it is another process's file.
            found = _identity(file)
        if file >= 0 and found == wanted:
            mapping = _mapped(file, *part)
        # Whatever may fail on one rank alone comes before this agreement: an error after it would
        # leave the other ranks waiting. No lower-case reduction: on its first one on a communicator
        # mpi4py duplicates that while it holds the interpreter, and threads that make communicators
        # at once would wait for each other for ever.
        return mapping if all(node.allgather(mapping is not None)) else None
    finally:
        if file >= 0:
            os.close(file)
        if leads and file >= 0 and kind == NAMED:
            os.unlink(path)


def _made(kind: str) -> tuple[str, int]:
    """A new file: how others find it, and its descriptor, -1 where there is none.

    One without a name is found by the process that has it open, and leaves nothing behind, however
    that ends.
    """
    if kind == NAMED:
        path = os.path.join(DIRECTORY, f"{PREFIX}{secrets.token_hex(8)}")
        return path, _opened(path, os.O_CREAT | os.O_EXCL)
    file = _opened(DIRECTORY, os.O_TMPFILE)
    return f"/proc/{os.getpid()}/fd/{file}" if file >= 0 else "", file


def _identity(file: int) -> tuple[int, int]:
    if file < 0:
        return 0, 0
    status = os.fstat(file)
    return status.st_dev, status.st_ino


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
