"""Operators: what ``torch.distributed.ReduceOp`` means to MPI, before and after the call."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from mpi4py import MPI
from torch.distributed import ReduceOp

from hpccoll.errors import ArgumentTypeError


class TorchOperator(NamedTuple):
    """A reduction.

    Attributes:
        mpi: what MPI combines with.
        factor: what every rank's values are multiplied with before; ``None`` for nothing.
        mean: the result is divided by the number of ranks.
    """

    mpi: MPI.Op
    factor: float | torch.Tensor | None = None
    mean: bool = False

    def before(self, values: torch.Tensor) -> None:
        """Prepare one rank's contribution, in place."""
        if self.factor is not None:
            values.mul_(self.factor)

    def after(self, values: torch.Tensor, size: int) -> None:
        """Finish the result of ``size`` ranks, in place."""
        if self.mean:
            whole = not (values.is_floating_point() or values.is_complex())
            values.div_(size, rounding_mode="trunc" if whole else None)


#: By the ``hash`` of an operator, its number: ``ReduceOp.SUM`` and the operator in the options of a
#: call are of different types, which are equal and yet not found in place of each other.
NUMBERS = {name: hash(getattr(ReduceOp, name)) for name in (
    "SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM")}
NAMES = {number: name for name, number in NUMBERS.items()}
OPERATORS = {NUMBERS[name]: operator for name, operator in {
    "SUM": TorchOperator(MPI.SUM), "AVG": TorchOperator(MPI.SUM, mean=True),
    "PRODUCT": TorchOperator(MPI.PROD),
    "MIN": TorchOperator(MPI.MIN), "MAX": TorchOperator(MPI.MAX), "BAND": TorchOperator(MPI.BAND),
    "BOR": TorchOperator(MPI.BOR), "BXOR": TorchOperator(MPI.BXOR)}.items()}
#: Truth values: a sum is true where any term is, a product where all factors are.
LOGICAL = {NUMBERS[name]: TorchOperator(op) for name, op in {
    "SUM": MPI.LOR, "PRODUCT": MPI.LAND, "MIN": MPI.LAND, "MAX": MPI.LOR, "BAND": MPI.LAND,
    "BOR": MPI.LOR, "BXOR": MPI.LXOR}.items()}
BITWISE = NUMBERS["BAND"], NUMBERS["BOR"], NUMBERS["BXOR"]
ORDERED = NUMBERS["MIN"], NUMBERS["MAX"]


def operator_of(reduce_op: Any, dtype: torch.dtype) -> TorchOperator:
    """The operator that combines tensors of a type.

    Raises:
        ArgumentTypeError: it makes no sense for the type.
    """
    number = hash(reduce_op)
    if dtype is torch.bool:
        operator = LOGICAL.get(number)
    elif (number in BITWISE and (dtype.is_floating_point or dtype.is_complex)
          or number in ORDERED and dtype.is_complex):
        operator = None
    elif number == NUMBERS["PREMUL_SUM"]:
        operator = TorchOperator(MPI.SUM, reduce_op.__getstate__()[1])
    else:
        operator = OPERATORS.get(number)
    if operator is None:
        raise ArgumentTypeError("op", f"ReduceOp.{NAMES.get(number, number)} is not defined on "
                                      f"{dtype}")
    return operator
