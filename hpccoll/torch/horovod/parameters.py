"""Broadcast of parameters, optimizer state and objects from one rank.

Tensors of one dtype are sent in flat buffers, so a model with hundreds of small tensors needs only
a few broadcasts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from hpccoll.errors import ArgumentTypeError
from hpccoll.torch import operations
from hpccoll.torch.horovod.data_movement import broadcast_async_
from hpccoll.torch.horovod.processes import ProcessSet, global_process_set

#: Size of a flat buffer in elements.
MOST = 1 << 23

Named = tuple[str, torch.Tensor]


def broadcast_parameters(params: Mapping[str, Any] | Iterable[Any], root_rank: int = 0,
                         process_set: ProcessSet = global_process_set) -> None:
    """Broadcast the tensors of one rank in place; collective.

    Args:
        params: ``model.state_dict()``, ``model.named_parameters()`` or ``model.parameters()``.
            Other values than tensors are ignored.
        root_rank: the root's rank in the global process set.
        process_set: the ranks.

    Raises:
        ArgumentTypeError: another type of ``params``.
        ExchangeMismatch: ranks differ in names, shapes or dtypes; on all ranks.
    """
    found = [(name, tensor) for name, tensor in _with_names(params)
             if isinstance(tensor, torch.Tensor)]
    said = "; ".join(operations.describe_tensor(tensor, name) for name, tensor in found)
    line = process_set.line
    line.run(operations.called_alike(line.comm, said))
    under_way = []
    for group in _groups(found):
        flat = torch.cat([tensor.detach().reshape(-1) for _, tensor in group])
        under_way.append((group, broadcast_async_(flat, root_rank, None, process_set)))
    for group, pending in under_way:
        parts = pending.wait().split([tensor.numel() for _, tensor in group])
        for (_, tensor), part in zip(group, parts):
            tensor.detach().copy_(part.view(tensor.shape))


def _with_names(params: Mapping[str, Any] | Iterable[Any]) -> list[tuple[str, Any]]:
    if isinstance(params, Mapping):
        return sorted(params.items())
    if isinstance(params, (str, bytes, torch.Tensor)) or not isinstance(params, Iterable):
        raise ArgumentTypeError("params", f"expected a state_dict, named parameters or "
                                f"parameters, got {type(params).__name__}")
    return [each if isinstance(each, tuple) else (str(index), each)
            for index, each in enumerate(params)]


def _groups(found: list[Named]) -> list[list[Named]]:
    """Group tensors by dtype and device, in their order."""
    groups: list[list[Named]] = []
    open_: dict[Any, tuple[list[Named], int]] = {}
    for name, tensor in found:
        kind = tensor.dtype, tensor.device
        group, held = open_.get(kind, ([], MOST))
        if held >= MOST:
            group, held = [], 0
            groups.append(group)
        group.append((name, tensor))
        open_[kind] = group, held + tensor.numel()
    return groups


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root_rank: int = 0,
                              process_set: ProcessSet = global_process_set) -> None:
    """Broadcast the optimizer state of one rank: moments, steps, learning rates.

    The optimizers must have the same parameters. Other ranks also get the state if only the root
    has stepped or loaded a checkpoint. Tensors are sent as tensors, all other values as objects.

    Raises:
        ExchangeMismatch: the optimizers have different numbers of parameters; on all ranks.
    """
    line = process_set.line
    own = optimizer.state_dict()
    shape = [len(group["params"]) for group in own["param_groups"]]
    line.run(operations.called_alike(line.comm, f"an optimizer with groups of {shape} "
                                                "parameters"))
    tensors: list[torch.Tensor] = []
    skeleton = broadcast_object(_extract_tensors(own, tensors), root_rank, process_set=process_set)
    mine = process_set.ranks[process_set.rank()] == root_rank
    if not mine:
        tensors = []
        state = _with_new(skeleton, tensors)
    broadcast_parameters(tensors, root_rank, process_set)
    if not mine:
        optimizer.load_state_dict(state)


class _Place:
    """Placeholder of a tensor in a state: its shape and dtype."""

    def __init__(self, tensor: torch.Tensor):
        self.shape, self.dtype, self.device = tensor.shape, tensor.dtype, tensor.device.type


def _extract_tensors(state: Any, tensors: list[torch.Tensor]) -> Any:
    """Return a state with placeholders; append its tensors to a list in order."""
    def extract(tensor: torch.Tensor) -> _Place:
        tensors.append(tensor)
        return _Place(tensor)

    return _map_state(state, torch.Tensor, extract)


def _with_new(state: Any, tensors: list[torch.Tensor]) -> Any:
    """Return a state of :func:`_extract_tensors` with new tensors for the placeholders."""
    def fill(place: _Place) -> torch.Tensor:
        tensors.append(torch.empty(place.shape, dtype=place.dtype, device=place.device))
        return tensors[-1]

    return _map_state(state, _Place, fill)


def _map_state(state: Any, kind: type, change: Callable[[Any], Any]) -> Any:
    if isinstance(state, kind):
        return change(state)
    if isinstance(state, dict):
        return {key: _map_state(value, kind, change) for key, value in state.items()}
    if isinstance(state, (list, tuple)):
        return type(state)(_map_state(value, kind, change) for value in state)
    return state


def broadcast_object(obj: Any, root_rank: int = 0, name: str | None = None,
                     process_set: ProcessSet = global_process_set) -> Any:
    """Broadcast a picklable object of one rank; ``obj`` of other ranks is ignored.

    ``name`` is an argument of Horovod and ignored.

    Raises:
        ArgumentError: the root is not in the process set.
    """
    line = process_set.line
    root = operations.place_of(root_rank, process_set.ranks)
    return line.run(operations.call(lambda: line.comm.bcast(obj, root)))


def allgather_object(obj: Any, name: str | None = None,
                     process_set: ProcessSet = global_process_set) -> list[Any]:
    """Gather the picklable objects of all ranks in rank order."""
    line = process_set.line
    return line.run(operations.call(lambda: line.comm.allgather(obj)))
