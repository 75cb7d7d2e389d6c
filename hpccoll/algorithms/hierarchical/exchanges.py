"""Flat algorithms as the steps of a composition: each run between the groups of a level.

A group is played by one of its ranks: always the same one, its leader (:func:`run_among_leaders`),
    or another
one for each block, its owner (:func:`exchange`).
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
    """A flat algorithm, and the collective whose slots its buffers have."""

    build: Callable[..., Program]
    slots_of: Collective

    def program(self, rank: int, size: int, nblocks: int, root: int | None,
                blocks: Callable[[int], Sequence[Piece]], place: Mapping[str, Place]) -> Program:
        """One rank's program, in terms of the blocks that its blocks consist of."""
        rooted = () if root is None else (root,)
        keys = slot_keys(self.slots_of, rank, size, *(rooted or (0,)), nblocks)
        return embed(self.build(rank, size, *rooted), keys, blocks, place)


def backwards(flat: FlatAlgorithm) -> FlatAlgorithm:
    """The same algorithm in reverse: it reduces into one place what the other spreads from it.

    Its slots stay those of the other: of an allgather backwards, a reduce-scatter in place,
    contributions are in ``out``, and the rank's own block is written to ``in``.
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
        blocks: for every block of the flat algorithm, the blocks it consists of.
        root: the rank that is the root of a rooted collective; where it is absent, the first
            leader is.
    """
    leaders = level.leaders(root)
    if leaders[level.mine] != rank:
        return Program(())
    return exchange(flat, level, [[Piece(leaders, keys)] for keys in blocks], place,
                    level.group_of(root) if flat.slots_of.rooted else None)


def on_vector(flat: FlatAlgorithm, ranks: Sequence[int], rank: int, place: Mapping[str, Place],
              root: int | None = None) -> Program:
    """Run a flat algorithm on one vector among some ranks; others do nothing.

    Args:
        root: index of the root among the ranks.
    """
    if rank not in ranks:
        return Program(())
    return flat.program(ranks.index(rank), len(ranks), 1, root,
                        lambda key: [Piece(ranks, (0,))], place)
