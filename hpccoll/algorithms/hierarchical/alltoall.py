"""Alltoall on groups: blocks travel together as far as they go the same way.

* **Two-phase**: inside its group a rank hands every other rank the blocks for the ranks of that
  rank's index in all groups; then ranks of equal index exchange across groups what they have
  collected. In groups of different sizes the rank of index x mod size serves index x: rank
  (g, v) sends to (h, x) if and only if v = x mod size of g, so both ends know the message.
  The exchange inside a group is done the same way if it consists of smaller groups.
* **Leader**: blocks are gathered at the leaders, which exchange them and hand them out. A leader
  handles size of its group times p blocks one by one: for few ranks and tiny blocks.

Both send fewer and longer messages than a flat exchange, and carry blocks through ranks that do
not know their sizes: all blocks must have one size.
Source: node-aware alltoall of mpi-advance (Bienz et al.); leader: MPICH (alpha). Ragged groups and
more than two levels are our own.
Rounds, for p = m0 x m1 x ... ranks, m0 the number of the largest groups: two-phase sum of (m - 1);
leader m0 - 1, and 2 floor(log2 m) for every other level. Sent by two-phase: sum of n(m-1)/m, of
which n(m0-1)/m0 between the largest groups, as in a flat exchange, but in m0-1 messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import chain, product

from hpccoll.algorithms.flat import pairwise
from hpccoll.algorithms.hierarchical.composition import WORK, GroupLevel, levels
from hpccoll.algorithms.hierarchical.exchanges import GATHER, SCATTER, run_among_leaders
from hpccoll.ir.collectives import ALLTOALL, IN, OUT, slot_keys
from hpccoll.ir.extents import merge_parts
from hpccoll.ir.passes import Piece, Place, allot, concatenate, embed, runs
from hpccoll.ir.schedule import Program, Span, at
from hpccoll.ir.topology import Topology


def ends(size: int) -> tuple[Place, Place]:
    """Return the slots of a rank's own blocks: ``in`` by destination, ``out`` by source."""
    return (lambda keys: runs(IN, [key % size for key in keys]),
            lambda keys: runs(OUT, [key // size for key in keys]))


def two_phase(rank: int, topology: Topology) -> Program:
    """Exchange inside the group by index of the destination, then across between equal indices."""
    level, size = levels(topology, rank)[0], topology.size
    group, count = level.groups[level.mine], len(level.groups)
    index, width = rank - group.start, len(group)
    given, wanted = ends(size)
    # What waits between the phases, in the order in which the second one sends it.
    served = [to for g in level.groups for to in g[index::width] if to != rank]
    waiting = {frm * size + to: slot for slot, (to, frm) in enumerate(product(served, group))}

    def sibling_spans(keys: Sequence[int]) -> Sequence[Span]:
        return merge_parts(at(OUT, key // size) if key % size == rank else at(WORK, waiting[key])
                           for key in keys)

    def inside(key: int) -> list[Piece]:
        frm, via = divmod(key, width)
        return [Piece(group, [group[frm] * size + to
                              for g in level.groups for to in g[via::width]])]

    def remote_pieces(key: int) -> list[Piece]:
        source, target = (level.groups[i] for i in divmod(key, count))
        return [Piece(players(i), [frm * size + target[i] for frm in source])
                for i in range(index, len(target), width)]

    @cache
    def players(i: int) -> list[int]:
        return [g.start + i % len(g) for g in level.groups]

    outer = embed(pairwise.alltoall(level.mine, count),
                  slot_keys(ALLTOALL, level.mine, count), remote_pieces,
                  {IN: given if width == 1 else sibling_spans, OUT: wanted})
    if width == 1:
        return outer
    inner = embed(two_phase(index, Topology(level.shape(level.mine))),
                  slot_keys(ALLTOALL, index, width), inside, {IN: given, OUT: sibling_spans})
    return allot(concatenate(inner, outer), WORK, list(waiting))


def leader(rank: int, topology: Topology) -> Program:
    """Gather at the leaders of ever larger groups, exchange, and scatter back down."""
    around, size = levels(topology, rank), topology.size
    top, *inner = around
    leaders, count = top.leaders(), len(top.groups)
    # The largest group that the rank leads. Its leader keeps what the group sends, by source, and
    # after it what the group receives, by destination; other ranks know only their own blocks.
    led = next(level.groups[level.mine] for level in around
               if level.groups[level.mine].start == rank)
    half = len(led) * size

    def rows(keys: Sequence[int]) -> Sequence[Span]:
        return runs(WORK, [key - rank * size for key in keys])

    def columns(keys: Sequence[int]) -> Sequence[Span]:
        return runs(WORK, [half + (key % size - rank) * size + key // size for key in keys])

    def place(level: GroupLevel) -> tuple[Place, Place]:
        return ends(size) if len(level.groups[level.mine]) == 1 else (rows, columns)

    def remote_pieces(key: int) -> list[Piece]:
        source, target = (top.groups[i] for i in divmod(key, count))
        return [Piece(leaders, [frm * size + to for frm in source for to in target])]

    up = (run_among_leaders(GATHER, level, rank,
                            [sent_by(group, size) for group in level.groups],
                            {IN: place(level)[0], OUT: rows}) for level in reversed(inner))
    down = (run_among_leaders(SCATTER, level, rank,
                              [received_by(group, size) for group in level.groups],
                              {IN: columns, OUT: place(level)[1]}) for level in inner)
    exchanged = Program(())
    if leaders[top.mine] == rank:
        exchanged = embed(pairwise.alltoall(top.mine, count), slot_keys(ALLTOALL, top.mine, count),
                          remote_pieces, dict(zip((IN, OUT), place(top))))
    kept = (*sent_by(led, size), *received_by(led, size)) if len(led) > 1 else ()
    return allot(concatenate(*up, exchanged, *down), WORK, kept)


def sent_by(group: range, size: int) -> Sequence[int]:
    """All blocks that start in a group, by source."""
    return range(group.start * size, group.stop * size)


def received_by(group: range, size: int) -> Sequence[int]:
    """All blocks that end in a group, by destination."""
    columns = [range(to, size * size, size) for to in group]
    return columns[0] if len(columns) == 1 else list(chain.from_iterable(columns))
