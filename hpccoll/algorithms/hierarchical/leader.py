"""Leaders: each group speaks through one rank, at every level of the topology.

Data goes up to the leaders of ever larger groups, the leaders of the largest groups exchange it,
and it comes down the same way. Every byte crosses between groups once per group, whatever a
group's size, so this suits small messages, where the number of messages counts. A group's leader
is the root where the root is in it, elsewhere its first rank. Groups are ranges of ranks, and
the flat pieces keep rank order, so reductions to a root and to all keep it too.
Source: MPICH (smp), Open MPI HAN, UCC; any number of levels: Open MPI XHC.
Rounds, for p = m0 x m1 x ... ranks, m0 the number of the largest groups, L = floor(log2): bcast
and reduce sum of L(m); allreduce those of recursive doubling on m0, and 2L(m) for every other
level; allgather, reduce-scatter and barrier the same with ceil(log2 m0). Sent: bcast n a child,
of which a root has sum of ceil(log2 m); reduce n; allgather n(m0-1)/m0 and n ceil(log2 m) for
every other level.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from hpccoll.algorithms.flat import dissemination
from hpccoll.algorithms.hierarchical.composition import (
    WORK,
    GroupLevel,
    inside,
    levels,
    place_input,
)
from hpccoll.algorithms.hierarchical.exchanges import (
    ALLGATHER,
    ALLREDUCE,
    BCAST,
    GATHER,
    REDUCE,
    REDUCE_SCATTER,
    SCATTER,
    run_among_leaders,
)
from hpccoll.algorithms.parts import tree_walks, trees
from hpccoll.ir.collectives import IN, OUT
from hpccoll.ir.passes import Place, concatenate, embed
from hpccoll.ir.schedule import Program, at, copy
from hpccoll.ir.topology import Topology


def allreduce(rank: int, topology: Topology) -> Program:
    """Reduce to the leaders, combine by recursive doubling between them, broadcast."""
    top, *inner = levels(topology, rank)
    place, whole = inside(OUT), [(0,)]
    return place_input(OUT, concatenate(
        *(run_among_leaders(REDUCE, level, rank, whole, place) for level in reversed(inner)),
        run_among_leaders(ALLREDUCE, top, rank, whole, place),
        *(run_among_leaders(BCAST, level, rank, whole, place) for level in inner)), 1)


def bcast(rank: int, topology: Topology, root: int) -> Program:
    """Broadcast between the leaders of the largest groups first, then inside each group."""
    return concatenate(*(run_among_leaders(BCAST, level, rank, [(0,)], inside(OUT), root)
                         for level in levels(topology, rank)))


def reduce(rank: int, topology: Topology, root: int) -> Program:
    """Reduce inside the smallest groups first, last between the leaders of the largest."""
    place = OUT if rank == root else WORK
    return place_input(place, concatenate(
        *(run_among_leaders(REDUCE, level, rank, [(0,)], inside(place), root)
          for level in reversed(levels(topology, rank)))), 1)


def allgather(rank: int, topology: Topology) -> Program:
    """Gather each group's blocks at its leader; leaders swap them and broadcast everything."""
    top, *inner = levels(topology, rank)
    place, everything = inside(OUT), [range(topology.size)]
    return concatenate(
        Program(((copy(at(OUT, rank), at(IN, 0)),),)),
        *(run_among_leaders(GATHER, level, rank, level.groups, place)
          for level in reversed(inner)),
        run_among_leaders(ALLGATHER, top, rank, top.groups, place),
        *(run_among_leaders(BCAST, level, rank, everything, place) for level in inner))


def reduce_scatter(rank: int, topology: Topology) -> Program:
    """Reduce everything to the leaders, which reduce-scatter groups of blocks and hand them out."""
    top, *inner = levels(topology, rank)
    place, everything = inside(WORK), [range(topology.size)]

    def result(level: GroupLevel, buffer: str) -> dict[str, Place]:
        """Return the slot of the result on a rank that is alone on its node."""
        alone = len(level.groups[level.mine]) == 1
        return {**place, buffer: lambda keys: (at(OUT, 0),)} if alone else place

    return place_input(WORK, concatenate(
        *(run_among_leaders(REDUCE, level, rank, everything, place)
          for level in reversed(inner)),
        run_among_leaders(REDUCE_SCATTER, top, rank, top.groups, result(top, IN)),
        *(run_among_leaders(SCATTER, level, rank, level.groups, result(level, OUT))
          for level in inner)), topology.size)


def barrier(rank: int, topology: Topology) -> Program:
    """Tokens go up to the leaders, which run a dissemination barrier and release their groups."""
    top, *inner = levels(topology, rank)

    def tokens(level: GroupLevel, build: Callable[[int, int], Program]) -> Program:
        leaders = level.leaders()
        if leaders[level.mine] != rank:
            return Program(())
        return embed(build(level.mine, len(leaders)), {}, lambda key: (), {}, leaders)

    return concatenate(*(tokens(level, _reduce_to_root) for level in reversed(inner)),
                       tokens(top, partial(dissemination.barrier, k=2)),
                       *(tokens(level, _leave) for level in inner))


def _reduce_to_root(rank: int, size: int) -> Program:
    return Program(tuple(tree_walks.fan_in(rank, trees.knomial(rank, size, 0))))


def _leave(rank: int, size: int) -> Program:
    return Program(tuple(tree_walks.fan_out(trees.knomial(rank, size, 0))))
