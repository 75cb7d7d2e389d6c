"""State of the ranks of a running job on this node, read from outside: :func:`read_jobs`.

    /proc/PID/fd  -->  file of the job  -->  logs of its processes, and their communicators
                                        -->  logs of the calls of each communicator

Everything is a copy of shared memory that the ranks keep anyway: no rank is stopped or asked.
"""

from __future__ import annotations

import mmap
import os
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy

from hpccoll.errors import ArgumentError, HpccollError
from hpccoll.guard.comm_table import CommEntry, CommTable
from hpccoll.guard.diagnosis import judge
from hpccoll.guard.job_status import LAYOUT, SLOT_BYTES, unpack_identity
from hpccoll.guard.rank_status import NATIVE, WAITING, RankActivity, RankStatus
from hpccoll.machine.processes import Process, parent_of
from hpccoll.runtime.events.call_log import LOG_BYTES, SOME_TIME, Log
from hpccoll.transport.shm.job_file import read_slots
from hpccoll.transport.shm.mapping import DIRECTORY, PREFIX, open_private
from hpccoll.units import ranks_text, time_text

#: Start of the link of a job's file in ``/proc/PID/fd``.
JOB_FILE = f"{DIRECTORY}/{PREFIX}job-"
#: Name of the set-up calls of a process, before a communicator has a log.
SETUP = "set-up"


class RankLine(NamedTuple):
    """One rank of a job: its current call, or its last one.

    Attributes:
        rank, pid: in ``COMM_WORLD``.
        comm: name of the communicator of the call.
        activity: its status, whose ranks are those of ``COMM_WORLD``.
        seconds: since the call began; ``None`` if unknown.
    """

    rank: int
    pid: int
    comm: str
    activity: RankActivity
    seconds: float | None

    def __str__(self) -> str:
        of = f" (of {self.comm})" if self.activity.begun > 0 else ""
        since = f", {time_text(self.seconds, 3)} ago" if self.seconds is not None else ""
        if self.activity.inside:
            since = since.replace(", ", ", for ").removesuffix(" ago")
        return f"{self.activity}{of}{since}; process {self.pid}"

    def as_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {"rank": self.rank, "pid": self.pid, "communicator": self.comm,
                "seconds": self.seconds, **{
                    name: value for name, value in self.activity._asdict().items()
                    if name not in ("rank", "seconds", "node", "silent")}}


class JobState(NamedTuple):
    """The ranks of a job on this node.

    Attributes:
        key: name of the job on this node.
        ranks: a line for each rank.
        verdict: what is wrong with each communicator in which a rank waits.
    """

    key: str
    ranks: Sequence[RankLine]
    verdict: Sequence[str]

    def as_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {"format": "hpccoll status 1", "job": self.key, "verdict": list(self.verdict),
                "ranks": [one.as_json() for one in self.ranks]}


class JobProcess(NamedTuple):
    """A process in the file of its job, with its log and its communicators."""

    rank: int
    process: Process
    log: Log
    comms: Sequence[CommEntry]


def read_jobs(which: str = "") -> list[JobState]:
    """Return the state of the jobs of this user on this node.

    Args:
        which: the process of a rank, or of a launcher above it; a job of Slurm; or a job's key. All
            jobs, if empty.

    Raises:
        ArgumentError: there is no such job.
        HpccollError: the job uses another version of hpccoll.
    """
    found: dict[str, str] = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        for path, link in _files_of(int(pid)):
            if link.startswith(JOB_FILE):
                key = link.removeprefix(JOB_FILE).removesuffix(" (deleted)")
                if key not in found and (not which or which == key or _is_of(int(pid), which)):
                    found[key] = path
    if which and not found:
        raise ArgumentError("job", f"{which!r} is no process or job with ranks of user "
                            f"{os.geteuid()} on this node", "run hpccoll status alone to see all")
    jobs = []
    for key, path in sorted(found.items()):
        try:
            jobs.append(_read_job(key, path))
        except (HpccollError, OSError) as error:
            if which:
                raise
            jobs.append(JobState(key, (), [str(error)]))
    return jobs


def _files_of(pid: int) -> Iterator[tuple[str, str]]:
    """Yield the open files of a process of this user: path and link."""
    folder = f"/proc/{pid}/fd"
    with suppress(OSError):
        if os.stat(f"/proc/{pid}").st_uid == os.geteuid():
            for name in os.listdir(folder):
                with suppress(OSError):
                    yield f"{folder}/{name}", os.readlink(f"{folder}/{name}")


def _is_of(pid: int, which: str) -> bool:
    """Return True if a process belongs to a job or is below another process."""
    with suppress(OSError):
        with open(f"/proc/{pid}/environ", "rb") as file:
            if f"SLURM_JOB_ID={which}".encode() in file.read().split(b"\0"):
                return True
        while pid > 1:
            if str(pid) == which:
                return True
            pid = parent_of(pid)
    return False


def _read_job(key: str, path: str) -> JobState:
    file = open_private(path, 0, os.O_RDONLY)
    try:
        slots = read_slots(file, SLOT_BYTES)
    finally:
        os.close(file)
    processes: dict[int, JobProcess] = {}
    for identity, memory in slots:
        try:
            rank, process, layout = unpack_identity(identity)
        except (ValueError, TypeError):  # of another version
            layout = 0
        if layout != LAYOUT:
            raise HpccollError(f"job {key} runs another version of hpccoll; run the hpccoll of its "
                               "environment")
        processes[rank] = JobProcess(rank, process, _log(memory),
                                     CommTable(memoryview(bytearray(memory[LOG_BYTES:]))).entries())
    comms = [*_comms(processes), Setup(SETUP, max(processes, default=0) + 1, {
        rank: (one, one.log) for rank, one in processes.items()})]
    return JobState(key, [_line(one, comms) for _, one in sorted(processes.items())],
                    [text for comm in comms if (text := comm.verdict())])


def _log(memory: bytes) -> Log:
    return Log(numpy.frombuffer(bytearray(memory[:LOG_BYTES]), "u1"))


class CommState:
    """A communicator of a job: the logs of its ranks on this node.

    Args:
        name: of the communicator.
        size: its ranks.
        members: the known ranks, with their processes and logs.
    """

    def __init__(self, name: str, size: int, members: Mapping[int, tuple[JobProcess, Log]]):
        self.name, self.members = name, members
        self.world = {rank: one.rank for rank, (one, _) in members.items()}
        logs = {rank: log for rank, (_, log) in members.items()}
        self.status = RankStatus(min(logs), logs, [
            members[rank][0].process if rank in members else Process("", 0, 0)
            for rank in range(size)])
        self.status.rank = -1  # this process is none of the ranks

    def line(self, rank: int) -> RankLine:
        """Return the line of a rank, by its number in the communicator."""
        one, log = self.members[rank]
        found = self.status.activity(rank)
        start = next((call.start for call in log.calls() if call.number == found.begun), 0)
        since = (time.monotonic_ns() - start) / 1e9 if start > SOME_TIME else None
        return RankLine(one.rank, one.process.pid, self.name, found._replace(
            rank=one.rank, peers=tuple(self.world.get(peer, peer) for peer in found.peers)), since)

    def verdict(self) -> str:
        """Return why ranks wait in the communicator; empty if none waits."""
        known = [self.status.activity(rank) for rank in self.members]
        waiting = [one for one in known if one.state in (WAITING, NATIVE)]
        if not waiting:
            return ""
        contract = judge({rank: log.record() for rank, (_, log) in self.members.items()},
                         self.status.size)
        if contract is not None:
            return f"{self.name}: {contract}"
        number = max(one.begun for one in waiting)
        late = self.status.states(number).missing
        inside = [one for one in waiting if one.begun == number]
        call = f"call {number} of {self.name}, {inside[0].call}"
        names = ranks_text(self.world[one.rank] for one in inside)
        return f"{late}; {names} wait{'s' * (len(inside) == 1)} in {call}"


class Setup(CommState):
    """Set-up calls of the processes, which each of them counts by itself."""

    def verdict(self) -> str:
        """See :meth:`CommState.verdict`."""
        known = [self.status.activity(rank) for rank in self.members]
        inside = {one.rank: one for one in known if one.state in (WAITING, NATIVE)}
        awaited = {peer for one in inside.values() for peer in one.peers} - set(inside)
        if not inside or not awaited:
            return ""
        late = ", ".join(one.brief(0) for one in known if one.rank in awaited)
        return (f"{late or ranks_text(awaited)}; {ranks_text(inside)} "
                f"wait{'s' * (len(inside) == 1)} in {min(inside.items())[1].call}")


def _comms(processes: Mapping[int, JobProcess]) -> Iterator[CommState]:
    """Yield the communicators; the logs of a killed rank are read from another rank's file."""
    found: dict[int, list[tuple[JobProcess, CommEntry]]] = defaultdict(list)
    for one in processes.values():
        for entry in one.comms:
            found[entry.inode].append((one, entry))
    part = -(-LOG_BYTES // mmap.PAGESIZE) * mmap.PAGESIZE
    for inode, listed in found.items():
        for one, entry in listed:
            with suppress(OSError):
                file = open_private(f"/proc/{one.process.pid}/fd/{entry.file}", 0, os.O_RDONLY)
                try:
                    if os.fstat(file).st_ino == inode:
                        logs = {each.rank: (owner, _log(os.pread(file, LOG_BYTES,
                                                                 part * each.place)))
                                for owner, each in listed}
                        yield CommState(entry.name or "a communicator", entry.size, logs)
                        break
                finally:
                    os.close(file)


def _line(one: JobProcess, comms: Sequence[CommState]) -> RankLine:
    """Return the line of the call that a rank is in, or else of its last one."""
    lines = [comm.line(rank) for comm in comms for rank, world in comm.world.items()
             if world == one.rank]
    return min(lines, key=lambda line: (
        not line.activity.inside, line.comm == SETUP,
        line.seconds if line.seconds is not None else float("inf")))
