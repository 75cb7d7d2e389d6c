"""Load of other processes: the share of the cores that they used while this job measured.

``/proc/stat`` has the seconds for which each core was busy. The job's own ranks used part of them;
the rest, divided by the elapsed time and the number of cores, is the share of all other processes.
Only cores count that some rank of the node may run on (affinity masks, which respect cpusets). On
these cores processes of other containers count too and, as stolen time, other virtual machines; a
quota of a cgroup is not considered. Ranks that outnumber the cores do not count as others, nor do
interrupts, which may deliver this job's messages.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from time import monotonic, sleep

from mpi4py import MPI

from hpccoll.transport.private_comm import PrivateComm

#: Largest share of other processes at which a measurement is one of this machine.
MOST = 0.05
#: Times of /proc/stat are multiples of 10 ms: the share of a shorter measurement is unknown.
SHORTEST = 0.25
_STAT, _BOOT = "/proc/stat", "/proc/sys/kernel/random/boot_id"


class OtherLoad:
    """Measures the load of other processes from its construction on; collective.

    Args:
        comm: all ranks of the job; only methods of ``MPI.Intracomm`` itself are called.
    """

    def __init__(self, comm: MPI.Intracomm):
        self.comm = MPI.Intracomm(comm)
        # Emulated hosts share a kernel and its /proc/stat.
        kernel = _read(_BOOT).replace("-", "")[:7]
        self.node = PrivateComm(self.comm.Split(int(kernel, 16) if kernel else 0, self.comm.rank))
        cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
        self.cores = set[int]().union(*self.node.allgather(cores))
        self.start = self._read()

    def share(self, seconds: float = 0.0) -> float:
        """Return the share of the cores of this rank's node; collective, only once.

        Args:
            seconds: minimum observation time; sleeps for the rest.

        Returns:
            From 0 to 1, the same on all ranks of a node; 0 if unknown.
        """
        sleep(max(0.0, seconds - (monotonic() - self.start[0])))
        elapsed, busy, own = (end - start for start, end in zip(self.start, self._read()))
        share = self.node.bcast((busy - own) / (elapsed * len(self.cores))
                                if self.start[1] and elapsed >= SHORTEST else 0.0)
        self.node.Free()
        return min(max(share, 0.0), 1.0)

    def _read(self) -> tuple[float, float, float]:
        """Return time, busy seconds of the cores, and processor time of all ranks of the node."""
        self.comm.Barrier()
        own = self.node.allreduce(sum(os.times()[:4]))
        return monotonic(), busy_seconds(_read(_STAT), self.cores), own


def busy_seconds(text: str, cores: Collection[int]) -> float:
    """Return the seconds since boot for which cores were busy, from the text of ``/proc/stat``.

    >>> busy_seconds("cpu  9 9 9 9\\ncpu0 100 50 25 800 3 4 5 25 0 0\\ncpu1 1 1 1 1\\n", {0})
    2.0
    """
    ticks = 0
    for line in text.splitlines():
        name, *fields = line.split()
        if name[:3] == "cpu" and name[3:].isdecimal() and int(name[3:]) in cores:
            user, nice, system, _, _, _, _, stolen = map(int, (fields + ["0"] * 8)[:8])
            ticks += user + nice + system + stolen
    return ticks / os.sysconf("SC_CLK_TCK")


def load_text(share: float) -> str:
    """Return a text on the share of other processes; empty if it is small.

    >>> load_text(0.34), load_text(0.02)
    ('other processes used 34 % of the cores', '')
    """
    return f"other processes used {100 * share:.0f} % of the cores" if share > MOST else ""


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii", errors="replace")
    except OSError:  # macOS has neither
        return ""
