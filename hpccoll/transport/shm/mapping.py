"""The one maker of shared memory: files that only this user may access, opened and mapped.

Rank 0 of a node creates a file without a name, and the others open it through /proc. If that is not
allowed, the file has a name, which is removed when all have opened it. Every rank reserves its own
part and maps the file: its pages are allocated near it, and a full file system raises an error here
instead of a bus error later. In every process the memory lives until the last array in it is
deleted. Decision 0007 explains why this is not an MPI window.

Memory that may never be used is not reserved here, but populated before its first use.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import stat
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import numpy
from mpi4py import MPI

from hpccoll.transport.private_comm import PrivateComm

#: File system for shared memory, and prefix of the files there.
DIRECTORY, PREFIX = "/dev/shm", "hpccoll-"
#: ``MADV_POPULATE_WRITE``: allocates pages, or fails where touching them would be a bus error.
POPULATE = 23
_LIBC, _FAILED = ctypes.CDLL(None, use_errno=True), ctypes.c_void_p(-1).value
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int,
                       ctypes.c_long)
_LIBC.munmap.argtypes = ctypes.c_void_p, ctypes.c_size_t
_LIBC.madvise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int


class SharedMemory(NamedTuple):
    """Memory that a node's ranks share: every rank's part, zero at first.

    Attributes:
        file: descriptor of the file, if the caller keeps it and closes it; otherwise -1.
    """

    parts: list[numpy.ndarray]
    file: int = -1

    def populate(self, rank: int, offset: int, nbytes: int) -> bool:
        """Make a range of a rank's part exist; return whether there was room."""
        first = self.parts[rank].ctypes.data + offset
        start = first // mmap.PAGESIZE * mmap.PAGESIZE
        failed = _LIBC.madvise(start, first + nbytes - start, POPULATE)
        return not failed or ctypes.get_errno() == errno.EINVAL  # a kernel before 5.14


def map_file(file: int, nbytes: int, offset: int = 0) -> numpy.ndarray:
    """Map a file, shared and writable, until the last array over the memory is deleted.

    ``mmap.mmap`` would keep a descriptor for each mapping: a process has 1,024 of them, and a job
    may have more communicators, or ranks on a node.
    """
    address = _LIBC.mmap(None, nbytes, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, file,
                         offset)
    if address == _FAILED:
        raise OSError(number := ctypes.get_errno(), os.strerror(number))
    memory = (ctypes.c_ubyte * nbytes).from_address(address)
    weakref.finalize(memory, _LIBC.munmap, address, nbytes).atexit = False
    return numpy.frombuffer(memoryview(memory), numpy.uint8)


def share(node: MPI.Comm, nbytes: int, reserve: int | None = None, keep: bool = False
          ) -> SharedMemory | None:
    """Create shared memory, ``nbytes`` for this rank; collective over the node.

    With ``keep`` the descriptor of the file stays open on this rank. Only the first ``reserve``
    bytes of the part are allocated; all by default. ``None``, on every rank, if the node has no
    file system for shared memory, or no room.
    """
    file, sizes = open_on_node(node, nbytes)
    if file < 0:
        return None
    starts, page, whole, kept = [0], mmap.PAGESIZE, None, -1
    for size in sizes:
        starts.append(starts[-1] + -(-size // page) * page)
    total, reserve = max(starts[-1], page), nbytes if reserve is None else reserve
    # All steps that may fail on one rank come before the agreement: an error after it would leave
    # the other ranks waiting.
    with suppress(OSError), os.fdopen(file, "r+b", 0):
        os.ftruncate(file, total)
        if reserve:
            os.posix_fallocate(file, starts[node.Get_rank()], reserve)
        whole = map_file(file, total)
        kept = os.dup(file) if keep else -1
    if not all(PrivateComm(node).allgather(whole is not None)) or whole is None:
        if kept >= 0:
            os.close(kept)
        return None
    return SharedMemory([whole[start:start + size] for start, size in zip(starts, sizes)], kept)


def open_on_node(node: MPI.Comm, note: Any = None) -> tuple[int, list[Any]]:
    """Open a new file on all ranks of a node, or -1 on all; collect notes. Collective."""
    # No lower-case calls of the communicator itself: mpi4py duplicates it in the first reduction
    # while it holds the GIL, and threads that create communicators at once would deadlock.
    node = PrivateComm(node)
    file, notes = _open_on_all(node, DIRECTORY, os.O_TMPFILE, note)
    if file < 0:
        import secrets
        path = os.path.join(DIRECTORY, f"{PREFIX}{secrets.token_hex(8)}")
        file, notes = _open_on_all(node, path, os.O_CREAT | os.O_EXCL, note)
    return file, notes


def _open_on_all(node: PrivateComm, path: str, flags: int, note: Any) -> tuple[int, list[Any]]:
    """Open a file that rank 0 creates with these flags; remove its name, if it has one."""
    leads, named, everywhere = node.Get_rank() == 0, flags & os.O_EXCL, False
    file, wanted = -1, None
    if leads:
        with suppress(OSError):
            file = open_private(path, flags)
            wanted = _identity(file)
    # A file without a name is removed when its processes exit, however they exit.
    other = path if named else f"/proc/{os.getpid()}/fd/{file}"
    try:
        other, wanted = node.bcast((other, wanted))
        if not leads and wanted is not None:
            with suppress(OSError):
                file = open_private(other, os.O_NOFOLLOW if named else 0)
        # In another PID namespace this may be the file of another process.
        usable = file >= 0 and _identity(file) == wanted
        answers = node.allgather((usable, note))
        everywhere = all(opened for opened, _ in answers)
        return file if everywhere else -1, [one for _, one in answers]
    finally:
        if file >= 0 and leads and named:
            os.unlink(path)
        if file >= 0 and not everywhere:
            os.close(file)


def open_private(path: str, flags: int, access: int = os.O_RDWR) -> int:
    """Open or create a file of this user alone, to write unless ``access`` differs.

    Raises:
        OSError: it cannot be opened; or it is no plain file of this user with mode 0600, so that
            another user might write it or hold its lock. The message names the file and its owner.
    """
    try:
        file = os.open(path, access | os.O_CLOEXEC | flags, 0o600)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM, errno.ELOOP):
            _check_private(path, os.lstat(path))
        raise
    try:
        _check_private(path, os.fstat(file))
    except OSError:
        os.close(file)
        raise
    return file


def wait_for_lock(take: Callable[[], object], seconds: float, path: str = "") -> None:
    """Take a lock of a file; ``take`` raises ``BlockingIOError`` while another process holds it.

    Raises:
        TimeoutError: the other process has not released it within some seconds.
    """
    end = time.monotonic() + seconds
    while True:
        try:
            take()
            return
        except BlockingIOError:
            if time.monotonic() >= end:
                raise TimeoutError(errno.ETIMEDOUT, "another process of this user has held its "
                                   f"lock for {seconds:g} s; end that process", path) from None
            time.sleep(1e-3)


def _check_private(path: str, status: os.stat_result) -> None:
    """Raise unless a file is a plain one that this user alone may open."""
    mode, owner, user = status.st_mode, status.st_uid, os.geteuid()
    if not stat.S_ISREG(mode) or owner != user or mode & 0o077:
        raise PermissionError(errno.EPERM, f"{stat.filemode(mode)} of user {owner} is no file for "
                                           f"user {user} alone; remove it", path)


def _identity(file: int) -> tuple[int, int]:
    status = os.fstat(file)
    return status.st_dev, status.st_ino
