"""Rails of blocks: allgather and reduce-scatter where every rank has a block of its own.

The allgather goes from the largest groups to the smallest: first a rank swaps its block with the
ranks of the same index in the other groups, then each group spreads what its members got. So
every block crosses to another group once, and all ranks of a group carry the same number. In
groups of different sizes the rank with index x mod size stands for the absent rank of index x.
The reduce-scatter is the same backwards.
Source: Traeff and Hunold, "Decomposing MPI collectives for exploiting multi-lane communication",
CLUSTER 2020. Ragged groups and more than two levels are our own.
Rounds, for p = m0 x m1 x ...: sum of ceil(log2 m). Sent: n(p-1)/p, of which n(m0-1)/p between
the largest groups.
"""

from __future__ import annotations

from collections.abc import Iterator

from hpccoll.algorithms.hierarchical.composition import (
    WORK,
    GroupLevel,
    inside,
    levels,
    place_input,
)
from hpccoll.algorithms.hierarchical.exchanges import ALLGATHER, exchange
from hpccoll.ir.collectives import IN, OUT
from hpccoll.ir.passes import Piece, concatenate, rename_buffers, reverse
from hpccoll.ir.schedule import Program, at, copy
from hpccoll.ir.topology import Topology


def allgather(rank: int, topology: Topology) -> Program:
    """Allgather between ranks of equal index at every level, largest groups first."""
    return concatenate(
        Program(((copy(at(OUT, rank), at(IN, 0)),),)),
        *(exchange(ALLGATHER, level, blocks, inside(OUT))
          for level, blocks in rails(topology, rank)))


def reduce_scatter(rank: int, topology: Topology) -> Program:
    """Run the allgather backwards, on a copy of the input."""
    program = rename_buffers(reverse(allgather(rank, topology)), {OUT: (WORK, 0), IN: (OUT, 0)})
    return place_input(WORK, program, topology.size)


def rails(topology: Topology, rank: int) -> Iterator[tuple[GroupLevel, list[list[Piece]]]]:
    """Yield the pieces of every level: the blocks that the ranks have before it."""
    held = [[block] for block in range(topology.size)]
    first = 0
    for level in levels(topology, rank):
        groups = list(level.groups)
        mine, longest = groups[level.mine], max(map(len, groups))
        blocks: list[list[Piece]] = [[] for _ in groups]
        for index in range(rank - mine.start, longest, len(mine)):
            ranks = [group.start + index % len(group) for group in groups]
            for pieces, group in zip(blocks, groups):
                if index < len(group):
                    pieces.append(Piece(ranks, held[group[index] - first]))
        yield level, blocks
        held = [[block for index in range(own, longest, len(mine)) for group in groups
                 if index < len(group) for block in held[group[index] - first]]
                for own in range(len(mine))]
        first = mine.start
