"""Tensors that move between ranks by Horovod's names: allgather, broadcast, alltoall, barrier.

They are done in the order in which they are called, the same on every rank; another order is an
error that says so. Derivatives go through the forms that wait and are not in place.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hpccoll.torch import operations
from hpccoll.torch.horovod import begin
from hpccoll.torch.horovod.begin import names
from hpccoll.torch.horovod.derivatives import AllgatherFunction, AlltoallFunction, BroadcastFunction
from hpccoll.torch.horovod.processes import ProcessSet, global_process_set
from hpccoll.torch.line import AsyncResult, then, together


def allgather(tensor: torch.Tensor, name: str | None = None,
              process_set: ProcessSet = global_process_set) -> torch.Tensor:
    """The rows of all ranks' tensors, one rank behind the other.

    Args:
        tensor: of one type, and one shape but for the first dimension.

    Raises:
        ArgumentError: a tensor without dimension.
        ExchangeMismatch: ranks differ in type or the other dimensions; on all of them.
    """
    return AllgatherFunction.apply(name, process_set, tensor)[0]


def allgather_async(tensor: torch.Tensor, name: str | None = None,
                    process_set: ProcessSet = global_process_set) -> AsyncResult:
    """Begin :func:`allgather`; the tensor is not to be changed before it is over."""
    return then(begin.gather(tensor, name, process_set), lambda found: found[0])


def grouped_allgather(tensors: Sequence[torch.Tensor], name: str | None = None,
                      process_set: ProcessSet = global_process_set) -> list[torch.Tensor]:
    """:func:`allgather` of several tensors."""
    return list(AllgatherFunction.apply(name, process_set, *tensors))


def grouped_allgather_async(tensors: Sequence[torch.Tensor], name: str | None = None,
                            process_set: ProcessSet = global_process_set) -> AsyncResult:
    """Begin :func:`grouped_allgather`."""
    return together([allgather_async(tensor, each, process_set)
                     for tensor, each in zip(tensors, names(name, len(tensors)))])


def broadcast(tensor: torch.Tensor, root_rank: int, name: str | None = None,
              process_set: ProcessSet = global_process_set) -> torch.Tensor:
    """The tensor of one rank.

    Args:
        tensor: of one shape and type on all ranks.
        root_rank: whose values; its rank in the global process set, as in Horovod.

    Raises:
        ArgumentError: the root is not in the process set.
        ExchangeMismatch: ranks differ in shape, type or root; on all of them.
    """
    return BroadcastFunction.apply(root_rank, name, process_set, tensor)


def broadcast_(tensor: torch.Tensor, root_rank: int, name: str | None = None,
               process_set: ProcessSet = global_process_set) -> torch.Tensor:
    """Replace a tensor by that of one rank; see :func:`broadcast`."""
    return broadcast_async_(tensor, root_rank, name, process_set).wait()


def broadcast_async(tensor: torch.Tensor, root_rank: int, name: str | None = None,
                    process_set: ProcessSet = global_process_set) -> AsyncResult:
    """Begin :func:`broadcast`; the tensor may be changed at once."""
    return broadcast_async_(tensor.detach().clone(), root_rank, name, process_set)


def broadcast_async_(tensor: torch.Tensor, root_rank: int, name: str | None = None,
                     process_set: ProcessSet = global_process_set) -> AsyncResult:
    """Begin :func:`broadcast_`; the tensor is not to be used before it is over."""
    return begin.share(tensor, root_rank, name, process_set)


def alltoall(tensor: torch.Tensor, splits: Sequence[int] | torch.Tensor | None = None,
             name: str | None = None, process_set: ProcessSet = global_process_set
             ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Send rows to every rank.

    Args:
        tensor: of one type, and one shape but for the first dimension.
        splits: rows for each rank; as many for each by default.

    Returns:
        The rows that came, in the order of ranks; where ``splits`` are given also how many came
        from each, int32.

    Raises:
        ArgumentError: splits that are not one number a rank, or not all rows.
        ExchangeMismatch: ranks differ in type or the other dimensions, or one of them has wrong
            splits; on all of them.
    """
    result, came = AlltoallFunction.apply(_numbers(splits), name, process_set, tensor)
    return result if splits is None else (result, came)


def alltoall_async(tensor: torch.Tensor, splits: Sequence[int] | torch.Tensor | None = None,
                   name: str | None = None, process_set: ProcessSet = global_process_set
                   ) -> AsyncResult:
    """Begin :func:`alltoall`; the tensor is not to be changed before it is over."""
    def finish(found: tuple[torch.Tensor, list[int]]
               ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        result, came = found
        return result if splits is None else (result, torch.tensor(came, dtype=torch.int32))

    return then(begin.spread(tensor, _numbers(splits), name, process_set), finish)


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Wait until every rank is here, and all operations called before are over."""
    line = process_set.line
    line.run(operations.called_alike(line.comm, "barrier"))


def _numbers(splits: Sequence[int] | torch.Tensor | None) -> list[int] | None:
    if splits is None:
        return None
    return splits.tolist() if isinstance(splits, torch.Tensor) else list(splits)
