"""Logs of the processes of this job on this node, without a communicator: :class:`JobLogs`.

Ranks that wait in the first call of a communicator have no guard yet. So each process adds its log
to a file of the job when it creates its first ``Comm``. Other processes read its status there, and
in ``/proc`` whether it is alive. Processes without a ``Comm``, and other nodes, are unknown.
"""

from __future__ import annotations

import json
import os
import warnings
import zlib

import numpy
from mpi4py import MPI

from hpccoll.guard.comm_table import TABLE_BYTES, CommTable
from hpccoll.guard.watchdog import STATUS, WATCHDOG, Monitor, answer
from hpccoll.machine.launcher import job_key, local_size
from hpccoll.machine.processes import DEAD, Process, state_of, this_process
from hpccoll.runtime.events import call_log
from hpccoll.runtime.events.call_log import LEFT, LOG_BYTES, Log
from hpccoll.runtime.execution.built import BUILT
from hpccoll.transport.shm.job_file import FAILURE, JobFile

if BUILT:
    from hpccoll.runtime.execution import _executor


#: Bytes of a process in the file of the job: its log and its communicators.
SLOT_BYTES = LOG_BYTES + TABLE_BYTES
#: The layout of logs, for programs of other versions.
LAYOUT = zlib.crc32(repr([(name, value) for name, value in sorted(vars(call_log).items())
                          if name.isupper() and isinstance(value, int)]).encode())


def pack_identity(rank: int, process: Process) -> bytes:
    """Return the identity of a process, with the layout of its log."""
    return json.dumps([rank, process, LAYOUT]).encode()


def unpack_identity(data: bytes) -> tuple[int, Process, int]:
    """Return the rank, the process and the layout of an identity, which zeros may follow."""
    rank, process, layout = json.loads(data.rstrip(b"\0"))
    return rank, Process(*process), layout


class JobLogs(Monitor):
    """Logs of the processes of this job on this node, by their ranks in ``COMM_WORLD``.

    Attributes:
        mine: this process's log.
        logs, processes: known processes, including this one; :meth:`look` adds new ones.
        comms: the communicators of this process.
        met: by rank, the sequence number in its log of the last set-up call that both were in.
    """

    def __init__(self) -> None:
        self.mine = Log(numpy.zeros(LOG_BYTES, "u1"))
        self.logs: dict[int, Log] = {}
        self.processes: dict[int, Process] = {}
        self.met: dict[int, int] = {}
        self.file: JobFile | None = None
        self.comms = CommTable(memoryview(bytearray(TABLE_BYTES)))
        self.pid, self.rank = 0, 0

    def join(self) -> None:
        """Add this process's log, once."""
        if self.pid == os.getpid() or MPI.COMM_WORLD.Get_size() == 1:
            return
        self.pid, self.rank, key = os.getpid(), MPI.COMM_WORLD.Get_rank(), job_key()
        # Spawned processes have ranks in another COMM_WORLD.
        if key and MPI.Comm.Get_parent() == MPI.COMM_NULL:
            try:
                self.file = JobFile(key, SLOT_BYTES, local_size(),
                                    pack_identity(self.rank, this_process()))
                self.mine = Log(self.file.mine[:LOG_BYTES])
                self.comms = CommTable(self.file.mine[LOG_BYTES:].data)
            except (PermissionError, TimeoutError) as error:
                warnings.warn(f"hpccoll: {error}; ranks that wait in a first call do not see this "
                              "one", RuntimeWarning, stacklevel=2)
            except OSError:
                pass  # other processes do not see this one
        WATCHDOG.add(self)

    def look(self) -> bool:
        """Add the logs of new processes; return True if there are any."""
        new = self.file.new() if self.file is not None else []
        for identity, memory in new:
            rank, self.processes[rank], _ = unpack_identity(identity)
            self.logs[rank] = Log(memory[:LOG_BYTES])
        return bool(new)

    def ask(self) -> None:
        """Request the status of all processes."""
        for log in list(self.logs.values()):
            log.ask()

    @property
    def failure(self) -> bool:
        """True if a set-up call has failed in any process; set by :meth:`fail`."""
        return self.file is not None and bool(self.file.words[FAILURE])

    def fail(self) -> None:
        """Record that a set-up call has failed."""
        if self.file is not None:
            self.file.words[FAILURE] = 1

    # -- called by the watchdog ------------------------------------------------------------------
    def poll(self) -> str:
        """Answer status requests; set-up calls have monitors of their own."""
        answer(self.mine)
        return ""

    def leave(self, how: int) -> None:
        """Record that this process exits."""
        self.mine.words[LEFT] = how
        if self.file is None:
            return
        from hpccoll.machine.failures import ulfm_missing
        self.look()
        # A library with ULFM does not wait for dead processes.
        if BUILT and ulfm_missing() and not MPI.Is_finalized():
            peers = tuple((rank, process.pid, process.began, self.logs[rank].address + 8 * LEFT)
                          for rank, process in self.processes.items())
            _executor.check_at_exit(self.rank, STATUS, peers, self.logs)
        over = all(log.words[LEFT] or state_of(self.processes[rank]) == DEAD
                   for rank, log in self.logs.items())
        # The first process may exit before the others have opened the file.
        if over and (len(self.logs) > 1 or local_size() < 0):
            self.file.remove()


JOB = JobLogs()
