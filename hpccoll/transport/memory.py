"""Memory that the ranks of a node share: a mapped file without a name.

Rank 0 of the node makes the file, every rank reserves its own part - so that the pages come to
lie near it, and a full file system is an error here instead of a bus error later - and maps the
whole. The name is removed at once; the memory lives until the last array in it is gone, in every
process by itself. Why this and not an MPI window is decision 0007.
"""

from __future__ import annotations

import mmap
import os
import secrets

import numpy
from mpi4py import MPI

#: Where shared memory has a file system.
DIRECTORY = "/dev/shm"


def share(node: MPI.Intracomm, nbytes: int) -> list[numpy.ndarray] | None:
    """Make memory of ``nbytes`` bytes (its own number on every rank); collective over ``node``.

    Returns:
        every rank's part as bytes, zero at first; ``None``, on every rank, if the node has no
        file system for shared memory, or no room in it.
    """
    sizes = node.allgather(nbytes)
    page = mmap.PAGESIZE
    starts = [0]
    for size in sizes:
        starts.append(starts[-1] + -(-size // page) * page)
    total = max(starts[-1], page)
    rank = node.Get_rank()
    path = node.bcast(os.path.join(DIRECTORY, f"hpccoll-{secrets.token_hex(8)}"))
    file = -1
    try:
        if rank == 0:
            file = _opened(path, os.O_CREAT | os.O_EXCL)
        node.Barrier()
        if rank != 0:
            file = _opened(path, 0)
        fits = file >= 0 and _reserved(file, starts[rank], nbytes, total if rank == 0 else 0)
        if not node.allreduce(fits, MPI.LAND):
            return None
        whole = numpy.frombuffer(mmap.mmap(file, total), numpy.uint8)
    finally:
        if file >= 0:
            os.close(file)
        if rank == 0 and file >= 0:
            os.unlink(path)
    return [whole[start:start + size] for start, size in zip(starts, sizes)]


def _opened(path: str, flags: int) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC | flags, 0o600)
    except OSError:
        return -1


def _reserved(file: int, start: int, nbytes: int, total: int) -> bool:
    """Reserve a rank's part, and the length of the whole file where ``total`` is not 0."""
    try:
        if total:
            os.posix_fallocate(file, total - 1, 1)
        if nbytes:
            os.posix_fallocate(file, start, nbytes)
    except OSError:
        return False
    return True
