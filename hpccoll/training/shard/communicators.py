"""Collectives of a stage and their communicators: one for sums, one for weights.

Sums use the user's communicator, so that its determinism applies. Weights use a duplicate: a
prefetch, and a reduce-scatter after the last gradient of a group, may start in different orders on
different ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy
from mpi4py import MPI

from hpccoll.training.arguments import private_copy
from hpccoll.training.compress.scheme import Steps
from hpccoll.training.shard import quantised
from hpccoll.training.shard.partition import ShardGroup
from hpccoll.training.shard.quantised import TwoLevels, ZeroPlusPlus, nodes_of
from hpccoll.training.shard.weights import Gather


class ShardCommunicators:
    """Collectives of one rank; creation is collective.

    Args:
        stage: 0 to 3.

    Attributes:
        inside: rank in the node, size of the node, and a gather inside it; ``None`` without a copy
            in the node.
    """

    def __init__(self, comm: Any, stage: int, zeropp: ZeroPlusPlus):
        self.comm, self.stage, self.zeropp = comm, stage, zeropp
        self.gathers = private_copy(comm)
        self._created: list[Any] = [self.gathers]
        self.inside: tuple[int, int, Gather] | None = None
        if zeropp.hierarchical:
            rank = comm.Get_rank()
            node = next(number for number, ranks in enumerate(nodes_of(comm.layout))
                        if rank in ranks)
            local = comm.Split(node, rank)
            self._created.append(local)
            self.inside = local.Get_rank(), local.Get_size(), _gather(local)
        self._integers = (TwoLevels(comm, zeropp.gradients, zeropp.block)
                          if zeropp.gradients else None)
        for each in (comm, *self._created):
            getattr(each, "layout", None)  # collective: detect it here, not later in a thread

    def broadcast_arrays(self, groups: Sequence[ShardGroup], arrays: Sequence[numpy.ndarray],
                         spans: Sequence[slice] | None = None) -> list[numpy.ndarray]:
        """Copy rank 0's arrays into the groups' vectors, or only spans of them; collective."""
        vectors = []
        for number, group in enumerate(groups):
            first = arrays[group.bucket.members[0]]
            whole = numpy.empty(group.bucket.count, first.dtype)
            for index, elements, place in group.pieces(slice(0, whole.size)):
                whole[place] = arrays[index].reshape(-1)[elements]
            if whole.size:
                # Bytes: MPI libraries have no type for bfloat16.
                self.gathers.Bcast(whole.view("u1"))
            vectors.append(whole if spans is None else whole[spans[number]].copy())
        return vectors

    def exact_gather(self, part: numpy.ndarray, whole: numpy.ndarray, counts: Sequence[int]
                     ) -> Steps:
        """Fill ``whole`` from the parts of all ranks without quantisation."""
        return _gather(self.gathers)(part, whole, counts)

    def reduce(self, group: ShardGroup, vector: numpy.ndarray) -> Steps:
        """Sum the gradients of a group; above stage 0 only this rank's part, at the front."""
        if self._integers is not None:
            yield from self._integers.reduce(vector, group.counts)
        elif self.stage:
            with self.comm.using(ireduce_scatter="auto"):
                request = self.comm.Ireduce_scatter(MPI.IN_PLACE, vector, list(group.counts))
            yield request
        else:
            with self.comm.using(iallreduce="auto"):
                request = self.comm.Iallreduce(MPI.IN_PLACE, vector)
            yield request

    def gather(self, part: numpy.ndarray, whole: numpy.ndarray, counts: Sequence[int]) -> Steps:
        """Fill ``whole`` from the parts of all ranks."""
        if self.zeropp.weights:
            return quantised.gather(self.gathers, part, whole, counts, self.zeropp.weights,
                                    self.zeropp.block)
        return self.exact_gather(part, whole, counts)

    def free(self) -> None:
        """Free the created communicators; collective."""
        while self._created:
            self._created.pop().Free()
        if self._integers is not None:
            self._integers.free()
            self._integers = None


def _gather(comm: Any) -> Gather:
    """Return a function that fills whole vectors from the parts of all ranks."""
    def gather(part: numpy.ndarray, whole: numpy.ndarray, counts: Sequence[int]) -> Steps:
        rank = comm.Get_rank()
        start = [0, *accumulate(counts)][rank]
        mine = whole[start:start + counts[rank]]
        # The part may already be a view of ``whole``.
        if not numpy.may_share_memory(mine, part):
            mine[:] = part
        with comm.using(iallgather="auto"):
            request = comm.Iallgatherv(MPI.IN_PLACE, [whole, list(counts)])
        yield request
    return gather
