"""Differentiable operations, as autograd functions.

The input of a rank affects the results of all ranks, so gradients are collective operations too.
The gradient of a sum is the sum, of an allgather a reduce-scatter, of a broadcast the reduction to
its root, of an alltoall the reverse alltoall. Scaling is Horovod's: gradients of an allgather and a
broadcast are means over the ranks, that of a reduce-scatter is multiplied by the number of ranks.
All ranks must run backward through the same operations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from hpccoll.torch.horovod import async_operations
from hpccoll.torch.horovod.async_operations import AVERAGE, SUM, How, names
from hpccoll.torch.horovod.processes import ProcessSet
from hpccoll.torch.operation_queue import join_results

Tensors = tuple[torch.Tensor, ...]


class AllreduceFunction(torch.autograd.Function):
    """Allreduce of a group of tensors."""

    @staticmethod
    def forward(ctx: Any, how: How, name: str | None, process_set: ProcessSet,
                *tensors: torch.Tensor) -> Tensors:
        ctx.how, ctx.process_set = how, process_set
        copies = [tensor.clone(memory_format=torch.contiguous_format) for tensor in tensors]
        return tuple(join_results([async_operations.reduce(copy, each, how, process_set)
                                   for copy, each in zip(copies, names(name, len(copies)))]).wait())

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        ctx.how.check_derivative()
        return None, None, None, *AllreduceFunction.apply(ctx.how, None, ctx.process_set,
                                                          *gradients)


class AllgatherFunction(torch.autograd.Function):
    """Allgather of a group of tensors."""

    @staticmethod
    def forward(ctx: Any, name: str | None, process_set: ProcessSet, *tensors: torch.Tensor
                ) -> Tensors:
        found = join_results([async_operations.gather(tensor, each, process_set)
                              for tensor, each in zip(tensors, names(name, len(tensors)))]).wait()
        ctx.rows, ctx.process_set = [rows for _, rows in found], process_set
        return tuple(result for result, _ in found)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        parts = [ReduceScatterFunction.apply(How(AVERAGE), None, ctx.process_set, rows, gradient)[0]
                 for rows, gradient in zip(ctx.rows, gradients)]
        return None, None, *parts


class ReduceScatterFunction(torch.autograd.Function):
    """Reduce-scatter of a group of tensors."""

    @staticmethod
    def forward(ctx: Any, how: How, name: str | None, process_set: ProcessSet,
                rows: Sequence[int] | None, *tensors: torch.Tensor) -> Tensors:
        ctx.how, ctx.process_set = how, process_set
        return tuple(join_results([async_operations.scatter(tensor, rows, each, how, process_set)
                                   for tensor, each in zip(tensors,
                                                           names(name, len(tensors)))]).wait())

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        how = ctx.how
        how.check_derivative()
        factor = ctx.process_set.size() if how.op == SUM else 1
        scaled = [gradient * (how.prescale * how.postscale * factor) for gradient in gradients]
        return None, None, None, None, *AllgatherFunction.apply(None, ctx.process_set, *scaled)


class BroadcastFunction(torch.autograd.Function):
    """Broadcast of a tensor."""

    @staticmethod
    def forward(ctx: Any, root: int, name: str | None, process_set: ProcessSet,
                tensor: torch.Tensor) -> torch.Tensor:
        ctx.root, ctx.process_set = root, process_set
        return async_operations.share(tensor.clone(), root, name, process_set).wait()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        mean, = AllreduceFunction.apply(How(AVERAGE), None, ctx.process_set, gradient)
        mine = ctx.process_set.ranks[ctx.process_set.rank()] == ctx.root
        return None, None, None, mean if mine else torch.zeros_like(mean)


class AlltoallFunction(torch.autograd.Function):
    """Alltoall of rows: received rows, and their number by rank."""

    @staticmethod
    def forward(ctx: Any, splits: Sequence[int] | None, name: str | None,
                process_set: ProcessSet, tensor: torch.Tensor
                ) -> tuple[torch.Tensor, torch.Tensor]:
        result, ctx.came = async_operations.alltoall_rows(tensor, splits, name, process_set).wait()
        ctx.process_set = process_set
        counts = torch.tensor(ctx.came, dtype=torch.int32)
        ctx.mark_non_differentiable(counts)
        return result, counts

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, _: Any) -> tuple[Any, ...]:
        back, _ = AlltoallFunction.apply(ctx.came, None, ctx.process_set, gradient)
        return None, None, None, back
