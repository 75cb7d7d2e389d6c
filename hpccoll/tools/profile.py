"""Profile of a program at exit: gathered, printed, written and drawn.

The kinds of calls that took longest run again after the program's end, on separate buffers,
hpccoll's and the library's in turn, as in ``hpccoll bench``: this gives the seconds that hpccoll
saved. Only upper-case blocking calls with equal blocks on all ranks can be measured.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy
from mpi4py import MPI

from hpccoll.comm import Comm
from hpccoll.config import AUTO, NATIVE
from hpccoll.errors import HpccollError
from hpccoll.explain.plotting import save
from hpccoll.machine.groups import private_copy
from hpccoll.measure.buffers import CaseBuffers
from hpccoll.measure.cases import Case, make
from hpccoll.measure.profiling.merge import join
from hpccoll.measure.profiling.observer import OBSERVER, gather_records
from hpccoll.measure.profiling.profile import CallRow, Profile, add_comparison, profile
from hpccoll.measure.timing import Settings, World, measure
from hpccoll.measure.wrapping import Wrap
from hpccoll.training.picture import COLOURS, INK, new_figure, style_panel
from hpccoll.tune.table import Candidate
from hpccoll.units import time_text

#: Maximum rows of a plot.
BARS = 16
#: Number of measured kinds, and seconds for each candidate of one.
MOST_SAMPLES, SECONDS = 8, 0.2
METHODS = ("allreduce", "bcast", "reduce", "allgather", "gather", "scatter", "alltoall",
           "reduce_scatter_block", "scan", "exscan", "barrier")


def finish(compare: bool) -> Profile | None:
    """Gather the records of all ranks; ``compare`` measures the longest calls again; collective.

    Returns:
        The profile on rank 0; ``None`` elsewhere.
    """
    OBSERVER.paused = True
    world = private_copy(MPI.Intracomm(MPI.COMM_WORLD))
    try:
        world.Barrier()  # output of other ranks comes before the profile
        record = OBSERVER.record()
        OBSERVER.align(world)
        records = gather_records(world, record._replace(ahead=tuple(OBSERVER.ahead)))
        found = profile(join(records)) if records else None
        if compare:
            ratios = compare_sample(found, world, Comm)
            found = add_comparison(found, ratios) if found is not None else None
    finally:
        world.Free()
        OBSERVER.paused = False
    return found


def draw(found: Profile, path: str | os.PathLike[str]) -> None:
    """Draw the rows of a profile as bars: waiting, and the rest of the time."""
    rows = found.rows[:BARS]
    figure = new_figure(9.0, 1.3 + 0.34 * max(len(rows), 1))
    panel: Any = figure.subplots()
    style_panel(panel, f"collectives of {found.ranks} ranks: "
                       f"{time_text(found.collective_seconds, 3)} of {time_text(found.seconds, 3)}")
    waits = [row.waiting or 0.0 for row in rows]
    panel.barh(range(len(rows)), waits, color=COLOURS["blocked"], height=0.7,
               label="waiting for other ranks, or for a request")
    panel.barh(range(len(rows)), [row.seconds - wait for row, wait in zip(rows, waits)],
               left=waits, color=COLOURS["in flight"], height=0.7, label="the rest")
    panel.set_yticks(range(len(rows)), [f"{row.method}  {row.sizes}  ({row.served})"
                                        for row in rows])
    panel.invert_yaxis()
    panel.xaxis.set_major_formatter(lambda value, position: time_text(value, 3))
    panel.set_xlabel("seconds a rank, mean of the ranks", color=INK, fontsize=9)
    panel.legend(frameon=False, fontsize=8, labelcolor=INK, loc="lower right")
    figure.tight_layout()
    save(figure, path, 130)


def compare_sample(found: Profile | None, comm: MPI.Intracomm, wrap: Wrap
                   ) -> Mapping[CallRow, tuple[float, float]]:
    """Return the ratio of native time to hpccoll's, and seconds saved per call; collective.

    Args:
        found: the profile, on rank 0.
        comm: all ranks.

    Returns:
        By row of the profile's details; empty on other ranks than 0.
    """
    native = MPI.Intracomm.bcast
    rows = [row for row in found.details if _can_be_called(row)][:MOST_SAMPLES] if found else []
    rows = native(comm, rows, 0)
    ratios: dict[CallRow, tuple[float, float]] = {}
    world = World(comm, Settings(seconds=SECONDS), wrap)
    try:
        for row in rows:
            case = case_of(row, comm.Get_size())
            try:
                memories = [CaseBuffers(case, comm.Get_rank())]
            except HpccollError:
                continue
            results = measure(world, case, [Candidate(NATIVE), Candidate(AUTO)], memories)
            if results:
                theirs, ours = (result.trimmed_seconds for result in results)
                ratios[row] = theirs / ours, theirs - ours
    finally:
        world.free()
    return ratios


def _can_be_called(row: CallRow) -> bool:
    return row.title in METHODS and row.served != NATIVE and row.least >= 0


def case_of(row: CallRow, size: int) -> Case:
    """Return the case of a row of the profile."""
    dtype, _, op = row.what.partition(" ")
    return make(row.title, size, max(row.least, 1), numpy.dtype(dtype or "u1"), op or "sum")
