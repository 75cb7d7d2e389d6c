"""Reductions of tensors by Horovod's names: in place (``_``), with handles (``_async``), in groups.

Ranks find each other's tensors by their names, so they may begin reductions in any order.
Derivatives go through the forms that wait and are not in place. Signatures: those of
``horovod.torch`` (Sergeev and Del Balso, arXiv 1802.05799).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from hpccoll.errors import ArgumentError
from hpccoll.torch.horovod import begin
from hpccoll.torch.horovod.begin import AVERAGE, SUM, How, names
from hpccoll.torch.horovod.compression import Compression, Compressor
from hpccoll.torch.horovod.derivatives import AllreduceFunction, ReduceScatterFunction
from hpccoll.torch.horovod.moves import allgather_async
from hpccoll.torch.horovod.processes import ProcessSet, global_process_set
from hpccoll.torch.line import AsyncResult, then, together


def poll(handle: AsyncResult) -> bool:
    """Tell whether an operation is over, so that :func:`synchronize` will not wait."""
    return handle.done()


def synchronize(handle: AsyncResult) -> Any:
    """Wait for an operation and return its result, or raise what went wrong."""
    return handle.wait()


# -- allreduce --------------------------------------------------------------------------------
def allreduce(tensor: torch.Tensor, average: bool | None = None, name: str | None = None,
              compression: Compressor = Compression.none, op: str | None = None,
              prescale_factor: float = 1.0, postscale_factor: float = 1.0,
              process_set: ProcessSet = global_process_set) -> torch.Tensor:
    """The reduction of a tensor over all ranks: ``postscale * op(prescale * tensor)``.

    Args:
        tensor: of one shape and type on all ranks. Means of integers are cut towards zero.
        average: Horovod's old word for ``op``: ``True`` for Average, ``False`` for Sum.
        name: by which ranks find each other's tensors; made from a count by default.
        compression: the type that travels.
        op: ``Average`` (default), ``Sum``, ``Min``, ``Max``, ``Product`` or ``Adasum``.
        process_set: the ranks.

    Raises:
        ArgumentError: an unknown ``op``, or both ``op`` and ``average``; a sparse tensor.
        ExchangeMismatch: ranks differ in shape, type or ``op``; on all of them.
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
    """Begin :func:`allreduce`; the tensor may be changed at once."""
    return allreduce_async_(_copy(tensor), average, name, op, prescale_factor, postscale_factor,
                            process_set)


def allreduce_async_(tensor: torch.Tensor, average: bool | None = None, name: str | None = None,
                     op: str | None = None, prescale_factor: float = 1.0,
                     postscale_factor: float = 1.0,
                     process_set: ProcessSet = global_process_set) -> AsyncResult:
    """Begin :func:`allreduce_`; the tensor is not to be used before it is over."""
    how = How.of(op, average, prescale_factor, postscale_factor)
    return begin.reduce(tensor, name, how, process_set)


def grouped_allreduce(tensors: Sequence[torch.Tensor], average: bool | None = None,
                      name: str | None = None, compression: Compressor = Compression.none,
                      op: str | None = None, prescale_factor: float = 1.0,
                      postscale_factor: float = 1.0,
                      process_set: ProcessSet = global_process_set) -> list[torch.Tensor]:
    """The reductions of several tensors, under way together; see :func:`allreduce`."""
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
    """Begin :func:`grouped_allreduce`; the tensors may be changed at once."""
    return grouped_allreduce_async_([_copy(tensor) for tensor in tensors], average, name, op,
                                    prescale_factor, postscale_factor, process_set)


def grouped_allreduce_async_(tensors: Sequence[torch.Tensor], average: bool | None = None,
                             name: str | None = None, op: str | None = None,
                             prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                             process_set: ProcessSet = global_process_set) -> AsyncResult:
    """Begin :func:`grouped_allreduce_`; the tensors are not to be used before it is over."""
    how = How.of(op, average, prescale_factor, postscale_factor)
    return together([begin.reduce(tensor, each, how, process_set)
                     for tensor, each in zip(tensors, names(name, len(tensors)))])


def sparse_allreduce_async(tensor: torch.Tensor, name: str | None = None, op: str = AVERAGE,
                           process_set: ProcessSet = global_process_set) -> AsyncResult:
    """Begin to add up sparse tensors: indices and values of all ranks are gathered.

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
    # An index is a row, so that those of all ranks come one behind the other.
    parts = {"indices": mine.indices().t().contiguous(), "values": mine.values()}
    gathered = together([allgather_async(part, name and f"{name}.{what}", process_set)
                         for what, part in parts.items()])

    def add_up(of_all: list[torch.Tensor]) -> torch.Tensor:
        indices, values = of_all
        if op == AVERAGE:
            values = values / process_set.size()
        return torch.sparse_coo_tensor(indices.t(), values, tensor.shape,
                                       check_invariants=False).coalesce()

    return then(gathered, add_up)


def join(device: int = -1) -> int:
    """Run out of data: bring zeros to the reductions of the others until all ranks are here.

    Means are over all ranks. ``allgather``, ``broadcast``, ``alltoall`` and ``reducescatter``
    cannot be called meanwhile, nor steps of ``DistributedOptimizer``. ``device`` is Horovod's, and
    not needed.

    Returns:
        The rank that came last.
    """
    return global_process_set.exchange.join()


# -- reducescatter ----------------------------------------------------------------------------
def reducescatter(tensor: torch.Tensor, op: str | None = None, name: str | None = None,
                  compression: Compressor = Compression.none,
                  process_set: ProcessSet = global_process_set, prescale_factor: float = 1.0,
                  postscale_factor: float = 1.0) -> torch.Tensor:
    """This rank's share of the rows of a reduction over all ranks.

    Rows are spread in order; the first ranks get one more where they do not divide evenly.

    Raises:
        ArgumentError: a tensor without dimension, an ``op`` that is unknown, or is Adasum.
        ExchangeMismatch: ranks differ in shape, type or ``op``; on all of them.
    """
    return grouped_reducescatter([tensor], op, name, compression, process_set, prescale_factor,
                                 postscale_factor)[0]


def reducescatter_async(tensor: torch.Tensor, op: str | None = None, name: str | None = None,
                        process_set: ProcessSet = global_process_set,
                        prescale_factor: float = 1.0, postscale_factor: float = 1.0) -> AsyncResult:
    """Begin :func:`reducescatter`; the tensor may be changed at once."""
    how = How.of(op, None, prescale_factor, postscale_factor)
    return begin.scatter(tensor, None, name, how, process_set)


def grouped_reducescatter(tensors: Sequence[torch.Tensor], op: str | None = None,
                          name: str | None = None, compression: Compressor = Compression.none,
                          process_set: ProcessSet = global_process_set,
                          prescale_factor: float = 1.0, postscale_factor: float = 1.0
                          ) -> list[torch.Tensor]:
    """:func:`reducescatter` of several tensors."""
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
    """Begin :func:`grouped_reducescatter`."""
    return together([reducescatter_async(tensor, op, each, process_set, prescale_factor,
                                         postscale_factor)
                     for tensor, each in zip(tensors, names(name, len(tensors)))])


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.layout is not torch.strided:
        return tensor
    return tensor.detach().clone(memory_format=torch.contiguous_format)
