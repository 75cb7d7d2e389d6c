"""Alltoall on groups: blocks travel together as far as they go the same way.

* **Two-phase**: inside its group a rank hands every other rank the blocks for the ranks of that
  rank's index in all groups; then ranks of equal index exchange across groups what they have
  collected. In groups of different sizes the rank with index x mod size serves index x. Inside
  the groups the same is done again with smaller groups, so every level is one phase.
* **Leader**: blocks are gathered at the leaders, which exchange them and hand them out.

Both send fewer and longer messages than a flat exchange, and carry blocks through ranks that do
not know their sizes: all blocks must have one size.
Source: Bienz et al., node-aware alltoall (mpi-advance); mixed-radix forwarding. Ragged groups
are our own; leader: MPICH (alpha).
Rounds of two-phase, for p = m0 x m1 x ...: sum of (m - 1). Sent: sum of n(m-1)/m, of which
n(m0-1)/m0 between the largest groups, as by every algorithm, but in m0-1 messages.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from typing import Sequence

from hpccoll.algorithms import knomial, pairwise
from hpccoll.algorithms.hierarchy import WORK, Level, among, levels
from hpccoll.collective import ALLTOALL, IN, OUT
from hpccoll.passes import Piece, allot, concatenate, embed, joined, runs, slots
from hpccoll.schedule import Program, Span, at
from hpccoll.topology import Topology


def two_phase(rank: int, topology: Topology) -> Program:
    """Exchange inside the group by index of the destination, then across between equal indices."""
    level, size = levels(topology, rank)[0], topology.size
    group, count = level.groups[level.mine], len(level.groups)
    index, width = rank - group.start, len(group)
    # What waits between the phases, in the order in which the second one sends it.
    served = [to for g in level.groups for to in g[index::width] if to != rank]
    waiting = {frm * size + to: slot for slot, (to, frm) in enumerate(product(served, group))}

    def given(keys: Sequence[int]) -> Sequence[Span]:
        return runs(IN, [key % size for key in keys])

    def between(keys: Sequence[int]) -> Sequence[Span]:
        return joined(at(OUT, key // size) if key % size == rank else at(WORK, waiting[key])
                      for key in keys)

    def wanted(keys: Sequence[int]) -> Sequence[Span]:
        return runs(OUT, [key // size for key in keys])

    def inside(key: int) -> list[Piece]:
        frm, via = divmod(key, width)
        return [Piece(group, [group[frm] * size + to for g in level.groups for to in g[via::width]])]

    def across(key: int) -> list[Piece]:
        source, target = (level.groups[i] for i in divmod(key, count))
        return [Piece(players(i), [frm * size + target[i] for frm in source])
                for i in range(index, len(target), width)]

    @lru_cache(maxsize=None)
    def players(i: int) -> list[int]:
        return [g.start + i % len(g) for g in level.groups]

    outer = embed(pairwise.alltoall(level.mine, count), slots(ALLTOALL, level.mine, count), across,
                  {IN: given if width == 1 else between, OUT: wanted})
    if width == 1:
        return outer
    inner = embed(two_phase(index, Topology(level.trees[level.mine])),
                  slots(ALLTOALL, index, width), inside, {IN: given, OUT: between})
    return allot(concatenate(inner, outer), WORK, list(waiting))


def leader(rank: int, topology: Topology) -> Program:
    """Gather at the leaders of ever larger groups, exchange, and scatter back down."""
    around, size = levels(topology, rank), topology.size
    top, *inner = around
    # The largest group that the rank leads; all others know only their own blocks. A leader keeps
    # what its group sends, by source, and then what its group receives, by destination.
    led = next(level.groups[level.mine] for level in around
               if level.groups[level.mine].start == rank)
    half, leaders = len(led) * size, top.leaders()

    def given(keys: Sequence[int]) -> Sequence[Span]:
        return runs(IN, [key % size for key in keys])

    def rows(keys: Sequence[int]) -> Sequence[Span]:
        return runs(WORK, [key - rank * size for key in keys])

    def columns(keys: Sequence[int]) -> Sequence[Span]:
        return runs(WORK, [half + (key % size - rank) * size + key // size for key in keys])

    def wanted(keys: Sequence[int]) -> Sequence[Span]:
        return runs(OUT, [key // size for key in keys])

    def sent(group: range) -> Sequence[int]:
        return range(group.start * size, group.stop * size)

    def received(group: range) -> Sequence[int]:
        return [frm * size + to for to in group for frm in range(size)]

    def across(key: int) -> list[Piece]:
        source, target = (top.groups[i] for i in divmod(key, len(top.groups)))
        return [Piece(leaders, [frm * size + to for frm in source for to in target])]

    def alone(level: Level) -> bool:
        return len(level.groups[level.mine]) == 1

    up = [among("gather", knomial.gather, level, rank, map(sent, level.groups),
                {IN: given if alone(level) else rows, OUT: rows}) for level in reversed(inner)]
    down = [among("scatter", knomial.scatter, level, rank, map(received, level.groups),
                  {IN: columns, OUT: wanted if alone(level) else columns}) for level in inner]
    exchanged = Program(())
    if rank in leaders:
        exchanged = embed(
            pairwise.alltoall(top.mine, len(top.groups)),
            slots(ALLTOALL, top.mine, len(top.groups)), across,
            {IN: given if alone(top) else rows, OUT: wanted if alone(top) else columns})
    scratch = () if len(led) == 1 else (*sent(led), *received(led))
    return allot(concatenate(*up, exchanged, *down), WORK, scratch)
