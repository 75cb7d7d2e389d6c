"""What every rank knows of a call: all that a choice may depend on.

Ranks choose without talking to each other, so they must choose by the same facts. Buffers,
addresses, whether a call is in place, and counts that only some ranks know are no facts.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy
from mpi4py import MPI

from hpccoll.arrays.half import is_bfloat16
from hpccoll.arrays.kernels import has_compiled_kernel, is_exact, operator_of
from hpccoll.calls.call import Call
from hpccoll.ir.operators import OPERATORS

#: Name of the operator where it is a user's.
USER = "user"
#: Methods whose counts only the root knows.
COUNTS_AT_ROOT = ("gatherv", "scatterv")
#: Methods of which no rank, or not every rank, knows all counts.
UNKNOWN_COUNTS = (*COUNTS_AT_ROOT, "alltoallv", "alltoallw")


class CallFacts(NamedTuple):
    """What every rank knows of a call, the same on all of them.

    Attributes:
        method: its name in lower case, e.g. ``allgatherv``.
        collective: what its algorithms are registered under, e.g. ``allgather``.
        nbytes: bytes of a vector, or of all blocks together; ``None`` where not all ranks know.
        uniform: all blocks have one size.
        root: root rank; 0 where there is none.
        operator: MPI's name of the operator, ``user`` for a user's; empty where nothing is reduced.
        commutes: contributions may be combined in any order.
        exact: results are not rounded, or nothing is reduced.
        dtype: type of the elements, where something is reduced.
        kind, itemsize: NumPy's kind of element, and bytes of one; where something is reduced.
        has_mpi_type: the MPI library can reduce such elements.
        whole: the operator may need whole vectors, such as a product of matrices.
    """

    method: str
    collective: str
    nbytes: int | None = 0
    uniform: bool = True
    root: int = 0
    operator: str = ""
    commutes: bool = True
    exact: bool = True
    dtype: numpy.dtype[Any] | None = None
    kind: str = ""
    itemsize: int = 0
    has_mpi_type: bool = True
    whole: bool = False

    @property
    def reduces(self) -> bool:
        """Tell whether the call combines contributions."""
        return bool(self.operator)

    @property
    def rounds(self) -> bool:
        """Tell whether the call combines numbers that may be NaN or infinite."""
        return self.reduces and self.kind in ("f", "c")

    @property
    def has_tape(self) -> bool:
        """Tell whether the compiled executor runs such calls, and recognises them."""
        return self.method not in UNKNOWN_COUNTS and (
            not self.operator or self.dtype is not None and has_compiled_kernel(
                self.operator, self.dtype))

    @property
    def reduces_by_calls(self) -> bool:
        """Tell whether every reduction is a call of MPI's ``Reduce_local``."""
        return self.reduces and (self.operator not in OPERATORS or OPERATORS[self.operator].pairs)

    @property
    def counts_at_root(self) -> bool:
        """Tell whether only the root knows all counts."""
        return self.method in COUNTS_AT_ROOT


def needs_whole_vector(op: MPI.Op) -> bool:
    """Return whether an operator may not be applied to a part of its operands.

    MPI allows any part. But both libraries hand a user's operator the whole vector, and programs
    rely on it: products of matrices, merges of sorted lists.
    """
    return operator_of(op) is None and not getattr(op, "elementwise", False)


def facts_of(call: Call) -> CallFacts:
    """The facts of a call that one rank has resolved."""
    op = call.op
    if op is None:
        return CallFacts(call.name, call.collective, call.nbytes, call.uniform, call.root)
    dtype, operator = call.dtype, operator_of(op)
    bfloat16 = is_bfloat16(dtype)
    return CallFacts(
        call.name, call.collective, call.nbytes, call.uniform, call.root,
        operator.name if operator else USER, bool(op.Is_commutative()), is_exact(op, dtype), dtype,
        "f" if bfloat16 else dtype.kind, dtype.itemsize, not bfloat16, needs_whole_vector(op))
