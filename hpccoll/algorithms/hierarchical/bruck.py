"""Lane Bruck: all ranks of a group fetch blocks at once, from different other groups.

Groups are the N largest ones, the smallest of them of k ranks. An allgather inside every group
comes first. From then on the ranks of group v hold the blocks of w groups v, v+1, ... v+w-1, with
w = 1 at first. In a round of messages between groups they fetch those of the next kw groups, or of
all that are missing: each of k ranks those of w groups, from the rank of the same index in the
first of these. In the last round several ranks may share them. An allgather inside the group
spreads what came, and w becomes (k+1)w. Every block enters a group once, as with rails, but in
fewer rounds of messages between groups, each of which costs many inside: this suits short blocks
on large groups whose ranks are much nearer. Groups inside of groups are passed over.
Source: Bienz, Gautam and Kharel, "A Locality-Aware Bruck Allgather", arXiv 2206.03564 (k-1 ranks
fetch); Huang et al., "PiP-MColl", CLUSTER 2023 (k). Groups of different sizes, and shares in the
last round, are our own.
Rounds, for N groups of k ranks: R = ceil(log_(k+1) N) between groups, (R+1) ceil(log2 k) inside.
Sent: n(p-1)/p where all ranks fetch equally much in the last round, such as for N = (k+1)^R.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from hpccoll.algorithms.flat import circulant
from hpccoll.algorithms.hierarchical.composition import inside, levels
from hpccoll.algorithms.hierarchical.ownership import cut
from hpccoll.algorithms.parts.folding import Fold
from hpccoll.ir.collectives import ALLGATHER, IN, OUT, slot_keys
from hpccoll.ir.passes import Piece, concatenate, embed, runs
from hpccoll.ir.schedule import Program, at, copy, recv, send
from hpccoll.ir.topology import Topology


def allgather(rank: int, topology: Topology) -> Program:
    """Collect inside groups, whose ranks then fetch, each from another group a round."""
    level = levels(topology, rank)[0]
    groups, mine, count = level.groups, level.mine, len(level.groups)
    group, fetching = groups[mine], level.least
    index = rank - group.start

    def shares(first: int, held: int, parts: int) -> list[Sequence[int]]:
        """Split the blocks of ``held`` groups from ``first`` on, cyclically, into parts."""
        around = (groups[(first + i) % count] for i in range(held))
        return cut(list(chain.from_iterable(around)), parts, 0)

    parts = [Program(((copy(at(OUT, rank), at(IN, 0)),),)),
             _allgather_within(index, group, [[block] for block in group])]
    for window in windows(count, fetching):
        fold, came = fetchers(count, fetching, window), []
        for number in range(fold.power):
            ahead, sharing = window * (number + 1), fold.members(number)
            held = min(window, count - ahead)
            came += shares(mine + ahead, held, len(sharing))
            if index in sharing:
                given = shares(mine, held, len(sharing))[sharing.index(index)]
                to, frm = (groups[(mine + step) % count][index] for step in (-ahead, ahead))
                parts.append(Program(((send(to, *runs(OUT, given)),
                                       recv(frm, *runs(OUT, came[index]))),)))
        parts.append(_allgather_within(index, group, came + [[]] * (len(group) - fetching)))
    return concatenate(*parts)


def _allgather_within(index: int, group: range, blocks: Sequence[Sequence[int]]) -> Program:
    """Allgather the blocks of the ranks of a group, in place."""
    size = len(group)
    return embed(circulant.allgather(index, size), slot_keys(ALLGATHER, index, size),
                 lambda key: [Piece(group, blocks[key])], inside(OUT))


def windows(count: int, fetching: int) -> list[int]:
    """Return the number of groups whose blocks a rank has before each round between groups.

    >>> windows(10, 2)
    [1, 3, 9]
    """
    widths, held = [], 1
    while held < count:
        widths.append(held)
        held *= fetching + 1
    return widths


def fetchers(count: int, fetching: int, window: int) -> Fold:
    """Return the assignment of fetching ranks to the windows of a round."""
    return Fold(fetching, min(fetching, -(-(count - window) // window)))


def rounds(topology: Topology) -> int | None:
    """Return the rounds for equal groups, in closed form."""
    groups = levels(topology, 0)[0].groups
    size = len(groups[0])
    if len(set(map(len, groups))) > 1:
        return None
    between = len(windows(len(groups), size))
    return between + (between + 1) * (size - 1).bit_length()


def sent_vectors(topology: Topology) -> int | None:
    """Closed form for groups of one size, all of whose ranks fetch equally much in all rounds."""
    groups = levels(topology, 0)[0].groups
    count, size = len(groups), len(groups[0])
    alike = len(set(map(len, groups))) == 1 and all(
        min(count - window, size * window) % window == 0
        and fetchers(count, size, window).extra == 0 for window in windows(count, size))
    return topology.size - 1 if alike else None
