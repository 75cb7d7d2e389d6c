"""An optimizer's state put together from all ranks, and cut anew: for checkpoints.

    shards and their state --allgather--> the state_dict of one rank --cut--> shards of other ranks

What a state holds for every element is found out by one step on four elements; all else, such as
the number of steps, is the same in every shard.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from hpccoll.errors import ArgumentError
from hpccoll.torch.flat import HALF, Part
from hpccoll.torch.line import Operation
from hpccoll.torch.processes import ProcessSet
from hpccoll.torch.tensors import memory

#: Makes an optimizer of parameter groups.
Make = Callable[[list[dict[str, Any]]], torch.optim.Optimizer]
#: The name of exact weights beside those of two bytes.
EXACT = "exact"


def collect(process_set: ProcessSet, make: Make,
            given: Sequence[Sequence[torch.Tensor]], parts: Sequence[Part],
            inner: torch.optim.Optimizer) -> dict[str, Any]:
    """The whole state, on every rank; collective.

    Args:
        process_set: the ranks.
        make: makes an optimizer of parameter groups.
        given: all parameters, by parameter group.
        parts: what this rank owns of those that are trained.
        inner: the optimizer of its shards.
    """
    numbers = {each: number for number, each in enumerate(_flat(given))}
    state: dict[int, dict[str, Any]] = {}
    for part in parts:
        own = dict(inner.state.get(part.shard, {}))
        if part.members[0].dtype in HALF:
            own[EXACT] = part.shard
        vectors = _vectors(make, inner.param_groups[part.kind])
        for key in sorted(own):
            if key in vectors:
                pieces = _whole(process_set, part, own[key])
            else:
                pieces = [own[key].clone() if isinstance(own[key], torch.Tensor) else own[key]
                          for _ in part.members]
            for each, piece in zip(part.members, pieces):
                state.setdefault(numbers[each], {})[key] = piece
    groups = [{**{key: value for key, value in group.items() if key != "params"},
               "params": [numbers[each] for each in members]}
              for group, members in zip(inner.param_groups, given)]
    return {"state": state, "param_groups": groups}


def cut(rank: int, make: Make, given: Sequence[Sequence[torch.Tensor]],
        parts: Sequence[Part], inner: torch.optim.Optimizer, whole: dict[str, Any]
        ) -> dict[str, Any]:
    """This rank's part of a whole state, for the optimizer of its shards.

    Exact weights are written to the shards.

    Raises:
        ArgumentError: it is of other parameters.
    """
    told = [len(group["params"]) for group in whole["param_groups"]]
    if told != [len(members) for members in given]:
        raise ArgumentError("state_dict", f"has groups of {told} parameters, the model of "
                            f"{[len(members) for members in given]}")
    numbers = dict(zip(_flat(given), (
        number for group in whole["param_groups"] for number in group["params"])))
    state = {}
    for place, part in enumerate(parts):
        entries = [dict(whole["state"].get(numbers[each], {})) for each in part.members]
        vectors = _vectors(make, inner.param_groups[part.kind])
        mine: dict[str, Any] = {}
        for key in entries[0]:
            if key not in vectors:
                mine[key] = entries[0][key]
                continue
            vector = mine[key] = torch.zeros(part.shard.shape, dtype=part.shard.dtype)
            for number, (_, elements, to) in _pieces(part, rank):
                value, shape = entries[number].get(key), part.members[number].shape
                if value is None or value.shape != shape:
                    raise ArgumentError(
                        "state_dict", f"'{key}' of parameter {numbers[part.members[number]]} has "
                        f"the shape {None if value is None else tuple(value.shape)} instead of "
                        f"{tuple(shape)}")
                vector[to] = value.reshape(-1)[elements]
        exact = mine.pop(EXACT, None)
        if exact is not None and part.members[0].dtype in HALF:
            part.shard.copy_(exact)
        if mine:
            state[place] = mine
    # Parts are in the order of parameter groups only where these follow each other.
    order = [place for kind in range(len(given)) for place, part in enumerate(parts)
             if part.kind == kind]
    groups = []
    for number, group in enumerate(whole["param_groups"]):
        places = [place for place, each in enumerate(order) if parts[each].kind == number]
        groups.append({**group, "params": places})
    return {"state": {new: state[old] for new, old in enumerate(order) if old in state},
            "param_groups": groups}


def _flat(given: Sequence[Sequence[torch.Tensor]]) -> list[torch.Tensor]:
    return [each for members in given for each in members]


def _vectors(make: Make, group: dict[str, Any]) -> set[str]:
    """Names of what a state holds for every element."""
    probe = torch.ones(4)
    probe.grad = torch.ones(4)
    options = {key: value for key, value in group.items() if key != "params"}
    optimizer = make([{**options, "params": [probe]}])
    optimizer.step()
    return {EXACT} | {key for key, value in optimizer.state[probe].items()
                      if isinstance(value, torch.Tensor) and value.shape == probe.shape}


def _pieces(part: Part, rank: int) -> list[tuple[int, tuple[int, slice, slice]]]:
    """What this rank owns of every member, which is known by its place in the bucket."""
    places = {index: number for number, index in enumerate(part.group.bucket.members)}
    return [(places[piece[0]], piece) for piece in part.group.pieces(part.group.part(rank))]


def _whole(process_set: ProcessSet, part: Part, vector: torch.Tensor) -> list[torch.Tensor]:
    """Vectors of all ranks put together, for every member; collective."""
    line, whole = process_set.line, vector.new_empty(part.group.bucket.count)
    width = vector.element_size()

    def steps() -> Operation:
        yield line.comm.Iallgatherv(
            memory(vector.detach().contiguous()).view("u1"),
            [memory(whole).view("u1"), [width * count for count in part.group.counts]])

    line.run(steps())
    return [piece.view(each.shape).clone() for each, piece in zip(part.members, whole.split(
        [each.numel() for each in part.members]))]
