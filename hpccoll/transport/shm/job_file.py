"""One file of a job on a node, to which its processes add memory without communicating.

    page 0    number of slots; whether any process has written a failure
    slot      memory, zero at first; behind it the identity of its process

The first process makes the file. Its name is removed when as many have come as the launcher has
started on the node, or by the last one that ends.
"""

from __future__ import annotations

import fcntl
import mmap
import os

import numpy

from hpccoll.transport.shm.mapping import DIRECTORY, PREFIX

#: Bytes of an identity, and words of page 0.
IDENTITY_BYTES, COUNT, FAILURE = 512, 0, 1


class JobFile:
    """The slots of a job's processes.

    Args:
        key: what the processes of the job share, and no others.
        nbytes: of the memory of a slot.
        expected: processes that will come; negative where that is not known.
        identity: of this process.

    Attributes:
        mine: the memory of this process.
        words: of page 0.

    Raises:
        OSError: there is no shared memory, or no room in it.
    """

    def __init__(self, key: str, nbytes: int, expected: int, identity: bytes):
        page = mmap.ALLOCATIONGRANULARITY
        self.nbytes, self.slot = nbytes, -(-(nbytes + IDENTITY_BYTES) // page) * page
        self.seen, self.path = 0, os.path.join(DIRECTORY, f"{PREFIX}job-{key}")
        self.file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        fcntl.flock(self.file, fcntl.LOCK_EX)
        try:
            # A full file system is an error here, and would be a bus error later.
            os.posix_fallocate(self.file, 0, page)
            self.words = memoryview(mmap.mmap(self.file, page)).cast("q")
            number = self.words[COUNT]
            os.posix_fallocate(self.file, self._start(number), self.slot)
            os.pwrite(self.file, identity[:IDENTITY_BYTES], self._start(number) + nbytes)
            self.mine = self._memory(number)
            self.words[COUNT] = number + 1
            if number + 1 == expected:
                self.remove()
        finally:
            fcntl.flock(self.file, fcntl.LOCK_UN)

    def remove(self) -> None:
        """Remove the name; processes that come later do not find the file."""
        try:
            os.unlink(self.path)
        except OSError:
            pass

    def new(self) -> list[tuple[bytes, numpy.ndarray]]:
        """Identity and memory of the processes that have come since the last call."""
        before, self.seen = self.seen, self.words[COUNT]
        return [(os.pread(self.file, IDENTITY_BYTES, self._start(number) + self.nbytes
                          ).rstrip(b"\0"), self._memory(number))
                for number in range(before, self.seen)]

    def _start(self, number: int) -> int:
        return mmap.ALLOCATIONGRANULARITY + number * self.slot

    def _memory(self, number: int) -> numpy.ndarray:
        return numpy.frombuffer(
            mmap.mmap(self.file, self.nbytes, offset=self._start(number)), numpy.uint8)
