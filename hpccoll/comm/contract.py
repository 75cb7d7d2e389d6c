"""Contract: the comparison of the calls of all ranks, a row of ``CONTRACT`` per method.

It is made from the table of collectives. docs/api/contract.md is generated from it, and every row
has a test on real ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from hpccoll.ir.methods import BLOCKING, MPI4PY, NONBLOCKING, PERSISTENT, TABLE


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



def _rows() -> Iterator[tuple[str, ContractRow]]:
    """Give the rows of all forms; a nonblocking call has started when roots could be compared."""
    for form, how in ((BLOCKING, HASHED), (NONBLOCKING, BEGUN), (PERSISTENT, MADE)):
        for name, row in TABLE.items():
            yield form.format(name).capitalize(), ContractRow(how, tuple(
                field for field in row.compared if field != "root" or how is not BEGUN))
    for name, row in TABLE.items():
        if row.objects:  # objects have neither counts nor types
            how = LOGGED if row.objects == MPI4PY else FIRST if row.roles else HASHED
            yield name, ContractRow(how, tuple(
                field for field in row.compared if field in ("operator", "root")))


#: Rows by method.
CONTRACT = dict(_rows())
