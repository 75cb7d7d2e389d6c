"""Names of collective methods, and facts that their names give; without the collectives."""

from __future__ import annotations

#: Forms of a method's name: blocking, nonblocking, persistent.
FORMS = BLOCKING, NONBLOCKING, PERSISTENT = "{}", "i{}", "{}_init"
#: Method name in lower case -> name of its algorithms in the registry.
METHODS = {
    **{name: name for name in (
        "barrier", "bcast", "reduce", "allreduce", "reduce_scatter", "allgather", "gather",
        "scatter", "alltoall", "scan", "exscan")},
    "reduce_scatter_block": "reduce_scatter", "allgatherv": "allgather", "gatherv": "gather",
    "scatterv": "scatter", "alltoallv": "alltoall", "alltoallw": "alltoall"}
#: Methods whose counts only the root has.
COUNTS_AT_ROOT = ("gatherv", "scatterv")
#: Methods whose counts no rank, or not every rank, has.
UNKNOWN_COUNTS = (*COUNTS_AT_ROOT, "alltoallv", "alltoallw")
