"""The observed communicators of this process; their records, gathered or written at exit.

Ranks compare their clocks in the first collective of all ranks, and again at exit: with
``HPCCOLL_TRACE`` a rank waits :data:`PATIENCE` seconds for the others, and then writes its file
in any case.
"""

from __future__ import annotations

import atexit
import os
import time
import warnings

from mpi4py import MPI

from hpccoll.errors import ArgumentError
from hpccoll.machine.backoff import wait_until
from hpccoll.machine.groups import world_ranks
from hpccoll.measure.clocks import clock_name, seconds_ahead
from hpccoll.measure.profiling.merge import join
from hpccoll.measure.profiling.profile import Profile, profile
from hpccoll.measure.profiling.record import CommName, RankRecord, records_of, save
from hpccoll.runtime.events.phase_events import Phases
from hpccoll.runtime.events.ring import MOST_COMMS, events
from hpccoll.transport.private_comm import PrivateComm

#: Maximum number of joined calls, over all ranks.
GATHERED = 4_000_000
#: Seconds to wait for the other ranks at exit.
PATIENCE = 5.0
#: Names of communicators without a name, by their topology.
KINDS = {MPI.UNDEFINED: "communicator", MPI.CART: "Cartcomm", MPI.GRAPH: "Graphcomm",
         MPI.DIST_GRAPH: "Distgraphcomm"}
_keyvals: list[int] = []


class Observer:
    """The observed communicators of a process.

    Attributes:
        paused: True while new communicators are not recorded: hpccoll measures with them.
        comms: in the order in which each was first used: their numbers in the ring of events.
        phases: of calls, by communicator, if they are traced.
        job: name of the job, once the ranks have agreed on it; for names of files.
        written: True if the file of this rank exists.
    """

    def __init__(self) -> None:
        self.paused = False
        self.comms: list[CommName] = []
        self.phases: dict[int, Phases] = {}
        self.ahead: list[tuple[float, float]] = []
        self.began = time.perf_counter()
        self.pid = os.getpid()
        self.job, self.written = "", False

    def number_of(self, comm: MPI.Intracomm) -> int:
        """Return a number for a communicator; those beyond the last number share it."""
        ranks = world_ranks(comm)
        if len(self.comms) < MOST_COMMS - 1:
            number = sum(known.ranks == ranks for known in self.comms)
            self.comms.append(CommName(comm.Get_name() or f"{KINDS[comm.Get_topology()]} of "
                                       f"{len(ranks)}", ranks, number))
        elif len(self.comms) < MOST_COMMS:
            self.comms.append(CommName("other communicators", ()))
        return len(self.comms) - 1

    def align(self, comm: MPI.Intracomm) -> None:
        """Compare clocks with rank 0; collective, on a communicator of all ranks."""
        if not self.ahead:
            self.job = comm.bcast(f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}", 0)
        self.ahead.append((time.perf_counter(), seconds_ahead(comm)))

    def record(self) -> RankRecord:
        """Return the record of this rank so far."""
        return RankRecord(MPI.COMM_WORLD.Get_rank(), clock_name(), tuple(self.ahead), self.began,
                          time.perf_counter(),
                          records_of(events(), self.comms, self.phases), events().spans())


OBSERVER = Observer()


def gather_records(comm: MPI.Intracomm, record: RankRecord) -> list[RankRecord]:
    """Return the records of all ranks, on rank 0; collective. Long records keep the last calls."""
    most = max(GATHERED // comm.Get_size(), 1)
    last = tuple(one.last(most) for one in record.communicators)
    return PrivateComm(comm).gather(record._replace(communicators=last, spans=()), 0) or []


def stats(comm: MPI.Intracomm, number: int | None, all_ranks: bool) -> Profile:
    """Return the profile of one communicator: of this rank, or, collectively, of all.

    Args:
        number: of the communicator; ``None`` before its first call.
        all_ranks: True to gather the records of all ranks.
    """
    if not hasattr(type(comm), "_watched"):
        raise ArgumentError("stats", "this job does not count calls",
                            "set HPCCOLL_PROFILE=yes before you create the communicator, or start "
                            "the program with hpccoll run --profile")
    mine = OBSERVER.record()
    mine = mine._replace(communicators=mine.communicators[number:number + 1]
                         if number is not None else ())
    if not all_ranks:
        return profile(join([mine]))
    records = gather_records(comm, mine)
    found: Profile = PrivateComm(comm).bcast(profile(join(records)) if records else None, 0)
    return found


# -- files -------------------------------------------------------------------------------------
def write_at_end(folder: str) -> None:
    """Register a callback that writes this rank's file once, at exit or in MPI_Finalize."""
    if _keyvals:
        return

    def end() -> None:
        if OBSERVER.pid == os.getpid() and not OBSERVER.written:
            OBSERVER.written = True
            try:
                write(folder)
            except OSError as error:
                warnings.warn("hpccoll: cannot write the trace of rank "
                              f"{MPI.COMM_WORLD.Get_rank()}: {error}",
                              RuntimeWarning, stacklevel=2)

    # MPI_Finalize frees COMM_SELF first; the program may call it before Python exits.
    _keyvals.append(MPI.Comm.Create_keyval(delete_fn=lambda comm, key, value: end()))
    MPI.Intracomm(MPI.COMM_SELF).Set_attr(_keyvals[0], True)
    atexit.register(end)


def write(folder: str) -> None:
    """Compare clocks if all ranks arrive in time, and write this rank's file."""
    world = MPI.Intracomm(MPI.COMM_WORLD)
    if wait_until(world.Ibarrier().Test, budget=PATIENCE):
        OBSERVER.align(world)
    save(folder, OBSERVER.record(), OBSERVER.job, world.Get_size())
