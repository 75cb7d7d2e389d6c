"""Reduction operators as data: dependence on order, exactness, and types.

Properties of operators that algorithms use; no computation. The kernels are in
:mod:`hpccoll.arrays.kernels`.
"""

from __future__ import annotations

from typing import NamedTuple

#: NumPy kind letters: b bool, i signed, u unsigned, f floating, c complex.
INTEGERS, LOGICALS, ORDERED, NUMBERS = "iu", "iub", "iuf", "iufc"


class Operator(NamedTuple):
    """A predefined MPI reduction operator.

    Attributes:
        name: the MPI name without prefix, in lower case (``"sum"``).
        kinds: NumPy dtype kinds the operator is defined on (MPI 4.1, section 6.9.2).
        exact: kinds on which every order of evaluation gives the same bits.
        pairs: True if the operator works on (value, index) pairs.
    """

    name: str
    kinds: str
    exact: str
    pairs: bool = False

    def defined_on(self, kind: str) -> bool:
        """Return True if MPI defines this operator on elements of a NumPy dtype kind."""
        return kind in self.kinds

    def is_exact(self, kind: str) -> bool:
        """Return True if reassociation cannot change the result on this kind."""
        return kind in self.exact


#: All predefined operators of MPI that reduce; commutative and associative by definition.
OPERATORS = {op.name: op for op in (
    Operator("sum", NUMBERS, INTEGERS),
    Operator("prod", NUMBERS, INTEGERS),
    Operator("max", ORDERED, INTEGERS),
    Operator("min", ORDERED, INTEGERS),
    Operator("land", LOGICALS, LOGICALS),
    Operator("lor", LOGICALS, LOGICALS),
    Operator("lxor", LOGICALS, LOGICALS),
    Operator("band", INTEGERS, INTEGERS),
    Operator("bor", INTEGERS, INTEGERS),
    Operator("bxor", INTEGERS, INTEGERS),
    Operator("maxloc", "", "", pairs=True),
    Operator("minloc", "", "", pairs=True),
)}
