"""Flat algorithms as the steps of a composition, between the groups of a level.

One rank acts for a group: always its leader (:func:`run_among_leaders`), or the owner of each block
(:func:`exchange`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from hpccoll.algorithms.flat import circulant, knomial, recursive_doubling
from hpccoll.algorithms.hierarchical.composition import GroupLevel
from hpccoll.ir import collectives
from hpccoll.ir.collectives import Collective, slot_keys
from hpccoll.ir.passes import Piece, Place, embed, reverse
from hpccoll.ir.schedule import Program


class FlatAlgorithm(NamedTuple):
    """Flat algorithm, and the collective that defines the slots of its buffers."""

    build: Callable[..., Program]
    slots_of: Collective

    def program(self, rank: int, size: int, nblocks: int, root: int | None,
                blocks: Callable[[int], Sequence[Piece]], place: Mapping[str, Place]) -> Program:
        """Return one rank's program, on the blocks that its blocks consist of."""
        rooted = () if root is None else (root,)
        keys = slot_keys(self.slots_of, rank, size, *(rooted or (0,)), nblocks)
        return embed(self.build(rank, size, *rooted), keys, blocks, place)


def backwards(flat: FlatAlgorithm) -> FlatAlgorithm:
    """Return the reversed algorithm, which reduces instead of copying.

    The slots stay: a reversed allgather is a reduce-scatter in place with the contributions in
    ``out`` that writes the rank's own block to ``in``.
    """
    return FlatAlgorithm(partial(_reverse_build, flat.build), flat.slots_of)


def _reverse_build(build: Callable[..., Program], rank: int, size: int) -> Program:
    return reverse(build(rank, size))


BCAST = FlatAlgorithm(knomial.bcast, collectives.BCAST)
REDUCE = FlatAlgorithm(knomial.reduce, collectives.REDUCE)
GATHER = FlatAlgorithm(knomial.gather, collectives.GATHER)
SCATTER = FlatAlgorithm(knomial.scatter, collectives.SCATTER)
ALLREDUCE = FlatAlgorithm(recursive_doubling.allreduce, collectives.ALLREDUCE)
ALLGATHER = FlatAlgorithm(circulant.allgather, collectives.ALLGATHER)
REDUCE_SCATTER = backwards(ALLGATHER)


def exchange(flat: FlatAlgorithm, level: GroupLevel, blocks: Sequence[Sequence[Piece]],
             place: Mapping[str, Place], root: int | None = None) -> Program:
    """Run a flat algorithm whose ranks are the groups of a level.

    Args:
        blocks: for every block of the flat algorithm, its pieces.
        root: the group that is the root of a rooted collective.
    """
    return flat.program(level.mine, len(level.groups), len(blocks), root, blocks.__getitem__,
                        place)


def run_among_leaders(flat: FlatAlgorithm, level: GroupLevel, rank: int,
                      blocks: Sequence[Sequence[int]],
                      place: Mapping[str, Place], root: int | None = None) -> Program:
    """Run a flat algorithm among the leaders of a level's groups; other ranks do nothing.

    Args:
        blocks: for every block of the flat algorithm, its blocks.
        root: root of a rooted collective; by default the first leader.
    """
    leaders = level.leaders(root)
    if leaders[level.mine] != rank:
        return Program(())
    return exchange(flat, level, [[Piece(leaders, keys)] for keys in blocks], place,
                    level.group_of(root) if flat.slots_of.rooted else None)


def on_vector(flat: FlatAlgorithm, ranks: Sequence[int], rank: int, place: Mapping[str, Place],
              root: int | None = None) -> Program:
    """Run a flat algorithm on one vector among ``ranks``; other ranks do nothing.

    Args:
        root: index of the root among the ranks.
    """
    if rank not in ranks:
        return Program(())
    return flat.program(ranks.index(rank), len(ranks), 1, root,
                        lambda key: [Piece(ranks, (0,))], place)
