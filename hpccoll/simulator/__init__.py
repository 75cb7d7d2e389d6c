"""Simulation: the time of a schedule on a described machine.

``simulate`` times the same schedules that are proved and run, for any number of ranks. A
``machine_model`` comes from the ``catalog`` or a file, and may have one of the ``shapes``;
:mod:`hpccoll.ir.cost` and ``routes`` have the rounds of ranks and the resources of their messages;
``symmetry`` finds equal ranks; ``effort`` estimates the cost of a simulation;
``packed`` and ``wiring`` store programs and channels in arrays; ``event_loop`` processes events, at
the rates of ``fair_share`` and under ``conditions`` such as noise, and ``compiled_loop`` does so in
C; ``report``, ``loads`` and ``plot`` show the result, ``validation`` compares it with measurements.
Nothing here needs MPI or NumPy. A new cost is a field of the machine model, and a term in both
event loops.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from hpccoll.errors import ArgumentError, ScheduleError
from hpccoll.ir.schedule import Schedule
from hpccoll.ir.topology import Topology
from hpccoll.units import size

if TYPE_CHECKING:
    from hpccoll.simulator.conditions import SimulatedConditions
    from hpccoll.simulator.effort import ProgressCallback
    from hpccoll.simulator.machine_model import Machine
    from hpccoll.simulator.report import Report
    from hpccoll.simulator.shapes import Shape


def simulate(schedule: Schedule, nbytes: float | str, machine: str | Machine = "hdr",
             topology: str | Topology | None = None, *, itemsize: int = 0,
             segment_bytes: float | str = 0, fold: bool = True,
             progress: ProgressCallback | None = None, shape: str | Shape | None = None,
             conditions: SimulatedConditions | None = None) -> Report:
    """Time a schedule on a machine.

    Args:
        schedule: result of :func:`hpccoll.schedule`.
        nbytes: bytes of a rank's vector, or of all its blocks together: a number, or ``"1G"``.
        machine: a name of :func:`hpccoll.simulator.machine_model.names`, a file, or a ``Machine``.
        topology: layout of the ranks on the machine, outermost level first; the schedule's own
            if omitted.
        itemsize: bytes of an element: cut blocks at whole elements, as a plan does. By default
            blocks are equal parts.
        segment_bytes: maximum bytes of a pipeline segment of a block; two segments are in flight.
        fold: ``False`` to simulate every rank separately.
        progress: callback, gets a stage, its completed share, and a line of text; see
            :mod:`hpccoll.simulator.effort`.
        shape: shape of the network, instead of the machine's own: ``"torus:4x4x4"``, or a
            :class:`hpccoll.simulator.shapes.Shape`.
        conditions: late ranks, noise, and work between rounds; see
            :class:`hpccoll.simulator.conditions.SimulatedConditions`. Repeats give their median.

    Raises:
        ArgumentError: an invalid size, machine or topology, or more messages than can be
            simulated.
        ScheduleError: the schedule deadlocks, messages do not match, or a builder returned an
            invalid program.
    """
    from hpccoll.ir.cost.network import NetworkPaths
    from hpccoll.ir.cost.workload import Workload
    from hpccoll.simulator.conditions import USUAL, SimulatedConditions
    from hpccoll.simulator.effort import ignore_progress
    from hpccoll.simulator.event_loop import run
    from hpccoll.simulator.machine_model import find, with_shape
    from hpccoll.simulator.packed import pack
    from hpccoll.simulator.report import median, report
    from hpccoll.simulator.routes import Routes
    from hpccoll.simulator.symmetry import find_symmetry, simulate_all_ranks

    if not isinstance(schedule, Schedule):
        raise ArgumentError("schedule", f"expected a Schedule, got {schedule!r}",
                            "create one with hpccoll.schedule(...)")
    if topology is None:
        topology = schedule.topology or Topology(schedule.size)
    layout = NetworkPaths(Topology.parse(topology, schedule.size))
    known = with_shape(find(machine), shape)
    nbytes = 0 if schedule.collective.payload == "none" else _bytes("nbytes", nbytes)
    segment_bytes = _bytes("segment_bytes", segment_bytes)

    met = USUAL if conditions is None else conditions
    if not isinstance(met, SimulatedConditions):
        raise ArgumentError("conditions", f"expected SimulatedConditions, got {met!r}")

    def report_of(joined: bool) -> Report:
        work = Workload(schedule, nbytes, itemsize, segment_bytes, joined)
        advance = progress or ignore_progress
        folds = fold and met.is_uniform and Routes(known, layout).by_groups
        if folds:
            folding = find_symmetry(work, layout, advance, known.posts_in_turn)
        else:
            adapts = known.shape is not None and known.shape.routing == "adaptive"
            folding = simulate_all_ranks(work, layout, advance, met.is_uniform and not adapts,
                                         met.repeat)
        if met.repeat > 1 and folding.symmetry is None:
            folding = folding._replace(packed=pack(work, range(layout.size)))
        reports = [report(schedule, known, layout, folding, nbytes, work.segments,
                          run(work, known, layout, folding, advance, met.turn(number)),
                          met) for number in range(met.repeat)]
        timing = median(reports) if met.repeat > 1 else reports[0]
        if not math.isfinite(timing.seconds):
            raise ArgumentError("machine", f"the time of {nbytes:g} bytes on {known.name} "
                                           "overflows", "check its rates and latencies")
        return timing

    try:
        return report_of(joined=True)
    except ScheduleError:
        # The two ends of a message may group it into rounds differently.
        return report_of(joined=False)


def _bytes(argument: str, value: float | str) -> float:
    """Parse a size given as text; return other values unchecked."""
    return size(argument, value) if isinstance(value, str) else value
