"""Logs of this job's processes on this node, which need no communicator: :class:`JobLogs`.

Ranks that wait in the first call of a communicator have no guard yet. So each process adds its log
to one file of the job when its first ``Comm`` is made. The others read there what it does, and
``/proc`` whether it lives. The file has a name until all processes of the node have added theirs.
"""

from __future__ import annotations

import fcntl
import json
import mmap
import os
from typing import TYPE_CHECKING

import numpy
from mpi4py import MPI

from hpccoll.guard.natives import answer
from hpccoll.guard.watcher import WATCHER
from hpccoll.machine.launcher import job_key, local_size
from hpccoll.machine.processes import Process, this_process
from hpccoll.runtime.log import ASKED, LEFT, LOG_BYTES, Log
from hpccoll.transport.shm.mapping import DIRECTORY, PREFIX

if TYPE_CHECKING:
    from hpccoll.guard.setup import SetupCall

#: Bytes of a log with the identity of its process behind it, and where the latter is. The file
#: begins with a page that holds the number of logs, and whether any set-up call has failed.
IDENTITY_START, IDENTITY_BYTES = LOG_BYTES, 512
COUNT, FAILURE = 0, 1
SLOT = -(-(LOG_BYTES + IDENTITY_BYTES) // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
HEADER = mmap.ALLOCATIONGRANULARITY


class JobLogs:
    """Logs of the processes of this job on this node, by their ranks in ``COMM_WORLD``.

    Attributes:
        mine: this process's log.
        logs, processes: those known, this one included; :meth:`look` adds new ones.
        calls: set-up calls that the MPI library runs in this process now.
    """

    def __init__(self) -> None:
        self.mine = Log(numpy.zeros(LOG_BYTES, "u1"))
        self.head = memoryview(bytearray(16)).cast("q")
        self.logs: dict[int, Log] = {}
        self.processes: dict[int, Process] = {}
        self.calls: set[SetupCall] = set()
        self.file, self.count, self.pid, self.path = -1, 0, 0, ""
        self.ending: SetupCall | None = None

    def join(self) -> None:
        """Add this process's log, once; nothing where it is alone or nobody could find the file."""
        if self.pid == os.getpid() or MPI.COMM_WORLD.Get_size() == 1:
            return
        self.pid = os.getpid()
        key = job_key()
        # Processes that were spawned have ranks in a world of their own.
        if key and MPI.Comm.Get_parent() == MPI.COMM_NULL:
            try:
                self._add(os.path.join(DIRECTORY, f"{PREFIX}job-{key}"))
            except OSError:
                self.file = -1  # nobody finds this process, which harms no call
        WATCHER.add(self)

    def _add(self, path: str) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self.file = os.open(path, flags, 0o600)
        fcntl.flock(self.file, fcntl.LOCK_EX)
        try:
            os.posix_fallocate(self.file, 0, HEADER)
            head = memoryview(mmap.mmap(self.file, HEADER)).cast("q")
            number = head[COUNT]
            start = HEADER + number * SLOT
            os.posix_fallocate(self.file, start, SLOT)
            identity = json.dumps([MPI.COMM_WORLD.Get_rank(), *this_process()]).encode()
            os.pwrite(self.file, identity[:IDENTITY_BYTES], start + IDENTITY_START)
            self.mine = self._log(number)
            self.head = head
            head[COUNT] = number + 1
            if number + 1 == local_size():
                os.unlink(path)
            elif local_size() < 0:
                self.path = path  # removed at the end: nobody knows who comes last
        finally:
            fcntl.flock(self.file, fcntl.LOCK_UN)

    def _log(self, number: int) -> Log:
        memory = mmap.mmap(self.file, LOG_BYTES, offset=HEADER + number * SLOT)
        return Log(numpy.frombuffer(memory, "u1"))

    def look(self) -> bool:
        """Add the logs of processes that have joined since the last look; tell whether any has."""
        found = self.head[COUNT]
        new = found > self.count
        for number in range(self.count, found):
            identity = os.pread(self.file, IDENTITY_BYTES, HEADER + number * SLOT + IDENTITY_START)
            rank, *process = json.loads(identity.rstrip(b"\0"))
            mine = rank == MPI.COMM_WORLD.Get_rank()
            self.logs[rank] = self.mine if mine else self._log(number)
            self.processes[rank] = Process(*process)
        self.count = found
        return new

    def ask(self) -> None:
        """Ask the other processes where they are."""
        for log in list(self.logs.values()):
            if log is not self.mine:
                log.words[ASKED] = 1

    # -- what the watcher asks -----------------------------------------------------------------
    def watched(self) -> str:
        """Answer who asks where this process is; check the calls that the MPI library runs.

        Returns:
            What to print where such a call cannot end any more; else nothing.
        """
        answer(self.mine)
        for call in list(self.calls):
            text = call.check()
            if text:
                self.ending = call
                return text
        return ""

    def busy(self) -> bool:
        """Tell whether the MPI library runs a set-up call."""
        return bool(self.calls)

    def escaped(self) -> bool:
        """Tell whether the call that could not end has ended."""
        return self.ending not in self.calls

    def leave(self, how: int) -> None:
        """Write that this process ends its program."""
        self.mine.words[LEFT] = how
        if self.path:
            try:
                os.unlink(self.path)
            except OSError:
                pass


JOB = JobLogs()
