"""Simulation: how long a schedule takes on a machine that is described, not there.

``simulate`` times the same schedules that are proved and run, for any number of ranks. A
``machine_model`` comes from the ``catalog`` or a file; ``workload`` and ``network`` say what ranks
do and what their messages share; ``symmetry`` finds ranks that do the same; ``event_loop`` lets
time pass, at the rates of ``fair_share``; ``report`` and ``plot`` show the result, ``validation``
compares it with measurements. Nothing here needs MPI or NumPy. A new cost is a
field of the machine model, and a term in the event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpccoll.errors import ArgumentError, ScheduleError
from hpccoll.ir.schedule import Schedule
from hpccoll.ir.topology import Topology

if TYPE_CHECKING:
    from hpccoll.simulator.machine_model import Machine
    from hpccoll.simulator.report import Report


def simulate(schedule: Schedule, nbytes: float, machine: str | Machine = "hdr",
             topology: str | Topology | None = None, *, itemsize: int = 0,
             segment_bytes: float = 0, fold: bool = True) -> Report:
    """Time a schedule on a machine.

    Args:
        schedule: from :func:`hpccoll.schedule`.
        nbytes: bytes of a rank's vector, or of all its blocks together.
        machine: a name of :func:`hpccoll.simulator.catalog.names`, a file, or a ``Machine``.
        topology: layout of the ranks on the machine, outermost level first; the schedule's own
            if omitted.
        itemsize: bytes of an element: cut blocks at whole elements, as a plan does. By default
            blocks are equal parts.
        segment_bytes: pipeline segments of blocks of at most so many bytes, two at a time.
        fold: ``False`` times every rank on its own.

    Raises:
        ArgumentError: a size, machine or topology that cannot be used.
        ScheduleError: the schedule deadlocks, or messages do not match.
    """
    from hpccoll.simulator.catalog import find
    from hpccoll.simulator.event_loop import run
    from hpccoll.simulator.network import NetworkPaths
    from hpccoll.simulator.report import report
    from hpccoll.simulator.symmetry import Folding, find_symmetry
    from hpccoll.simulator.workload import Workload

    if not isinstance(schedule, Schedule):
        raise ArgumentError("schedule", f"expected a Schedule, got {schedule!r}",
                            "make one with hpccoll.schedule(...)")
    if topology is None:
        topology = schedule.topology or Topology(schedule.size)
    layout = NetworkPaths(Topology.parse(topology, schedule.size))
    known = find(machine)
    if schedule.collective.payload == "none":
        nbytes = 0

    def timed(joined: bool) -> Report:
        work = Workload(schedule, nbytes, itemsize, segment_bytes, joined)
        folding = find_symmetry(work, layout) if fold else Folding(None)
        return report(schedule, known, layout, folding, nbytes, work.segments,
                      run(work, known, layout, folding))

    try:
        return timed(joined=True)
    except ScheduleError:
        # The two ends of a message may group it into rounds differently.
        return timed(joined=False)
