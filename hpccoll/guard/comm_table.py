"""Table of the communicators of a process, for ``hpccoll status``: :class:`CommTable`.

The call logs of a communicator are in a file without a name, which a program of the same user opens
by the descriptor that a rank keeps. So each process lists its descriptors in its part of the file
of the job. It writes there when it makes or frees a communicator, and never in a call.
"""

from __future__ import annotations

import os
import struct
import threading
from typing import NamedTuple

#: Communicators that a process lists, bytes of each, and of all.
MOST, ENTRY_BYTES = 32, 128
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
        """List a communicator; return the descriptor, or -1 if the table is full: it is closed."""
        if file < 0:
            return -1
        with self.lock:
            start = self._find(0)
            if start >= 0:
                _LAYOUT.pack_into(self.memory, start, file + 1, os.fstat(file).st_ino, rank, size,
                                  place, name.encode()[:88])
                return file
        os.close(file)
        return -1

    def remove(self, file: int) -> None:
        """Remove a communicator, and close the descriptor of its logs."""
        start = self._find(file + 1) if file >= 0 else -1
        if start >= 0:
            self.memory[start:start + ENTRY_BYTES] = bytes(ENTRY_BYTES)
            os.close(file)

    def _find(self, word: int) -> int:
        """Return where the first entry with such a first word begins; -1 if there is none."""
        return next((start for start in range(0, TABLE_BYTES, ENTRY_BYTES)
                     if _LAYOUT.unpack_from(self.memory, start)[0] == word), -1)
