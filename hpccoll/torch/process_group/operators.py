"""Arguments of a process group's methods: torch's operators, and its options or their short forms.

``torch.distributed`` passes options. Hooks and programs that call the group directly may omit them,
pass only the operator or root, and pass one tensor instead of a list of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

import torch
from mpi4py import MPI
from torch.distributed import ReduceOp
from torch.distributed import distributed_c10d as c10d

from hpccoll.errors import ArgumentTypeError

OneOrMore: TypeAlias = torch.Tensor | Sequence[torch.Tensor]
Options = TypeVar("Options")
#: Fields of options by the names of arguments.
FIELDS = {"op": "reduceOp", "root": "rootRank", "timeout": "timeout"}
#: Arguments that may be passed instead of options, in order.
ARGUMENTS: dict[Any, tuple[str, ...]] = {
    c10d.AllreduceOptions: ("op", "timeout"), c10d.AllreduceCoalescedOptions: ("op", "timeout"),
    c10d.BroadcastOptions: ("root", "timeout"), c10d.ReduceOptions: ("root", "op", "timeout"),
    c10d.GatherOptions: ("root", "timeout"), c10d.ScatterOptions: ("root", "timeout"),
    c10d.ReduceScatterOptions: ("op", "timeout"), c10d.AllgatherOptions: ("timeout",),
    c10d.AllToAllOptions: ("timeout",), c10d.BarrierOptions: ("timeout",)}
#: Types in which averages are computed if the sum may not fit: of float16, and of integers.
WIDER = {torch.float16: torch.float32, torch.int8: torch.int32, torch.uint8: torch.int32,
         torch.int16: torch.int32, torch.int32: torch.int64}


class TorchOperator(NamedTuple):
    """MPI operator and scaling of a reduction.

    Attributes:
        mpi: the MPI operator.
        factor: factor of each rank's values before the reduction; ``None`` for none.
        mean: True to divide the result by the number of ranks.
    """

    mpi: MPI.Op
    factor: float | torch.Tensor | None = None
    mean: bool = False

    def widen(self, values: torch.Tensor) -> torch.Tensor:
        """Return the values in the type in which they are reduced: a copy if that is another."""
        return values.to(WIDER.get(values.dtype, values.dtype)) if self.mean else values

    def scale_input(self, values: torch.Tensor) -> None:
        """Scale this rank's input in place."""
        if self.factor is not None:
            values.mul_(self.factor)

    def scale_result(self, values: torch.Tensor, size: int) -> None:
        """Scale the result of ``size`` ranks in place."""
        if self.mean:
            whole = not (values.is_floating_point() or values.is_complex())
            values.div_(size, rounding_mode="trunc" if whole else None)


#: Operators by ``hash``, which is their number: ``ReduceOp.SUM`` and the operator in a call's
#: options are equal but of different types, so neither is found as a key for the other.
NUMBERS = {name: hash(getattr(ReduceOp, name)) for name in (
    "SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM")}
NAMES = {number: name for name, number in NUMBERS.items()}
OPERATORS = {NUMBERS[name]: operator for name, operator in {
    "SUM": TorchOperator(MPI.SUM), "AVG": TorchOperator(MPI.SUM, mean=True),
    "PRODUCT": TorchOperator(MPI.PROD),
    "MIN": TorchOperator(MPI.MIN), "MAX": TorchOperator(MPI.MAX), "BAND": TorchOperator(MPI.BAND),
    "BOR": TorchOperator(MPI.BOR), "BXOR": TorchOperator(MPI.BXOR)}.items()}
#: For Booleans, a sum is a logical or, and a product a logical and.
LOGICAL = {NUMBERS[name]: TorchOperator(op) for name, op in {
    "SUM": MPI.LOR, "PRODUCT": MPI.LAND, "MIN": MPI.LAND, "MAX": MPI.LOR, "BAND": MPI.LAND,
    "BOR": MPI.LOR, "BXOR": MPI.LXOR}.items()}
BITWISE = NUMBERS["BAND"], NUMBERS["BOR"], NUMBERS["BXOR"]
ORDERED = NUMBERS["MIN"], NUMBERS["MAX"]


def operator_of(reduce_op: Any, dtype: torch.dtype) -> TorchOperator:
    """Return the operator for tensors of a dtype.

    Raises:
        ArgumentTypeError: the operator is not defined for the dtype.
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


def options_of(kind: type[Options], *given: Any, **named: Any) -> Options:
    """Return the options of a call.

    Args:
        kind: class of the options.
        given: options, or arguments of :data:`ARGUMENTS`.
        named: the same as keywords, or ``opts``.

    Raises:
        TypeError: unknown argument.
    """
    options = named.pop("opts", None)
    if given and isinstance(given[0], kind):
        options, given = given[0], given[1:]
    if options is None:
        options = kind()
    names = ARGUMENTS[kind]
    if len(given) > len(names) or not named.keys() <= set(names):
        raise TypeError(f"expected {kind.__name__}, or {', '.join(names)}; got {given} {named}")
    for name, value in (*zip(names, given), *named.items()):
        setattr(options, FIELDS[name], value)
    return options


def as_list(tensors: OneOrMore) -> Sequence[torch.Tensor]:
    """Return a list of tensors for a list or a single tensor."""
    return [tensors] if isinstance(tensors, torch.Tensor) else tensors


def one_list(lists: Sequence[OneOrMore]) -> Sequence[torch.Tensor]:
    """Return the only list of a list of lists, or a plain list; empty without one."""
    return as_list(lists[0]) if lists and not isinstance(lists[0], torch.Tensor) else lists
