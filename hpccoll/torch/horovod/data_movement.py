"""Horovod's allgather, broadcast, alltoall and barrier.

Operations run in call order, which must be the same on every rank; another order raises an error.
The blocking functions that are not in place are differentiable.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hpccoll.torch import operations
from hpccoll.torch.horovod import async_operations
from hpccoll.torch.horovod.async_operations import names
from hpccoll.torch.horovod.derivatives import AllgatherFunction, AlltoallFunction, BroadcastFunction
from hpccoll.torch.horovod.processes import ProcessSet, global_process_set
from hpccoll.torch.operation_queue import AsyncResult, join_results, then


def allgather(tensor: torch.Tensor, name: str | None = None,
              process_set: ProcessSet = global_process_set) -> torch.Tensor:
    """Concatenate the rows of all ranks' tensors in rank order.

    Args:
        tensor: same dtype and trailing dimensions on all ranks.

    Raises:
        ArgumentError: a 0-d tensor.
        ExchangeMismatch: ranks differ in dtype or trailing dimensions; on all ranks.
    """
    return AllgatherFunction.apply(name, process_set, tensor)[0]


def allgather_async(tensor: torch.Tensor, name: str | None = None,
                    process_set: ProcessSet = global_process_set) -> AsyncResult:
    """Start :func:`allgather`; do not modify the tensor before completion."""
    return then(async_operations.gather(tensor, name, process_set), lambda found: found[0])


def grouped_allgather(tensors: Sequence[torch.Tensor], name: str | None = None,
                      process_set: ProcessSet = global_process_set) -> list[torch.Tensor]:
    """Apply :func:`allgather` to several tensors."""
    return list(AllgatherFunction.apply(name, process_set, *tensors))


def grouped_allgather_async(tensors: Sequence[torch.Tensor], name: str | None = None,
                            process_set: ProcessSet = global_process_set) -> AsyncResult:
    """Start :func:`grouped_allgather`."""
    return join_results([allgather_async(tensor, each, process_set)
                         for tensor, each in zip(tensors, names(name, len(tensors)))])


def broadcast(tensor: torch.Tensor, root_rank: int, name: str | None = None,
              process_set: ProcessSet = global_process_set) -> torch.Tensor:
    """Return the tensor of one rank on all ranks.

    Args:
        tensor: tensor of one shape and dtype on all ranks.
        root_rank: the root's rank in the global process set, as in Horovod.

    Raises:
        ArgumentError: the root is not in the process set.
        ExchangeMismatch: ranks differ in shape, dtype or root; on all ranks.
    """
    return BroadcastFunction.apply(root_rank, name, process_set, tensor)


def broadcast_(tensor: torch.Tensor, root_rank: int, name: str | None = None,
               process_set: ProcessSet = global_process_set) -> torch.Tensor:
    """Broadcast the tensor of one rank in place; see :func:`broadcast`."""
    return broadcast_async_(tensor, root_rank, name, process_set).wait()


def broadcast_async(tensor: torch.Tensor, root_rank: int, name: str | None = None,
                    process_set: ProcessSet = global_process_set) -> AsyncResult:
    """Start :func:`broadcast`; the tensor may be modified immediately."""
    return broadcast_async_(tensor.detach().clone(), root_rank, name, process_set)


def broadcast_async_(tensor: torch.Tensor, root_rank: int, name: str | None = None,
                     process_set: ProcessSet = global_process_set) -> AsyncResult:
    """Start :func:`broadcast_`; do not use the tensor before completion."""
    return async_operations.share(tensor, root_rank, name, process_set)


def alltoall(tensor: torch.Tensor, splits: Sequence[int] | torch.Tensor | None = None,
             name: str | None = None, process_set: ProcessSet = global_process_set
             ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Send rows to all ranks and receive rows from all ranks.

    Args:
        tensor: same dtype and trailing dimensions on all ranks.
        splits: number of rows for each rank; equal by default.

    Returns:
        The received rows in rank order; with ``splits`` also the number of rows from each rank,
        int32.

    Raises:
        ArgumentError: ``splits`` has not a number for each rank, or its sum is not the number of
            rows.
        ExchangeMismatch: ranks differ in dtype or trailing dimensions, or one has invalid splits;
            on all ranks.
    """
    result, came = AlltoallFunction.apply(_numbers(splits), name, process_set, tensor)
    return result if splits is None else (result, came)


def alltoall_async(tensor: torch.Tensor, splits: Sequence[int] | torch.Tensor | None = None,
                   name: str | None = None, process_set: ProcessSet = global_process_set
                   ) -> AsyncResult:
    """Start :func:`alltoall`; do not modify the tensor before completion."""
    def finish(found: tuple[torch.Tensor, list[int]]
               ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        result, came = found
        return result if splits is None else (result, torch.tensor(came, dtype=torch.int32))

    return then(async_operations.alltoall_rows(tensor, _numbers(splits), name, process_set), finish)


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Wait until all ranks have called ``barrier`` and all earlier operations have completed."""
    line = process_set.line
    line.run(operations.called_alike(line.comm, "barrier"))


def _numbers(splits: Sequence[int] | torch.Tensor | None) -> list[int] | None:
    if splits is None:
        return None
    return splits.tolist() if isinstance(splits, torch.Tensor) else list(splits)
