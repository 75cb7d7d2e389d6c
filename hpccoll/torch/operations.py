"""Operations on tensors as steps of a :class:`~hpccoll.torch.line.OperationLine`.

Before data moves, ranks tell each other in 16 bytes what they are about to do, and how many rows
each brings: what would hang, or mix up bytes, is an error on every rank that shows what each says.
Data that only moves does so as bytes, whatever the type of its elements.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Generator, Sequence
from typing import Any

import numpy
import torch
from mpi4py import MPI

from hpccoll import Comm
from hpccoll.errors import ArgumentError, ExchangeMismatch
from hpccoll.errors.waits import rank_list
from hpccoll.torch.line import Operation
from hpccoll.torch.tensors import dense, memory, values

#: Reductions that MPI has, by name.
OPERATORS = {"sum": MPI.SUM, "min": MPI.MIN, "max": MPI.MAX, "product": MPI.PROD}


def agree(comm: Comm, said: str, rows: int = 0) -> Generator[Any, None, list[int]]:
    """Check that all ranks say the same; the rows that each brings.

    Raises:
        ExchangeMismatch: they do not.
    """
    digest = int.from_bytes(hashlib.blake2b(said.encode(), digest_size=7).digest(), "little")
    mine, all_ = numpy.array([digest, rows]), numpy.empty((comm.Get_size(), 2), int)
    yield comm.Iallgather(mine, all_)
    if (all_[:, 0] != all_[0, 0]).any():
        raise mismatch(comm.allgather(said))
    return all_[:, 1].tolist()


def mismatch(said: Sequence[str]) -> ExchangeMismatch:
    """The error where ranks call different operations; ``said`` is what each does."""
    ranks: dict[str, list[int]] = {}
    for rank, each in enumerate(said):
        ranks.setdefault(each, []).append(rank)
    most = max(ranks, key=lambda each: len(ranks[each]))
    others = sorted(rank for each in ranks if each != most for rank in ranks[each])
    return ExchangeMismatch(
        "ranks call different operations: " + "; ".join(
            f"{rank_list(who)}: {each}" for each, who in ranks.items())
        + "; make the same calls in the same order on all ranks", tuple(ranks), tuple(others))


def described(tensor: torch.Tensor, name: str, first: int = 0, also: str = "") -> str:
    """What ranks must have in common: name, type, and the shape from one dimension on."""
    shape = ", ".join(["any"] * min(first, tensor.dim())
                      + [str(extent) for extent in tensor.shape[first:]])
    return f"{name} of {str(tensor.dtype).removeprefix('torch.')}[{shape}]{also}"


def with_rows(tensor: torch.Tensor, rows: int) -> torch.Tensor:
    """A new tensor like this one, with another first dimension."""
    return tensor.new_empty((rows, *tensor.shape[1:]))


def allgather(comm: Comm, tensor: torch.Tensor, name: str) -> Operation:
    """The rows of all ranks, one rank behind the other, and how many each has."""
    rows = yield from agree(comm, described(tensor, name, 1), rows_of(tensor))
    check_rows(tensor, "allgather")
    result = with_rows(tensor, sum(rows))
    width = row_bytes(tensor)
    yield comm.Iallgatherv(as_bytes(tensor), [as_bytes(result), [width * each for each in rows]])
    return result, rows


def broadcast(comm: Comm, tensor: torch.Tensor, root: int, ranks: Sequence[int], name: str
              ) -> Operation:
    """The root's values, in the tensor itself; ``ranks`` are those of the communicator."""
    yield from agree(comm, described(tensor, name, 0, f" from rank {root}"))
    place = place_of(root, ranks)
    whole = dense(tensor)
    yield comm.Ibcast(as_bytes(whole), place)
    if whole.data_ptr() != tensor.data_ptr():
        tensor.detach().copy_(whole)
    return tensor


def alltoall(comm: Comm, tensor: torch.Tensor, splits: Sequence[int], name: str) -> Operation:
    """Send ``splits[r]`` rows to each rank r; the rows that came, and how many from each."""
    fits = (len(splits) == comm.Get_size() and sum(splits) == rows_of(tensor)
            and all(each >= 0 for each in splits))
    problem = f"{list(splits)} do not sum to {rows_of(tensor)} rows on {comm.Get_size()} ranks"
    # Ranks hear of a mistake before data moves; where all make it, each raises its own error.
    yield from agree(comm, described(tensor, name, 1, "" if fits else f", whose splits {problem}"))
    check_rows(tensor, "alltoall")
    if not fits:
        raise ArgumentError("splits", problem)
    sending, coming = numpy.array(splits, int), numpy.empty(comm.Get_size(), int)
    yield comm.Ialltoall(sending, coming)
    result = with_rows(tensor, int(coming.sum()))
    width = row_bytes(tensor)
    yield comm.Ialltoallv([as_bytes(tensor), (sending * width).tolist()],
                          [as_bytes(result), (coming * width).tolist()])
    return result, coming.tolist()


def reduce_scatter(comm: Comm, tensor: torch.Tensor, op: str, rows: Sequence[int], name: str
                   ) -> Operation:
    """The reduction of all ranks' rows, of which rank r gets ``rows[r]``."""
    yield from agree(comm, described(tensor, name, 0, f", {op}"))
    check_rows(tensor, "reducescatter")
    width = math.prod(tensor.shape[1:])
    result = with_rows(tensor, rows[comm.Get_rank()])
    yield comm.Ireduce_scatter(values(dense(tensor)), values(result),
                               [width * each for each in rows], OPERATORS[op])
    return result


def allreduce(comm: Comm, tensor: torch.Tensor, op: str, name: str) -> Operation:
    """The reduction of all ranks' values, in the tensor itself, which is contiguous."""
    yield from agree(comm, described(tensor, name, 0, f", {op}"))
    yield comm.Iallreduce(MPI.IN_PLACE, values(tensor), OPERATORS[op])
    return tensor


def called_alike(comm: Comm, said: str) -> Operation:
    """Check that all ranks say the same."""
    yield from agree(comm, said)


def call(function: Callable[[], Any]) -> Operation:
    """A blocking call at its place in the line."""
    yield from ()
    return function()


def place_of(root: int, ranks: Sequence[int]) -> int:
    """Number of a global rank among some.

    Raises:
        ArgumentError: it is none of them.
    """
    if root not in ranks:
        raise ArgumentError("root_rank", f"{root} is not in the ranks {list(ranks)}")
    return ranks.index(root)


def even_rows(rows: int, size: int) -> list[int]:
    """Rows of each rank; the first ones have one more where they do not divide evenly.

    >>> even_rows(7, 3)
    [3, 2, 2]
    """
    return [rows // size + (rank < rows % size) for rank in range(size)]


def check_rows(tensor: torch.Tensor, what: str) -> None:
    """Raise unless a tensor has rows."""
    if not tensor.dim():
        raise ArgumentError("tensor", f"{what} needs rows, but this tensor has no dimension",
                            "pass tensor.reshape(1)")


def rows_of(tensor: torch.Tensor) -> int:
    """First dimension; 0 where there is none."""
    return tensor.shape[0] if tensor.dim() else 0


def row_bytes(tensor: torch.Tensor) -> int:
    """Bytes of one row."""
    return math.prod(tensor.shape[1:]) * tensor.element_size()


def as_bytes(tensor: torch.Tensor) -> Any:
    """A tensor's memory as a flat array of bytes; a copy of it where it is not contiguous."""
    return memory(dense(tensor)).view("u1")
