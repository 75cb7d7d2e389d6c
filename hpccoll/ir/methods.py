"""Table of the collective methods: a row for each, with what its name gives in all its forms.

Calls, communicators and measurements read it; the methods themselves are written out in
:mod:`hpccoll.comm`.
"""

from __future__ import annotations

from typing import NamedTuple

#: Forms of a method's name: blocking, nonblocking, persistent.
FORMS = BLOCKING, NONBLOCKING, PERSISTENT = "{}", "i{}", "{}_init"
#: Runs a method's lower-case form, which has Python objects.
HPCCOLL, MPI4PY = "hpccoll", "mpi4py"


class Row(NamedTuple):
    """One collective method.

    Attributes:
        collective: the name of its algorithms in the registry.
        roles: of its arguments, in order: s is sent from, r received into, b both; o is an
            operator, n a root, c counts.
        compared: fields that must be the same on all ranks, in addition to the method.
        at_root: the role of the buffer that only the root has.
        counts: ranks that have the counts of all blocks: ``all``, the ``root``, or ``none``.
        objects: what runs its lower-case form; empty if there is none.
        cached: True if the compiled executor can cache its calls.
    """

    collective: str
    roles: str
    compared: tuple[str, ...] = ()
    at_root: str = ""
    counts: str = "all"
    objects: str = ""
    cached: bool = True


_REDUCED = "operator", "count", "dtype"
#: Rows by the blocking method's name in lower case.
TABLE = {
    "barrier": Row("barrier", "", objects=HPCCOLL),
    "bcast": Row("bcast", "bn", ("count", "root"), objects=HPCCOLL),
    "reduce": Row("reduce", "sron", (*_REDUCED, "root"), "r", objects=HPCCOLL),
    "allreduce": Row("allreduce", "sro", _REDUCED, objects=HPCCOLL),
    "scan": Row("scan", "sro", _REDUCED, objects=HPCCOLL),
    "exscan": Row("exscan", "sro", _REDUCED, objects=HPCCOLL),
    "reduce_scatter_block": Row("reduce_scatter", "sro", _REDUCED),
    "reduce_scatter": Row("reduce_scatter", "srco", _REDUCED),
    "allgather": Row("allgather", "sr", ("count",), objects=MPI4PY),
    "allgatherv": Row("allgather", "sr", ("count",)),
    "gather": Row("gather", "srn", ("count", "root"), "r", objects=HPCCOLL),
    "gatherv": Row("gather", "srn", ("root",), "r", "root"),
    "scatter": Row("scatter", "srn", ("count", "root"), "s", objects=HPCCOLL),
    "scatterv": Row("scatter", "srn", ("root",), "s", "root"),
    "alltoall": Row("alltoall", "sr", ("count",), objects=MPI4PY),
    "alltoallv": Row("alltoall", "sr", counts="none"),
    "alltoallw": Row("alltoall", "sr", counts="none", cached=False)}
#: Method name in lower case -> name of its algorithms in the registry.
METHODS = {name: row.collective for name, row in TABLE.items()}
#: Methods whose counts only the root has.
COUNTS_AT_ROOT = tuple(name for name, row in TABLE.items() if row.counts == "root")
#: Methods whose counts no rank, or not every rank, has.
UNKNOWN_COUNTS = tuple(name for name, row in TABLE.items() if row.counts != "all")
