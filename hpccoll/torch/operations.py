"""Operations on tensors for a :class:`~hpccoll.torch.operation_queue.OperationLine`.

Before the transfer, ranks exchange 16 bytes: a hash of the call and the number of rows. On a
mismatch, which would hang or corrupt data, every rank raises an error with the calls of all ranks.
Operations without a reduction send bytes, whatever the dtype.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from typing import Any

import numpy
import torch
from mpi4py import MPI

from hpccoll import Comm
from hpccoll.errors import ArgumentError, ExchangeMismatch
from hpccoll.errors.agreement import Difference, hash_of_text
from hpccoll.torch.operation_queue import Operation
from hpccoll.torch.tensors import as_dense, memory, values

#: MPI operators, by name.
OPERATORS = {"sum": MPI.SUM, "min": MPI.MIN, "max": MPI.MAX, "product": MPI.PROD}


def agree(comm: Comm, said: str, rows: int = 0) -> Generator[Any, None, list[int]]:
    """Check that all ranks make the same call; return the number of rows of each.

    Raises:
        ExchangeMismatch: the calls differ.
    """
    digest = hash_of_text(said, 7)
    mine, all_ = numpy.array([digest, rows]), numpy.empty((comm.Get_size(), 2), int)
    yield comm.Iallgather(mine, all_)
    if (all_[:, 0] != all_[0, 0]).any():
        difference = Difference(0, tuple(comm.allgather(said)))
        raise ExchangeMismatch(
            f"ranks call different operations: {difference}; make the same calls in the same order "
            "on all ranks", tuple(dict.fromkeys(difference.values)), difference.ranks)
    return all_[:, 1].tolist()


def describe_tensor(tensor: torch.Tensor, name: str, first: int = 0, also: str = "") -> str:
    """Return a text of name, dtype and shape from one dimension on, for comparison."""
    shape = ", ".join(["any"] * min(first, tensor.dim())
                      + [str(extent) for extent in tensor.shape[first:]])
    return f"{name} of {str(tensor.dtype).removeprefix('torch.')}[{shape}]{also}"


def with_rows(tensor: torch.Tensor, rows: int) -> torch.Tensor:
    """Return a new tensor like this one with another first dimension."""
    return tensor.new_empty((rows, *tensor.shape[1:]))


def allgather(comm: Comm, tensor: torch.Tensor, name: str) -> Operation:
    """Gather the rows of all ranks in rank order, and the number of rows of each."""
    rows = yield from agree(comm, describe_tensor(tensor, name, 1), rows_of(tensor))
    check_rows(tensor, "allgather")
    result = with_rows(tensor, sum(rows))
    width = row_bytes(tensor)
    yield comm.Iallgatherv(as_bytes(tensor), [as_bytes(result), [width * each for each in rows]])
    return result, rows


def broadcast(comm: Comm, tensor: torch.Tensor, root: int, ranks: Sequence[int], name: str
              ) -> Operation:
    """Broadcast the root's tensor in place; ``ranks`` are those of the communicator."""
    yield from agree(comm, describe_tensor(tensor, name, 0, f" from rank {root}"))
    place = place_of(root, ranks)
    whole = as_dense(tensor)
    yield comm.Ibcast(as_bytes(whole), place)
    if whole.data_ptr() != tensor.data_ptr():
        tensor.detach().copy_(whole)
    return tensor


def alltoall(comm: Comm, tensor: torch.Tensor, splits: Sequence[int], name: str) -> Operation:
    """Send ``splits[r]`` rows to each rank r; return received rows and their numbers."""
    fits = (len(splits) == comm.Get_size() and sum(splits) == rows_of(tensor)
            and all(each >= 0 for each in splits))
    problem = f"{list(splits)} do not sum to {rows_of(tensor)} rows on {comm.Get_size()} ranks"
    # Errors are reported before the transfer; if all ranks have one, each raises its own.
    yield from agree(comm,
                     describe_tensor(tensor, name, 1, "" if fits else f", whose splits {problem}"))
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
    """Reduce the rows of all ranks and scatter ``rows[r]`` of them to rank r."""
    yield from agree(comm, describe_tensor(tensor, name, 0, f", {op}"))
    check_rows(tensor, "reducescatter")
    width = math.prod(tensor.shape[1:])
    result = with_rows(tensor, rows[comm.Get_rank()])
    yield comm.Ireduce_scatter(values(as_dense(tensor)), values(result),
                               [width * each for each in rows], OPERATORS[op])
    return result


def allreduce(comm: Comm, tensor: torch.Tensor, op: str, name: str) -> Operation:
    """Reduce a contiguous tensor over all ranks in place."""
    yield from agree(comm, describe_tensor(tensor, name, 0, f", {op}"))
    yield comm.Iallreduce(MPI.IN_PLACE, values(tensor), OPERATORS[op])
    return tensor


def called_alike(comm: Comm, said: str) -> Operation:
    """Check that all ranks make the same call."""
    yield from agree(comm, said)


def call(function: Callable[[], Any]) -> Operation:
    """Run a blocking call as an operation of the queue."""
    yield from ()
    return function()


def place_of(root: int, ranks: Sequence[int]) -> int:
    """Return the index of a global rank in ``ranks``.

    Raises:
        ArgumentError: the rank is not in ``ranks``.
    """
    if root not in ranks:
        raise ArgumentError("root_rank", f"{root} is not in the ranks {list(ranks)}")
    return ranks.index(root)


def even_rows(rows: int, size: int) -> list[int]:
    """Return the rows of each rank; the first ranks may have one extra row.

    >>> even_rows(7, 3)
    [3, 2, 2]
    """
    return [rows // size + (rank < rows % size) for rank in range(size)]


def check_rows(tensor: torch.Tensor, what: str) -> None:
    """Raise ArgumentError for a 0-d tensor."""
    if not tensor.dim():
        raise ArgumentError("tensor", f"{what} needs rows, but this tensor has no dimension",
                            "pass tensor.reshape(1)")


def rows_of(tensor: torch.Tensor) -> int:
    """Return the first dimension; 0 for a 0-d tensor."""
    return tensor.shape[0] if tensor.dim() else 0


def row_bytes(tensor: torch.Tensor) -> int:
    """Return the size of one row in bytes."""
    return math.prod(tensor.shape[1:]) * tensor.element_size()


def as_bytes(tensor: torch.Tensor) -> Any:
    """Return a flat byte array of a tensor's memory; a copy if it is not contiguous."""
    return memory(as_dense(tensor)).view("u1")
