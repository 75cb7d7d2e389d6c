"""Native times of a sample of the program's calls: seconds that hpccoll saved or lost.

The kinds that took longest run again after the program's end, on separate buffers, hpccoll's and
the library's in turn, as in ``hpccoll bench``. Only upper-case blocking calls with equal blocks on
all ranks can be measured.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy
from mpi4py import MPI

from hpccoll.config import AUTO, NATIVE
from hpccoll.errors import HpccollError
from hpccoll.measure.buffers import CaseBuffers
from hpccoll.measure.cases import Case, make
from hpccoll.measure.profiling.profile import CallRow, Profile
from hpccoll.measure.timing import Settings, World, measure
from hpccoll.measure.wrapping import Wrap
from hpccoll.tune.table import Candidate

#: Number of measured kinds, and seconds for each candidate of one.
MOST_SAMPLES, SECONDS = 8, 0.2
METHODS = ("allreduce", "bcast", "reduce", "allgather", "gather", "scatter", "alltoall",
           "reduce_scatter_block", "scan", "exscan", "barrier")


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
