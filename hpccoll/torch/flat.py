"""Weights that every rank holds whole, in flat buffers cut over the ranks: ZeRO 1 and 2.

    gradients --reduce-scatter--> this rank's part --step--> weights --allgather--> model

Buffers set off in one order on all ranks, as soon as all gradients of one are there.
Source: Rajbhandari, Rasley, Ruwase and He, "ZeRO", SC 2020.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from mpi4py import MPI

from hpccoll.torch import operations
from hpccoll.torch.begin import AVERAGE
from hpccoll.torch.line import AsyncResult, Operation
from hpccoll.torch.processes import ProcessSet
from hpccoll.torch.tensors import memory, values
from hpccoll.training.buckets import FIRST_BUCKET_BYTES, ArraySpec
from hpccoll.training.shard.partition import ShardGroup, plan_groups

#: Types whose weights are kept, and whose steps are made, in float32.
HALF = torch.float16, torch.bfloat16


class Part(NamedTuple):
    """What this rank owns of parameters that lie one behind the other.

    Attributes:
        group: how they are cut.
        members: the parameters, in the order in which they lie.
        shard: what this rank's optimizer changes: its elements, in float32 if theirs have two
            bytes.
        kind: number of the parameter group that they belong to.
    """

    group: ShardGroup
    members: list[torch.Tensor]
    shard: torch.Tensor
    kind: int


def take_over(shard: torch.Tensor, weights: torch.Tensor) -> None:
    """Let a shard follow weights that somebody has changed; exact ones stay where nobody has."""
    if shard.data_ptr() != weights.data_ptr():
        changed = shard.to(weights.dtype) != weights
        shard[changed] = weights[changed].to(shard.dtype)


class FlatParameters:
    """Parameters in flat buffers, with the weights of rank 0; making them is collective.

    Args:
        groups: parameters that are trained, by parameter group.
        process_set: the ranks.
        stage: 1 or 2.
        op: ``Average`` or ``Sum``.
        bucket_bytes: of a buffer.

    Attributes:
        parts: what this rank owns.
    """

    def __init__(self, groups: Sequence[Sequence[torch.Tensor]], process_set: ProcessSet,
                 stage: int, op: str, bucket_bytes: int):
        self._process_set, self._stage, self._op = process_set, stage, op
        self.parts: list[Part] = []
        self._flats: list[torch.Tensor] = []
        for kind, members in enumerate(groups):
            self._cut(kind, members, bucket_bytes)
        self._places = {each: number for number, part in enumerate(self.parts)
                        for each in part.members}
        self._ready: set[torch.Tensor] = set()
        self._under_way: list[tuple[AsyncResult, torch.Tensor]] = []

    def _cut(self, kind: int, members: Sequence[torch.Tensor], bucket_bytes: int) -> None:
        """Put parameters into flat buffers with the weights of rank 0; collective."""
        line = self._process_set.line
        specs = [ArraySpec(str(index), tuple(each.shape), str(each.dtype), each.element_size())
                 for index, each in enumerate(members)]
        line.run(operations.called_alike(line.comm, f"ZeroOptimizer of {specs}"))
        for group in plan_groups(specs, self._process_set.size(), bucket_bytes,
                                 min(FIRST_BUCKET_BYTES, bucket_bytes)):
            own = [members[index] for index in group.bucket.members]
            flat = torch.cat([each.detach().reshape(-1) for each in own])
            ranks = self._process_set.ranks
            line.run(operations.broadcast(line.comm, flat, ranks[0], ranks, "weights"))
            for each, piece in zip(own, flat.split([each.numel() for each in own])):
                each.data = piece.view(each.shape)
            mine = flat[group.part(self._process_set.rank())]
            self._flats.append(flat)
            self.parts.append(Part(group, own, mine.float() if flat.dtype in HALF else mine, kind))

    @property
    def under_way(self) -> bool:
        """Tell whether gradients are being reduced."""
        return bool(self._under_way)

    @property
    def nbytes(self) -> tuple[int, int]:
        """Bytes of the weights and of the gradients that are held."""
        return (sum(flat.nbytes for flat in self._flats),
                sum(each.grad.nbytes for part in self.parts for each in (*part.members, part.shard)
                    if each.grad is not None))

    def ready(self, parameter: torch.Tensor) -> None:
        """The gradient of a parameter is whole; its buffer sets off when those of all are."""
        self._ready.add(parameter)
        while len(self._under_way) < len(self.parts) and self._ready.issuperset(
                self.parts[len(self._under_way)].members):
            self._set_off(len(self._under_way))

    def arrived(self, parameter: torch.Tensor) -> None:
        """Nothing: weights stay."""

    def order(self) -> int:
        """Nothing that ranks could do in different orders."""
        return 0

    def _set_off(self, number: int) -> None:
        part = self.parts[number]
        flat = torch.cat([torch.zeros_like(each).reshape(-1) if each.grad is None else
                          each.grad.reshape(-1) for each in part.members])
        if self._op == AVERAGE and flat.dtype in HALF:
            flat /= self._process_set.size()  # before, or sums might overflow
        if self._stage == 2:
            for each in part.members:
                each.grad = None
        shard = flat.new_empty(part.group.counts[self._process_set.rank()])
        comm = self._process_set.line.comm

        def steps() -> Operation:
            yield comm.Ireduce_scatter(values(flat), values(shard), list(part.group.counts),
                                       MPI.SUM)
            return shard

        self._under_way.append((self._process_set.line.start(steps()), flat))

    def reduced(self) -> list[torch.Tensor]:
        """Wait for this rank's part of the gradients; those that did not come count as zeros."""
        for number in range(len(self._under_way), len(self.parts)):
            self._set_off(number)
        found = []
        for part, (pending, flat) in zip(self.parts, self._under_way):
            reduced = pending.wait().to(part.shard.dtype)
            if self._op == AVERAGE and flat.dtype not in HALF:
                reduced /= self._process_set.size()
            found.append(reduced)
        self._under_way.clear()
        self._ready.clear()
        return found

    def publish(self) -> None:
        """Give every rank the weights that the others have changed; collective."""
        line, under_way = self._process_set.line, []
        for part, flat in zip(self.parts, self._flats):
            if flat.dtype in HALF:
                flat[self._mine(part)] = part.shard.to(flat.dtype)
            under_way.append(line.start(self._gathered(part, flat)))
        for pending in under_way:
            pending.wait()

    def _gathered(self, part: Part, flat: torch.Tensor) -> Operation:
        width = flat.element_size()
        yield self._process_set.line.comm.Iallgatherv(
            MPI.IN_PLACE, [memory(flat).view("u1"), [width * count for count in part.group.counts]])

    def _mine(self, part: Part) -> slice:
        return part.group.part(self._process_set.rank())

    @contextmanager
    def gathered(self, modules: Sequence[torch.nn.Module]) -> Iterator[None]:
        """Weights are whole all the time; exact ones follow what is changed inside."""
        yield
        for part, flat in zip(self.parts, self._flats):
            take_over(part.shard, flat[self._mine(part)])

    def close(self) -> None:
        """Nothing: the weights are the model's."""
