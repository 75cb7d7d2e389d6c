"""ZeRO++: weights and gradients that travel as small integers, the latter in two levels.

    qwZ   a part of the weights, quantised -> allgather -> everybody dequantises all parts
    qgZ   gradients of the ranks with my place in every node, quantised -> alltoall in the node
          -> sum -> quantised again -> alltoall of those ranks across nodes -> sum

    message of a part:  scales (float32, one a block) | packed integers

Every part has blocks of its own, so parts may be of any size. Sums are made in float32 in the
order of ranks, over all ranks: whoever wants the mean divides by the number of all. Source: Wang et
al., "ZeRO++: Extremely Efficient Collective Communication for Giant Model Training", 2023.
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
from hpccoll.training.shard.volume import SCALE_BYTES


@dataclass(frozen=True)
class ZeroPlusPlus:
    """What travels as integers at stage 3, and from where weights are gathered again.

    Attributes:
        weights: bits of a gathered weight (qwZ), 8 or 4; 0 gathers them as they are.
        gradients: bits of a gradient (qgZ), 4 or 8; 0 reduces them as they are.
        hierarchical: a node keeps a second copy of the weights that it has gathered, and the
            backward pass gathers inside the node (hpZ).
        block: elements with a scale of their own.

    Raises:
        ArgumentError: bits or a block that no integer has.
    """

    weights: int = 0
    gradients: int = 0
    hierarchical: bool = False
    block: int = BLOCK

    def __post_init__(self) -> None:
        for bits in {self.weights, self.gradients} - {0}:
            check_format(bits, self.block)


def message_bytes(count: int, bits: int, block: int) -> int:
    """Bytes of the message of a part."""
    return SCALE_BYTES * -(-count // block) + packed_bytes(count, bits)


def encode(values: numpy.ndarray, bits: int, block: int) -> numpy.ndarray:
    """Make the message of a part."""
    if values.dtype.itemsize < 4:
        values = values.astype(numpy.float32)
    packed, scales = quantise(values, bits, block)
    return numpy.concatenate((scales.view("u1"), packed))


def decode(message: numpy.ndarray, count: int, bits: int, block: int) -> numpy.ndarray:
    """Read the message of a part of so many elements."""
    start = message.size - packed_bytes(count, bits)
    # Messages lie behind each other, so scales may begin anywhere.
    return dequantise(message[start:], message[:start].copy().view("f4"), count, bits, block)


def gather(comm: Any, part: numpy.ndarray, whole: numpy.ndarray, counts: Sequence[int], bits: int,
           block: int) -> Steps:
    """Fill ``whole`` with the quantised parts of all ranks, the own one too (qwZ)."""
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
    """Ranks of every innermost group of a topology's tree.

    >>> leaf_groups(((2, 3), (4,))), leaf_groups(8)
    ([2, 3, 4], [8])
    """
    return [tree] if isinstance(tree, int) else [n for inner in tree for n in leaf_groups(inner)]


def nodes_of(layout: Any) -> list[list[int]]:
    """The ranks of every node of a layout."""
    stops = list(accumulate(leaf_groups(layout.tree)))
    return [list(layout.ranks[start:stop]) for start, stop in zip([0, *stops], stops)]


class TwoLevels:
    """The quantised reduce-scatter of one rank (qgZ).

    One level, between all ranks, where nodes have different numbers of them.

    Args:
        comm: all ranks; communicators are made from it, which is collective.
        bits, block: the form of integers.
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
        self.across = comm.Split(self.place, self.node)

    def reduce(self, vector: numpy.ndarray, counts: Sequence[int]) -> Steps:
        """Leave the sum of this rank's part at the front of ``vector``; its rest is spent.

        Args:
            counts: elements of every rank's part, by rank.
        """
        stops = list(accumulate(counts))
        parts = [vector[stop - count:stop] for count, stop in zip(counts, stops)]
        peers = [node[self.place] for node in self.nodes]
        sums = yield from self._exchange(
            self.inside, [[parts[node[place]] for node in self.nodes]
                          for place in range(len(self.nodes[self.node]))],
            [counts[peer] for peer in peers])
        if len(self.nodes) > 1:
            mine = counts[peers[self.node]]
            sums = yield from self._exchange(self.across, [[one] for one in sums], [mine])
        vector[:sums[0].size] = sums[0]

    def _exchange(self, comm: Any, parts: Sequence[Sequence[numpy.ndarray]],
                  counts: Sequence[int]) -> Any:
        """Send a list of parts to every rank; return the sums of those that came, by place.

        Args:
            parts: for every rank of ``comm``.
            counts: elements of the parts that every rank sends to this one.
        """
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
        self.across.Free()
