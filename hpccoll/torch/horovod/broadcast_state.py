"""Horovod's reductions: in place (``_``), asynchronous (``_async``) and grouped.

Tensors are matched by name, so ranks may start reductions in any order. The blocking functions that
are not in place are differentiable. Signatures are those of ``horovod.torch`` (Sergeev and Del
Balso, arXiv 1802.05799).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from hpccoll.errors import ArgumentError
from hpccoll.torch.horovod import async_operations
from hpccoll.torch.horovod.async_operations import AVERAGE, SUM, Compression, Compressor, How, names
from hpccoll.torch.horovod.data_movement import allgather_async
from hpccoll.torch.horovod.derivatives import AllreduceFunction, ReduceScatterFunction
from hpccoll.torch.horovod.processes import ProcessSet, global_process_set
from hpccoll.torch.operation_queue import AsyncResult, join_results, then


def poll(handle: AsyncResult) -> bool:
    """Return True if an operation has completed; :func:`synchronize` then does not block."""
    return handle.done()


def synchronize(handle: AsyncResult) -> Any:
    """Wait for an operation; return its result or raise its error."""
    return handle.wait()


# -- allreduce --------------------------------------------------------------------------------
def allreduce(tensor: torch.Tensor, average: bool | None = None, name: str | None = None,
              compression: Compressor = Compression.none, op: str | None = None,
              prescale_factor: float = 1.0, postscale_factor: float = 1.0,
              process_set: ProcessSet = global_process_set) -> torch.Tensor:
    """Reduce a tensor over all ranks: ``postscale * op(prescale * tensor)``.

    Args:
        tensor: tensor of one shape and dtype on all ranks. Means of integers round towards zero.
        average: Horovod's deprecated form of ``op``: ``True`` for Average, ``False`` for Sum.
        name: name for matching between ranks; generated from a counter by default.
        compression: the wire dtype.
        op: ``Average`` (default), ``Sum``, ``Min``, ``Max``, ``Product`` or ``Adasum``.
        process_set: the ranks.

    Raises:
        ArgumentError: an unknown ``op``, or both ``op`` and ``average``; a sparse tensor.
        ExchangeMismatch: ranks differ in shape, dtype or ``op``; on all ranks.
    """
    return grouped_allreduce([tensor], average, name, compression, op, prescale_factor,
                             postscale_factor, process_set)[0]


def allreduce_(tensor: torch.Tensor, average: bool | None = None, name: str | None = None,
               op: str | None = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
               process_set: ProcessSet = global_process_set) -> torch.Tensor:
    """Replace a tensor by its reduction over all ranks; see :func:`allreduce`."""
    return allreduce_async_(tensor, average, name, op, prescale_factor, postscale_factor,
                            process_set).wait()


def allreduce_async(tensor: torch.Tensor, average: bool | None = None, name: str | None = None,
                    op: str | None = None, prescale_factor: float = 1.0,
                    postscale_factor: float = 1.0,
                    process_set: ProcessSet = global_process_set) -> AsyncResult:
    """Start :func:`allreduce`; the tensor may be modified immediately."""
    return allreduce_async_(_copy(tensor), average, name, op, prescale_factor, postscale_factor,
                            process_set)


def allreduce_async_(tensor: torch.Tensor, average: bool | None = None, name: str | None = None,
                     op: str | None = None, prescale_factor: float = 1.0,
                     postscale_factor: float = 1.0,
                     process_set: ProcessSet = global_process_set) -> AsyncResult:
    """Start :func:`allreduce_`; do not use the tensor before completion."""
    how = How.of(op, average, prescale_factor, postscale_factor)
    return async_operations.reduce(tensor, name, how, process_set)


def grouped_allreduce(tensors: Sequence[torch.Tensor], average: bool | None = None,
                      name: str | None = None, compression: Compressor = Compression.none,
                      op: str | None = None, prescale_factor: float = 1.0,
                      postscale_factor: float = 1.0,
                      process_set: ProcessSet = global_process_set) -> list[torch.Tensor]:
    """Reduce several tensors together; see :func:`allreduce`."""
    how = How.of(op, average, prescale_factor, postscale_factor)
    pairs = [compression.compress(tensor) for tensor in tensors]
    results = AllreduceFunction.apply(how, name, process_set, *(small for small, _ in pairs))
    return [compression.decompress(result, ctx) for result, (_, ctx) in zip(results, pairs)]


def grouped_allreduce_(tensors: Sequence[torch.Tensor], average: bool | None = None,
                       name: str | None = None, op: str | None = None,
                       prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                       process_set: ProcessSet = global_process_set) -> list[torch.Tensor]:
    """Replace tensors by their reductions over all ranks."""
    return grouped_allreduce_async_(tensors, average, name, op, prescale_factor,
                                    postscale_factor, process_set).wait()


def grouped_allreduce_async(tensors: Sequence[torch.Tensor], average: bool | None = None,
                            name: str | None = None, op: str | None = None,
                            prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                            process_set: ProcessSet = global_process_set) -> AsyncResult:
    """Start :func:`grouped_allreduce`; the tensors may be modified immediately."""
    return grouped_allreduce_async_([_copy(tensor) for tensor in tensors], average, name, op,
                                    prescale_factor, postscale_factor, process_set)


def grouped_allreduce_async_(tensors: Sequence[torch.Tensor], average: bool | None = None,
                             name: str | None = None, op: str | None = None,
                             prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                             process_set: ProcessSet = global_process_set) -> AsyncResult:
    """Start :func:`grouped_allreduce_`; do not use the tensors before completion."""
    how = How.of(op, average, prescale_factor, postscale_factor)
    return join_results([async_operations.reduce(tensor, each, how, process_set)
                         for tensor, each in zip(tensors, names(name, len(tensors)))])


def sparse_allreduce_async(tensor: torch.Tensor, name: str | None = None, op: str = AVERAGE,
                           process_set: ProcessSet = global_process_set) -> AsyncResult:
    """Start to sum sparse tensors: gathers indices and values of all ranks.

    Args:
        tensor: a sparse COO tensor of one shape on all ranks; numbers of values may differ.
        op: ``Average`` or ``Sum``.

    Raises:
        ArgumentError: another ``op``, or a tensor that is not sparse.
    """
    if op not in (AVERAGE, SUM):
        raise ArgumentError("op", f"sparse tensors do not support {op!r}; use Average or Sum")
    if tensor.layout is not torch.sparse_coo:
        raise ArgumentError("tensor", f"expected a sparse COO tensor, got {tensor.layout}")
    mine = tensor.detach().coalesce()
    # Transposed, so that an index is a row, and allgather concatenates rows.
    parts = {"indices": mine.indices().t().contiguous(), "values": mine.values()}
    gathered = join_results([allgather_async(part, name and f"{name}.{what}", process_set)
                             for what, part in parts.items()])

    def add_up(of_all: list[torch.Tensor]) -> torch.Tensor:
        indices, values = of_all
        if op == AVERAGE:
            values = values / process_set.size()
        return torch.sparse_coo_tensor(indices.t(), values, tensor.shape,
                                       check_invariants=False).coalesce()

    return then(gathered, add_up)


def join(device: int = -1) -> int:
    """Contribute zeros to reductions of the other ranks until all ranks have joined.

    Means are over all ranks. Meanwhile other ranks must not call ``allgather``, ``broadcast``,
    ``alltoall``, ``reducescatter`` or steps of ``DistributedOptimizer``. ``device`` is an argument
    of Horovod and ignored.

    Returns:
        The rank that joined last.
    """
    return global_process_set.exchange.join()


# -- reducescatter ----------------------------------------------------------------------------
def reducescatter(tensor: torch.Tensor, op: str | None = None, name: str | None = None,
                  compression: Compressor = Compression.none,
                  process_set: ProcessSet = global_process_set, prescale_factor: float = 1.0,
                  postscale_factor: float = 1.0) -> torch.Tensor:
    """Reduce a tensor over all ranks and scatter its rows.

    Rows are distributed in order; the first ranks get one extra row if they do not divide evenly.

    Raises:
        ArgumentError: a 0-d tensor, an unknown ``op``, or Adasum.
        ExchangeMismatch: ranks differ in shape, dtype or ``op``; on all ranks.
    """
    return grouped_reducescatter([tensor], op, name, compression, process_set, prescale_factor,
                                 postscale_factor)[0]


def reducescatter_async(tensor: torch.Tensor, op: str | None = None, name: str | None = None,
                        process_set: ProcessSet = global_process_set,
                        prescale_factor: float = 1.0, postscale_factor: float = 1.0) -> AsyncResult:
    """Start :func:`reducescatter`; the tensor may be modified immediately."""
    how = How.of(op, None, prescale_factor, postscale_factor)
    return async_operations.scatter(tensor, None, name, how, process_set)


def grouped_reducescatter(tensors: Sequence[torch.Tensor], op: str | None = None,
                          name: str | None = None, compression: Compressor = Compression.none,
                          process_set: ProcessSet = global_process_set,
                          prescale_factor: float = 1.0, postscale_factor: float = 1.0
                          ) -> list[torch.Tensor]:
    """Apply :func:`reducescatter` to several tensors."""
    how = How.of(op, None, prescale_factor, postscale_factor)
    pairs = [compression.compress(tensor) for tensor in tensors]
    results = ReduceScatterFunction.apply(how, name, process_set, None,
                                          *(small for small, _ in pairs))
    return [compression.decompress(result, ctx) for result, (_, ctx) in zip(results, pairs)]


def grouped_reducescatter_async(tensors: Sequence[torch.Tensor], op: str | None = None,
                                name: str | None = None,
                                process_set: ProcessSet = global_process_set,
                                prescale_factor: float = 1.0, postscale_factor: float = 1.0
                                ) -> AsyncResult:
    """Start :func:`grouped_reducescatter`."""
    return join_results([reducescatter_async(tensor, op, each, process_set, prescale_factor,
                                             postscale_factor)
                     for tensor, each in zip(tensors, names(name, len(tensors)))])


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.layout is not torch.strided:
        return tensor
    return tensor.detach().clone(memory_format=torch.contiguous_format)
