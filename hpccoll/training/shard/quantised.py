"""ZeRO++: quantised weight gathers, and quantised two-level gradient reductions.

    qwZ   a part of the weights, quantised -> allgather -> each rank dequantises all parts
    qgZ   gradients for the ranks with one local rank in all nodes, quantised -> alltoall in the
          node -> sum -> quantised again -> alltoall of these ranks across nodes -> sum

    message of a part:  scales (float32, one for each block) | packed integers

Each part has its own blocks, so parts may have any size. Sums over all ranks are computed in
float32 in rank order; for the mean, the caller divides by the number of ranks. Source: Wang et al.,
"ZeRO++: Extremely Efficient Collective Communication for Giant Model Training", 2023.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy
from mpi4py import MPI

from hpccoll.training.compress.quantise import (
    BLOCK,
    check_format,
    dequantise,
    packed_bytes,
    quantise,
)
from hpccoll.training.compress.scheme import Steps
from hpccoll.training.shard.memory_model import SCALE_BYTES


@dataclass(frozen=True)
class ZeroPlusPlus:
    """Settings of ZeRO++ at stage 3.

    Attributes:
        weights: bits of a gathered weight (qwZ), 8 or 4; 0 for no quantisation.
        gradients: bits of a gradient (qgZ), 4 or 8; 0 for no quantisation.
        hierarchical: True if each node keeps a second copy of the gathered weights, from which the
            backward pass gathers inside the node (hpZ).
        block: elements with one scale.

    Raises:
        ArgumentError: invalid bits or block.
    """

    weights: int = 0
    gradients: int = 0
    hierarchical: bool = False
    block: int = BLOCK

    def __post_init__(self) -> None:
        for bits in {self.weights, self.gradients} - {0}:
            check_format(bits, self.block)


def message_bytes(count: int, bits: int, block: int) -> int:
    """Return the size of the message of a part in bytes."""
    return SCALE_BYTES * -(-count // block) + packed_bytes(count, bits)


def encode(values: numpy.ndarray, bits: int, block: int) -> numpy.ndarray:
    """Encode a part as a message."""
    if values.dtype.itemsize < 4:
        values = values.astype(numpy.float32)
    packed, scales = quantise(values, bits, block)
    return numpy.concatenate((scales.view("u1"), packed))


def decode(message: numpy.ndarray, count: int, bits: int, block: int) -> numpy.ndarray:
    """Decode the message of a part of ``count`` elements."""
    start = message.size - packed_bytes(count, bits)
    # Messages are contiguous, so scales may be unaligned.
    return dequantise(message[start:], message[:start].copy().view("f4"), count, bits, block)


def gather(comm: Any, part: numpy.ndarray, whole: numpy.ndarray, counts: Sequence[int], bits: int,
           block: int) -> Steps:
    """Fill ``whole`` with the quantised parts of all ranks, including this one (qwZ)."""
    lengths = [message_bytes(count, bits, block) for count in counts]
    messages, stops = numpy.empty(sum(lengths), "u1"), list(accumulate(lengths))
    rank = comm.Get_rank()
    messages[stops[rank] - lengths[rank]:stops[rank]] = encode(part, bits, block)
    yield comm.Iallgatherv(MPI.IN_PLACE, [messages, lengths])
    start = 0
    for count, length, stop in zip(counts, lengths, stops):
        whole[start:start + count] = decode(messages[stop - length:stop], count, bits, block)
        start += count


def leaf_groups(tree: Any) -> list[int]:
    """Return the sizes of the innermost groups of a topology's tree.

    >>> leaf_groups(((2, 3), (4,))), leaf_groups(8)
    ([2, 3, 4], [8])
    """
    return [tree] if isinstance(tree, int) else [n for inner in tree for n in leaf_groups(inner)]


def nodes_of(layout: Any) -> list[list[int]]:
    """Return the ranks of each node of a layout."""
    stops = list(accumulate(leaf_groups(layout.tree)))
    return [list(layout.ranks[start:stop]) for start, stop in zip([0, *stops], stops)]


class TwoLevels:
    """Quantised two-level reduce-scatter (qgZ).

    Uses one level between all ranks if nodes have different numbers of ranks.
    """

    def __init__(self, comm: Any, bits: int, block: int):
        self.bits, self.block = bits, block
        nodes = nodes_of(comm.layout)
        if len({len(node) for node in nodes}) > 1:
            nodes = [list(range(comm.Get_size()))]
        self.nodes, rank = nodes, comm.Get_rank()
        self.node = next(number for number, node in enumerate(nodes) if rank in node)
        self.place = nodes[self.node].index(rank)
        self.inside = comm.Split(self.node, self.place)
        self.inter_comm = comm.Split(self.place, self.node)

    def reduce(self, vector: numpy.ndarray, counts: Sequence[int]) -> Steps:
        """Store the sum of this rank's part at the front of ``vector``; overwrites the rest."""
        stops = list(accumulate(counts))
        parts = [vector[stop - count:stop] for count, stop in zip(counts, stops)]
        peers = [node[self.place] for node in self.nodes]
        sums = yield from self._exchange(
            self.inside, [[parts[node[place]] for node in self.nodes]
                          for place in range(len(self.nodes[self.node]))],
            [counts[peer] for peer in peers])
        if len(self.nodes) > 1:
            mine = counts[peers[self.node]]
            sums = yield from self._exchange(self.inter_comm, [[one] for one in sums], [mine])
        vector[:sums[0].size] = sums[0]

    def _exchange(self, comm: Any, parts: Sequence[Sequence[numpy.ndarray]],
                  counts: Sequence[int]) -> Any:
        """Send a list of parts to each rank; return the sums of received parts, by position."""
        messages = [numpy.concatenate([encode(part, self.bits, self.block) for part in for_one])
                    for for_one in parts]
        lengths = [message_bytes(count, self.bits, self.block) for count in counts]
        came = numpy.empty((comm.Get_size(), sum(lengths)), "u1")
        yield comm.Ialltoallv([numpy.concatenate(messages), [one.size for one in messages]],
                              [came, [sum(lengths)] * comm.Get_size()])
        sums = [numpy.zeros(count, numpy.float32) for count in counts]
        for message in came:
            for number, stop in enumerate(accumulate(lengths)):
                piece = message[stop - lengths[number]:stop]
                sums[number] += decode(piece, counts[number], self.bits, self.block)
        return sums

    def free(self) -> None:
        """Free the communicators; collective."""
        self.inside.Free()
        self.inter_comm.Free()
