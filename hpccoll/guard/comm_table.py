"""Table of the communicators of a process, for ``hpccoll status``: :class:`CommTable`.

The call logs of a communicator are in a file without a name, which a program of the same user opens
by the descriptor that a rank keeps. So each process lists its descriptors in its part of the file
of the job. It writes there when it makes or frees a communicator, and never in a call.
"""

from __future__ import annotations

import os
import struct
import threading
from contextlib import suppress
from typing import NamedTuple

#: Communicators that a process lists, those that are never dropped for later ones, and bytes of
#: each.
MOST, KEPT, ENTRY_BYTES = 32, 16, 128
TABLE_BYTES = MOST * ENTRY_BYTES
_LAYOUT = struct.Struct("=qqqqq88s")


class CommEntry(NamedTuple):
    """A communicator of a process.

    Attributes:
        file, inode: descriptor of the file of its logs in the process, and the file's number.
        rank, size: of the process in the communicator, and its ranks.
        place: of this rank's log in the file.
        name: of the communicator.
    """

    file: int
    inode: int
    rank: int
    size: int
    place: int
    name: str


class CommTable:
    """The communicators that a process lists in ``TABLE_BYTES`` of memory, initially zero."""

    def __init__(self, memory: memoryview):
        self.memory, self.lock = memory, threading.Lock()
        #: Places and descriptors by the keys of communicators, the oldest first.
        self.listed: dict[int, tuple[int, int]] = {}
        self.last = 0

    def entries(self) -> list[CommEntry]:
        """Return the communicators; the process may be writing meanwhile."""
        found = []
        for start in range(0, TABLE_BYTES, ENTRY_BYTES):
            file, inode, rank, size, place, name = _LAYOUT.unpack_from(self.memory, start)
            if file:
                found.append(CommEntry(file - 1, inode, rank, size, place,
                                       name.rstrip(b"\0").decode(errors="replace")))
        return found

    def add(self, file: int, rank: int, size: int, place: int, name: str) -> int:
        """List a communicator, and return its key; the table closes the descriptor later.

        A full table drops the oldest communicator after the first :data:`KEPT`.
        """
        if file < 0:
            return 0
        with self.lock:
            if len(self.listed) == MOST:
                self._drop(list(self.listed)[KEPT])
            used = {start for start, _ in self.listed.values()}
            start = next(start for start in range(0, TABLE_BYTES, ENTRY_BYTES)
                         if start not in used)
            _LAYOUT.pack_into(self.memory, start, file + 1, os.fstat(file).st_ino, rank, size,
                              place, name.encode()[:88])
            self.last += 1
            self.listed[self.last] = start, file
            return self.last

    def remove(self, key: int) -> None:
        """Remove a communicator, if it is listed."""
        with self.lock:
            if key in self.listed:
                self._drop(key)

    def _drop(self, key: int) -> None:
        start, file = self.listed.pop(key)
        inode = _LAYOUT.unpack_from(self.memory, start)[1]
        self.memory[start:start + ENTRY_BYTES] = bytes(ENTRY_BYTES)
        with suppress(OSError):
            # A program that closed all descriptors may use this one for a file of its own.
            if os.fstat(file).st_ino == inode:
                os.close(file)
