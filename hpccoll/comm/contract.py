"""Contract: the comparison of the calls of all ranks, a row of ``CONTRACT`` per method.

docs/api/contract.md is generated from this table, and every row has a test on real ranks.
"""

from __future__ import annotations

from typing import NamedTuple


class ContractCheck(NamedTuple):
    """Comparison of the calls of all ranks, at the default level.

    Attributes:
        ours: for calls that hpccoll runs; empty if it never does.
        native: for calls of the MPI library or mpi4py; empty if they never run them.
    """

    ours: str
    native: str


class ContractRow(NamedTuple):
    """Row of the table.

    Attributes:
        how: the comparison of the calls of this method.
        fields: fields that must be the same on all ranks, in addition to the collective.
    """

    how: ContractCheck
    fields: tuple[str, ...] = ()


_LOGS = "after the call, in the logs; immediately if a rank waits in a call of hpccoll"
HASHED = ContractCheck("the messages have a call hash", _LOGS)
BEGUN = ContractCheck("the messages have a call hash; a rank without messages in the call detects "
                      "nothing before HPCCOLL_TIMEOUT", _LOGS)
MADE = ContractCheck("when it is created", "when it is created")
FIRST = ContractCheck("the first message has the sequence number and call hash", "")
LOGGED = ContractCheck("", _LOGS)

_REDUCED = "operator", "count", "dtype"
_ROOTED = (*_REDUCED, "root")
#: Rows by method.
CONTRACT = {
    "Barrier": ContractRow(HASHED),
    "Bcast": ContractRow(HASHED, ("count", "root")),
    "Reduce": ContractRow(HASHED, _ROOTED),
    "Allreduce": ContractRow(HASHED, _REDUCED),
    "Scan": ContractRow(HASHED, _REDUCED),
    "Exscan": ContractRow(HASHED, _REDUCED),
    "Reduce_scatter_block": ContractRow(HASHED, _REDUCED),
    "Reduce_scatter": ContractRow(HASHED, _REDUCED),
    "Allgather": ContractRow(HASHED, ("count",)),
    "Allgatherv": ContractRow(HASHED, ("count",)),
    "Gather": ContractRow(HASHED, ("count", "root")),
    "Gatherv": ContractRow(HASHED, ("root",)),
    "Scatter": ContractRow(HASHED, ("count", "root")),
    "Scatterv": ContractRow(HASHED, ("root",)),
    "Alltoall": ContractRow(HASHED, ("count",)),
    "Alltoallv": ContractRow(HASHED),
    "Alltoallw": ContractRow(HASHED),
    "Ibarrier": ContractRow(BEGUN),
    "Ibcast": ContractRow(BEGUN, ("count",)),
    "Ireduce": ContractRow(BEGUN, _REDUCED),
    "Iallreduce": ContractRow(BEGUN, _REDUCED),
    "Iscan": ContractRow(BEGUN, _REDUCED),
    "Iexscan": ContractRow(BEGUN, _REDUCED),
    "Ireduce_scatter_block": ContractRow(BEGUN, _REDUCED),
    "Ireduce_scatter": ContractRow(BEGUN, _REDUCED),
    "Iallgather": ContractRow(BEGUN, ("count",)),
    "Iallgatherv": ContractRow(BEGUN, ("count",)),
    "Igather": ContractRow(BEGUN, ("count",)),
    "Igatherv": ContractRow(BEGUN),
    "Iscatter": ContractRow(BEGUN, ("count",)),
    "Iscatterv": ContractRow(BEGUN),
    "Ialltoall": ContractRow(BEGUN, ("count",)),
    "Ialltoallv": ContractRow(BEGUN),
    "Ialltoallw": ContractRow(BEGUN),
    "Barrier_init": ContractRow(MADE),
    "Bcast_init": ContractRow(MADE, ("count", "root")),
    "Reduce_init": ContractRow(MADE, _ROOTED),
    "Allreduce_init": ContractRow(MADE, _REDUCED),
    "Scan_init": ContractRow(MADE, _REDUCED),
    "Exscan_init": ContractRow(MADE, _REDUCED),
    "Reduce_scatter_block_init": ContractRow(MADE, _REDUCED),
    "Reduce_scatter_init": ContractRow(MADE, _REDUCED),
    "Allgather_init": ContractRow(MADE, ("count",)),
    "Allgatherv_init": ContractRow(MADE, ("count",)),
    "Gather_init": ContractRow(MADE, ("count", "root")),
    "Gatherv_init": ContractRow(MADE, ("root",)),
    "Scatter_init": ContractRow(MADE, ("count", "root")),
    "Scatterv_init": ContractRow(MADE, ("root",)),
    "Alltoall_init": ContractRow(MADE, ("count",)),
    "Alltoallv_init": ContractRow(MADE),
    "Alltoallw_init": ContractRow(MADE),
    "barrier": ContractRow(HASHED),
    "bcast": ContractRow(FIRST, ("root",)),
    "reduce": ContractRow(FIRST, ("operator", "root")),
    "allreduce": ContractRow(FIRST, ("operator",)),
    "scan": ContractRow(FIRST, ("operator",)),
    "exscan": ContractRow(FIRST, ("operator",)),
    "gather": ContractRow(FIRST, ("root",)),
    "scatter": ContractRow(FIRST, ("root",)),
    "allgather": ContractRow(LOGGED),
    "alltoall": ContractRow(LOGGED),
}
