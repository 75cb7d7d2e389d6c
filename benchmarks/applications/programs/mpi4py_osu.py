"""mpi4py: its demos of the OSU benchmarks, with memory maps and counts of the standard library."""

from __future__ import annotations

from applications.program import Program

PROGRAM = Program(
    name="OSU demos", version="4.1.2", packages=(), sdist="mpi4py==4.1.2",
    words=("{here}/scripts/osu.py", "{sources}/demo", "bcast", "allgather", "alltoall",
           "alltoallv", "gather", "scatter"),
    right="every demo ends", timed="mpi4py's `demo/osu_*.py` of six collectives, to 1 MiB",
    modules=("mpi4py",), ranks=(2, 4))
