"""Facts of a call that every rank has: the only inputs of a choice.

Ranks choose without communication, so they must use the same facts. Buffers, addresses, in-place
use, and counts of single ranks are not facts.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy
from mpi4py import MPI

from hpccoll.arrays.half import is_bfloat16
from hpccoll.arrays.kernels import has_compiled_kernel, is_exact, operator_of
from hpccoll.calls.call import Call
from hpccoll.ir.methods import COUNTS_AT_ROOT, UNKNOWN_COUNTS
from hpccoll.ir.operators import OPERATORS

#: Name of all user-defined operators.
USER = "user"


class CallFacts(NamedTuple):
    """Facts of a call, the same on all ranks.

    Attributes:
        method: the method's name in lower case, for example ``allgatherv``.
        collective: the collective of its algorithms, for example ``allgather``.
        nbytes: bytes of a vector, or of all blocks together; ``None`` if not all ranks have it.
        uniform: True if all blocks have the same size.
        root: root rank; 0 without a root.
        operator: MPI's name of the operator, or ``user``; empty without a reduction.
        commutes: True if contributions may be combined in any order.
        exact: True if results are not rounded, or nothing is reduced.
        dtype: type of the elements of a reduction.
        kind, itemsize: NumPy's kind and bytes of an element of a reduction.
        has_mpi_type: True if the MPI library can reduce such elements.
        whole: True if the operator may need whole vectors, such as a product of matrices.
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
        """True if the call combines contributions."""
        return bool(self.operator)

    @property
    def rounds(self) -> bool:
        """True if the call combines numbers that may be NaN or infinite."""
        return self.reduces and self.kind in ("f", "c")

    @property
    def has_plan(self) -> bool:
        """True if the compiled executor runs and caches such calls."""
        return self.method not in UNKNOWN_COUNTS and (
            not self.operator or self.dtype is not None and has_compiled_kernel(
                self.operator, self.dtype))

    @property
    def reduces_by_calls(self) -> bool:
        """True if every reduction is a call of MPI's ``Reduce_local``."""
        return self.reduces and (self.operator not in OPERATORS or OPERATORS[self.operator].pairs)

    @property
    def counts_at_root(self) -> bool:
        """True if only the root has all counts."""
        return self.method in COUNTS_AT_ROOT


def needs_whole_vector(op: MPI.Op) -> bool:
    """Return True if an operator must not be applied to a part of its operands.

    MPI allows any part. But both libraries pass the whole vector to a user's operator, and programs
    depend on it: products of matrices, merges of sorted lists.
    """
    return operator_of(op) is None and not getattr(op, "elementwise", False)


def facts_of(call: Call) -> CallFacts:
    """Return the facts of a resolved call."""
    op = call.op
    if op is None:
        return CallFacts(call.name, call.collective, call.nbytes, call.uniform, call.root)
    dtype, operator = call.dtype, operator_of(op)
    bfloat16 = is_bfloat16(dtype)
    return CallFacts(
        call.name, call.collective, call.nbytes, call.uniform, call.root,
        operator.name if operator else USER, bool(op.Is_commutative()), is_exact(op, dtype), dtype,
        "f" if bfloat16 else dtype.kind, dtype.itemsize, not bfloat16, needs_whole_vector(op))
