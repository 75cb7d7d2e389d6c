"""Memory that the ranks of a node share: a mapped file without a name.

Rank 0 of the node creates the file, and the others open it through /proc. If that is not allowed,
the file has a name, which is removed when all have opened it. Every rank reserves its own part and
maps the file: its pages are allocated near it, and a full file system raises an error here instead
of a bus error later. In every process the memory lives until the last array in it is deleted.
Decision 0007 explains why this is not an MPI window.

Memory that may never be used is not reserved here, but populated before its first use.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import weakref
from typing import NamedTuple

import numpy
from mpi4py import MPI

from hpccoll.transport.private_comm import PrivateComm

#: File system for shared memory, and prefix of the files there.
DIRECTORY, PREFIX = "/dev/shm", "hpccoll-"
#: Files without a name, and files with a name until all ranks have opened them.
UNNAMED, NAMED = "unnamed", "named"

#: ``MADV_POPULATE_WRITE``: allocates pages, or fails where touching them would be a bus error.
POPULATE = 23
_LIBC, _FAILED = ctypes.CDLL(None, use_errno=True), ctypes.c_void_p(-1).value
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int,
                       ctypes.c_long)
_LIBC.munmap.argtypes = ctypes.c_void_p, ctypes.c_size_t
_LIBC.madvise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int


class SharedMemory(NamedTuple):
    """Memory that a node's ranks share.

    Attributes:
        parts: every rank's part as bytes, zero at first.
        whole: all parts.
        starts: offsets of the parts in bytes.
    """

    parts: list[numpy.ndarray]
    whole: numpy.ndarray
    starts: list[int]

    def populate(self, rank: int, offset: int, nbytes: int) -> bool:
        """Make a range of a rank's part exist; return whether there was room."""
        first = self.starts[rank] + offset
        start = first // mmap.PAGESIZE * mmap.PAGESIZE
        failed = _LIBC.madvise(self.whole.ctypes.data + start, first + nbytes - start, POPULATE)
        return not failed or ctypes.get_errno() == errno.EINVAL  # a kernel before 5.14


def map_file(file: int, nbytes: int, offset: int = 0) -> numpy.ndarray:
    """Map a file, shared and writable, until the last array over the memory is deleted.

    ``mmap.mmap`` would keep a descriptor for each mapping: a process has 1,024 of them, and a job
    may have more communicators, or ranks on a node.

    Raises:
        OSError: the file cannot be mapped.
    """
    address = _LIBC.mmap(None, nbytes, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, file,
                         offset)
    if address == _FAILED:
        raise OSError(number := ctypes.get_errno(), os.strerror(number))
    memory = (ctypes.c_ubyte * nbytes).from_address(address)
    weakref.finalize(memory, _LIBC.munmap, address, nbytes).atexit = False
    return numpy.frombuffer(memoryview(memory), numpy.uint8)


def share(node: MPI.Intracomm, nbytes: int, reserve: int | None = None) -> SharedMemory | None:
    """Create shared memory; collective over ``node``.

    Args:
        node: the ranks that share it.
        nbytes: bytes of this rank's part; may differ between ranks.
        reserve: bytes at the start of this rank's part to allocate; all by default.

    Returns:
        ``None``, on every rank, if the node has no file system for shared memory, or no room.
    """
    node = PrivateComm(node)
    sizes = node.allgather(nbytes)
    page = mmap.PAGESIZE
    starts = [0]
    for size in sizes:
        starts.append(starts[-1] + -(-size // page) * page)
    total, rank = max(starts[-1], page), node.Get_rank()
    part = total, starts[rank], nbytes if reserve is None else reserve
    whole = _map_on_all(node, UNNAMED, part)
    if whole is None:
        whole = _map_on_all(node, NAMED, part)
    if whole is None:
        return None
    return SharedMemory([whole[start:start + size] for start, size in zip(starts, sizes)], whole,
                        starts)


def _map_on_all(node: MPI.Intracomm, kind: str, part: tuple[int, int, int]
                ) -> numpy.ndarray | None:
    """Map a file of rank 0 on all ranks; return ``None``, on all ranks, if one cannot."""
    leads, file, found, path, mapping = node.Get_rank() == 0, -1, (0, 0), "", None
    if leads:
        path, file = _create_file(kind)
        found = identity(file)
    path, wanted = node.bcast((path, found))
    try:
        if not leads and path:
            file = _open(path, 0)
            # In another PID namespace this may be the file of another process.
            found = identity(file)
        if file >= 0 and found == wanted:
            mapping = _map(file, *part)
        # All steps that may fail on one rank come before this agreement: an error after it would
        # leave the other ranks waiting. No lower-case reduction: on its first one on a communicator
        # mpi4py duplicates that while it holds the GIL, and threads that create communicators
        # at the same time would deadlock.
        return mapping if all(node.allgather(mapping is not None)) else None
    finally:
        if file >= 0:
            os.close(file)
        if leads and file >= 0 and kind == NAMED:
            os.unlink(path)


def _create_file(kind: str) -> tuple[str, int]:
    """Create a file; return its path for the other ranks, and its descriptor, or -1.

    The path of a file without a name leads through the process that has it open. Such a file is
    removed when its processes exit, however they exit.
    """
    if kind == NAMED:
        import secrets
        path = os.path.join(DIRECTORY, f"{PREFIX}{secrets.token_hex(8)}")
        return path, _open(path, os.O_CREAT | os.O_EXCL)
    file = _open(DIRECTORY, os.O_TMPFILE)
    return f"/proc/{os.getpid()}/fd/{file}" if file >= 0 else "", file


def identity(file: int) -> tuple[int, int]:
    """Return the device and number of an open file; zeros for -1."""
    if file < 0:
        return 0, 0
    status = os.fstat(file)
    return status.st_dev, status.st_ino


def _open(path: str, flags: int) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC | flags, 0o600)
    except OSError:
        return -1


def _map(file: int, total: int, start: int, nbytes: int) -> numpy.ndarray | None:
    """Reserve a rank's part and map the file, which gets the same length from every rank."""
    try:
        os.ftruncate(file, total)
        if nbytes:
            os.posix_fallocate(file, start, nbytes)
        return map_file(file, total)
    except OSError:
        return None
