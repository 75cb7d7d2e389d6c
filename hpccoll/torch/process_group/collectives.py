"""Collectives of ``torch.distributed`` as calls of a communicator.

Each function runs to completion on the calling thread. Tensors may be views, non-contiguous, or
empty. Results are rounded as by the communicator; averages whose sum may not fit are computed in a
wider type and rounded once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy
import torch
from mpi4py import MPI

from hpccoll import Comm
from hpccoll.errors import ArgumentError
from hpccoll.torch.process_group.operators import TorchOperator
from hpccoll.torch.tensors import as_dense, concatenate, memory, overlap, split_back, values

Tensors = Sequence[torch.Tensor]
#: Most elements of a call: MPI libraries before version 4, as Open MPI 5, count in C integers.
MOST_ELEMENTS = (1 << 31) - 1


def allreduce(comm: Comm, tensor: torch.Tensor, operator: TorchOperator) -> None:
    """Reduce the tensors of all ranks on every rank, in place."""
    whole = operator.widen(as_dense(tensor))
    operator.scale_input(whole)
    comm.Allreduce(MPI.IN_PLACE, values(whole), operator.mpi)
    operator.scale_result(whole, comm.size)
    _store(whole, tensor)


def allreduce_coalesced(comm: Comm, tensors: Tensors, operators: Sequence[TorchOperator]) -> None:
    """Reduce several tensors in place, with one allreduce for each dtype."""
    kinds = {tensor.dtype: operator for tensor, operator in zip(tensors, operators, strict=True)}
    for dtype, operator in kinds.items():
        same = [tensor for tensor in tensors if tensor.dtype is dtype]
        flat = concatenate([as_dense(tensor) for tensor in same])
        allreduce(comm, flat, operator)
        split_back(flat, [tensor.detach() for tensor in same])


def reduce(comm: Comm, tensor: torch.Tensor, operator: TorchOperator, root: int) -> None:
    """Reduce the tensors of all ranks at the root, in place; others are not changed."""
    whole = operator.widen(as_dense(tensor))
    if comm.rank != root:
        if operator.factor is not None:
            whole = whole.clone()
            operator.scale_input(whole)
        comm.Reduce(values(whole), None, operator.mpi, root)
        return
    operator.scale_input(whole)
    comm.Reduce(MPI.IN_PLACE, values(whole), operator.mpi, root)
    operator.scale_result(whole, comm.size)
    _store(whole, tensor)


def broadcast(comm: Comm, tensor: torch.Tensor, root: int) -> None:
    """Broadcast the root's tensor in place."""
    whole = as_dense(tensor)
    _broadcast(comm, memory(whole), root)
    if comm.rank != root:
        _store(whole, tensor)


def all_gather_single(comm: Comm, output: torch.Tensor, source: torch.Tensor) -> None:
    """Gather equal tensors into one; ``source`` may be this rank's part of it.

    Raises:
        ArgumentError: the size of the output is not that of all inputs.
    """
    if output.numel() != comm.size * source.numel() or output.dtype is not source.dtype:
        raise ArgumentError("output", f"has {output.numel()} elements of {output.dtype}, expected "
                                      f"{comm.size} times {source.numel()} of {source.dtype}")
    whole, mine = as_dense(output), as_dense(source)
    given: Any = memory(mine)
    if overlap(whole, mine):
        # FSDP gathers in place.
        own = whole.data_ptr() + comm.rank * mine.nbytes == mine.data_ptr()
        given = MPI.IN_PLACE if own else given.copy()
    _allgather(comm, given, memory(whole))
    _store(whole, output)


def all_gather(comm: Comm, outputs: Tensors, source: torch.Tensor) -> None:
    """Gather tensors of any sizes; every rank has outputs of all sizes.

    Raises:
        ArgumentError: the list has a wrong number of tensors, or a wrong one for this rank.
    """
    _check_list("tensor_list", outputs, comm.size)
    _check_alike("tensor_list", outputs[comm.rank:comm.rank + 1], source)
    whole = concatenate([as_dense(output) for output in outputs], fill=False)
    counts = [output.nbytes for output in outputs]
    mine = as_dense(source)
    given = memory(mine).copy() if overlap(whole, mine) else memory(mine)
    if len(set(counts)) == 1:
        _allgather(comm, given, memory(whole))
    else:
        comm.Allgatherv(_octets(mine, given), [_octets(whole), counts])
    split_back(whole, [output.detach() for output in outputs])


def gather(comm: Comm, outputs: Tensors, source: torch.Tensor, root: int) -> None:
    """Gather equal tensors at the root.

    Raises:
        ArgumentError: the list has a wrong number of tensors, or tensors unlike this rank's.
    """
    mine = memory(as_dense(source))
    if comm.rank != root:
        comm.Gather(mine, None, root)
        return
    _check_list("gather_list", outputs, comm.size)
    _check_alike("gather_list", outputs, source)
    whole = concatenate([as_dense(output) for output in outputs], fill=False)
    if overlap(whole, as_dense(source)):
        mine = mine.copy()
    comm.Gather(mine, memory(whole), root)
    split_back(whole, [output.detach() for output in outputs])


def scatter(comm: Comm, output: torch.Tensor, sources: Tensors, root: int) -> None:
    """Scatter equal tensors from the root.

    Raises:
        ArgumentError: the list has a wrong number of tensors, or tensors unlike the output.
    """
    whole = as_dense(output)
    mine: Any = memory(whole)
    if comm.rank != root:
        comm.Scatter(None, mine, root)
    else:
        _check_list("scatter_list", sources, comm.size)
        _check_alike("scatter_list", sources, output)
        flat = concatenate([as_dense(source) for source in sources])
        comm.Scatter(memory(flat.clone() if overlap(flat, whole) else flat), mine, root)
    _store(whole, output)


def reduce_scatter_single(comm: Comm, output: torch.Tensor, source: torch.Tensor,
                          operator: TorchOperator) -> None:
    """Reduce the tensors of all ranks, and scatter equal parts.

    Raises:
        ArgumentError: the size of the input is not that of all outputs.
    """
    if source.numel() != comm.size * output.numel() or output.dtype is not source.dtype:
        raise ArgumentError("input", f"has {source.numel()} elements of {source.dtype}, expected "
                                     f"{comm.size} times {output.numel()} of {output.dtype}")
    whole, mine = operator.widen(as_dense(output)), operator.widen(as_dense(source))
    if operator.factor is not None or overlap(whole, mine):
        mine = mine.clone()
        operator.scale_input(mine)
    comm.Reduce_scatter_block(values(mine), values(whole), operator.mpi)
    operator.scale_result(whole, comm.size)
    _store(whole, output)


def reduce_scatter(comm: Comm, output: torch.Tensor, sources: Tensors, operator: TorchOperator
                   ) -> None:
    """Reduce a list of tensors of any sizes, and scatter one to each rank.

    Raises:
        ArgumentError: the list has a wrong number of tensors, or a wrong one for this rank.
    """
    _check_list("input_list", sources, comm.size)
    _check_alike("input_list", sources[comm.rank:comm.rank + 1], output)
    flat = concatenate([as_dense(source) for source in sources])
    counts = [source.numel() for source in sources]
    if len(set(counts)) == 1:
        reduce_scatter_single(comm, output, flat, operator)
        return
    whole, flat = operator.widen(as_dense(output)), operator.widen(flat)
    if operator.factor is not None or overlap(whole, flat):
        flat = flat.clone()
        operator.scale_input(flat)
    comm.Reduce_scatter(values(flat), values(whole), counts, operator.mpi)
    operator.scale_result(whole, comm.size)
    _store(whole, output)


def all_to_all_single(comm: Comm, output: torch.Tensor, source: torch.Tensor,
                      output_splits: Sequence[int], input_splits: Sequence[int]) -> None:
    """Send a part of a tensor to each rank: equal parts, or rows by ``splits``.

    Raises:
        ArgumentError: the splits do not match the rows.
    """
    whole, mine = as_dense(output), as_dense(source)
    if overlap(whole, mine):
        mine = mine.clone()
    even = not output_splits and not input_splits and output.numel() == source.numel()
    sent = _bytes(mine, input_splits, comm.size, "input")
    got = _bytes(whole, output_splits, comm.size, "output")
    if whole.is_cpu:
        # Ranks with lists and ranks without make one call; Alltoall takes half as long.
        uneven = numpy.array([not even], "i1")
        comm.Allreduce(MPI.IN_PLACE, uneven, MPI.MAX)
        even = not uneven[0]
    if even and whole.is_cpu:
        comm.Alltoall(memory(mine), memory(whole))
    else:
        comm.Alltoallv([_octets(mine), sent], [_octets(whole), got])
    _store(whole, output)


def all_to_all(comm: Comm, outputs: Tensors, sources: Tensors) -> None:
    """Send one tensor of any size to each rank.

    Raises:
        ArgumentError: a list has a wrong number of tensors.
    """
    _check_list("input_tensor_list", sources, comm.size)
    _check_list("output_tensor_list", outputs, comm.size)
    flat = concatenate([as_dense(source) for source in sources])
    whole = concatenate([as_dense(output) for output in outputs], fill=False)
    if overlap(flat, whole):
        flat = flat.clone()
    sent, got = ([tensor.nbytes for tensor in tensors] for tensors in (sources, outputs))
    comm.Alltoallv([_octets(flat), sent], [_octets(whole), got])
    split_back(whole, [output.detach() for output in outputs])


def _broadcast(comm: Comm, array: Any, root: int) -> None:
    """Broadcast a flat array, in pieces if it has too many elements for one call."""
    if array.size <= MOST_ELEMENTS:
        comm.Bcast(array, root)
        return
    for start in range(0, array.size, MOST_ELEMENTS):
        comm.Bcast(array[start:start + MOST_ELEMENTS], root)


def _allgather(comm: Comm, given: Any, whole: Any) -> None:
    """Gather equal flat arrays, as broadcasts if they have too many elements for one call."""
    count = whole.size // comm.size
    if count <= MOST_ELEMENTS:
        comm.Allgather(given, whole)
        return
    if given is not MPI.IN_PLACE:
        whole[comm.rank * count:(comm.rank + 1) * count] = given
    for rank in range(comm.size):
        _broadcast(comm, whole[rank * count:(rank + 1) * count], rank)


def _check_list(argument: str, tensors: Tensors, size: int) -> None:
    if len(tensors) != size:
        raise ArgumentError(argument, f"has {len(tensors)} tensors for {size} ranks")


def _check_alike(argument: str, tensors: Tensors, one: torch.Tensor) -> None:
    """Check that the tensors of a list have the shape and dtype of another tensor."""
    for each in tensors:
        if each.shape != one.shape or each.dtype is not one.dtype:
            raise ArgumentError(
                argument, f"has a tensor of {each.dtype} {tuple(each.shape)}, expected {one.dtype} "
                          f"{tuple(one.shape)}", "pass tensors of the same shape and type")


def _store(whole: torch.Tensor, tensor: torch.Tensor) -> None:
    """Copy a result to its tensor, unless they share memory."""
    if whole is not tensor and (whole.data_ptr() != tensor.data_ptr()
                                or not tensor.is_contiguous()):
        tensor.detach().copy_(whole)


def _octets(tensor: torch.Tensor, array: Any = None) -> Any:
    """Return the memory of a dense tensor as bytes."""
    return (memory(tensor) if array is None else array).view("u1")


def _bytes(tensor: torch.Tensor, splits: Sequence[int], size: int, argument: str) -> list[int]:
    """Return the sizes of all ranks' rows in bytes."""
    rows = len(tensor)
    if not splits:
        if rows % size:
            raise ArgumentError(argument, f"has {rows} rows, expected a multiple of {size}",
                                f"pass {argument}_split_sizes")
        splits = [rows // size] * size
    if len(splits) != size or sum(splits) != rows or min(splits) < 0:
        raise ArgumentError(f"{argument}_split_sizes", f"{list(splits)} are not {size} counts that "
                                                       f"sum to {rows} rows")
    row = tensor.nbytes // rows if rows else 0
    return [row * split for split in splits]
