"""A file of a job on a node, to which each process adds memory without communication.

    page 0    number of slots; flag for a failure of any process
    slot      memory, initially zero, and the identity of its process

The first process creates the file. Its name is removed when all processes that the launcher started
on the node have added their slots, or by the last process that exits.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import sys
from contextlib import suppress
from functools import partial

import numpy

from hpccoll.transport.shm.mapping import (
    DIRECTORY,
    PREFIX,
    map_file,
    open_private,
    wait_for_lock,
)

#: Bytes of an identity; indices of words in page 0.
IDENTITY_BYTES, COUNT, FAILURE = 512, 0, 1
#: Most seconds that a process waits for the others to add their memory, each in a millisecond.
PATIENCE = 5.0
#: Most processes that are read from a file that may be of another version.
MOST_PROCESSES = 1 << 14


def read_slots(file: int, nbytes: int) -> list[tuple[bytes, bytes]]:
    """Return copies of identity and memory of each process in a job's file."""
    count = min(int.from_bytes(os.pread(file, 8, 0), sys.byteorder), MOST_PROCESSES)
    slots = (os.pread(file, nbytes + IDENTITY_BYTES, slot_start(number, nbytes))
             for number in range(count))
    return [(slot[nbytes:].rstrip(b"\0"), slot[:nbytes]) for slot in slots
            if len(slot) == nbytes + IDENTITY_BYTES]


def slot_start(number: int, nbytes: int) -> int:
    """Return where the memory of a process begins, ``nbytes`` for each."""
    page = mmap.ALLOCATIONGRANULARITY
    return page + number * -(-(nbytes + IDENTITY_BYTES) // page) * page


class JobFile:
    """The slots of the processes of the job ``key``, with ``nbytes`` of memory each.

    ``expected`` is the number of processes, negative if unknown. ``mine`` is the memory of this
    process, ``words`` are those of page 0.

    Raises:
        OSError: there is no shared memory, it is full, or another user made the file.
        TimeoutError: a process that was stopped holds its lock.
    """

    def __init__(self, key: str, nbytes: int, expected: int, identity: bytes):
        page = mmap.ALLOCATIONGRANULARITY
        self.nbytes, self.seen = nbytes, 0
        self.path = os.path.join(DIRECTORY, f"{PREFIX}job-{key}")
        self.file = open_private(self.path, os.O_CREAT | os.O_NOFOLLOW)
        try:
            wait_for_lock(partial(fcntl.flock, self.file, fcntl.LOCK_EX | fcntl.LOCK_NB), PATIENCE,
                          self.path)
            # On a full file system this raises here; without it a later write would be a bus error.
            os.posix_fallocate(self.file, 0, page)
            self.words = map_file(self.file, page).data.cast("q")
            number = self.words[COUNT]
            os.posix_fallocate(self.file, self._start(number), self._start(1) - self._start(0))
            os.pwrite(self.file, identity[:IDENTITY_BYTES], self._start(number) + nbytes)
            self.mine = self._memory(number)
            self.words[COUNT] = number + 1
            if number + 1 == expected:
                self.remove()
            fcntl.flock(self.file, fcntl.LOCK_UN)
        except OSError:
            fcntl.flock(self.file, fcntl.LOCK_UN)  # a mapping would keep it after the close
            os.close(self.file)
            raise

    def remove(self) -> None:
        """Remove the name; later processes do not find the file."""
        with suppress(OSError):
            os.unlink(self.path)

    def new(self) -> list[tuple[bytes, numpy.ndarray]]:
        """Return identity and memory of the processes that were added since the last call."""
        before, self.seen = self.seen, self.words[COUNT]
        return [(os.pread(self.file, IDENTITY_BYTES, self._start(number) + self.nbytes
                          ).rstrip(b"\0"), self._memory(number))
                for number in range(before, self.seen)]

    def _start(self, number: int) -> int:
        return slot_start(number, self.nbytes)

    def _memory(self, number: int) -> numpy.ndarray:
        return map_file(self.file, self.nbytes, self._start(number))
