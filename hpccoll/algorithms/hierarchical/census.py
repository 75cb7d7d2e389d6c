"""Lane census: several ranks of a group exchange windows at once, each with another group.

Groups are the N largest ones; k ranks of each are its lanes. Every group first sums up its own
contributions x. From then on its lanes hold E, the sum of the e groups just below, e = 0 at first.
In a round of messages between groups, t lanes get sums of e+1 groups (E op x of another one), the
others sums of e (its E), which lie side by side below their own window; an exchange inside the
group adds all up, and e becomes (k+1)e + t. The numbers t are the digits of N-1 in base k+1, so E
ends as all other groups. In the first round only t lanes have anything to fetch. This suits short
vectors where ranks of a group are much nearer than others; one lane is the window between leaders.
Groups start at different places of the circle and associate differently: floating-point results
may differ between them. Groups inside of groups are passed over.
Source: :mod:`hpccoll.algorithms.flat.census`, with digits for bits; messages of many ranks:
Bienz, Olson and Gropp, "Node-Aware Improvements to Allreduce", arXiv 1910.09650 (NAP). Any number
of groups, of any sizes, is our own.
Rounds, for N groups of k ranks, k a power of two: R = ceil(log_(k+1) N) between groups, R log2 k
inside, and what the t lanes of the first round take to serve all. Sent: n in each of these.
"""

from __future__ import annotations

from collections.abc import Sequence

from hpccoll.algorithms.hierarchical.composition import LazySequence, levels
from hpccoll.algorithms.hierarchical.exchanges import ALLREDUCE, BCAST, REDUCE, on_vector
from hpccoll.algorithms.parts import trees
from hpccoll.algorithms.parts.folding import Fold
from hpccoll.ir.collectives import IN, OUT, TMP
from hpccoll.ir.passes import Place, concatenate
from hpccoll.ir.schedule import LEFT, RIGHT, Program, Span, Step, at, copy, recv, reduce, send
from hpccoll.ir.topology import Topology

OWN, RESULT, SPARE = at(TMP, 0), at(OUT, 0), at(TMP, 1)


def allreduce(rank: int, topology: Topology, k: int) -> Program:
    """Sum up inside groups, whose ranks then grow a window, each with another group a round."""
    level = levels(topology, rank)[0]
    group = level.groups[level.mine]
    lanes = min(k, level.least)
    fold, index = Fold(len(group), lanes), rank - group.start
    lane, leader = fold.virtual(index), fold.real_rank(fold.group(index))
    folded = [group[i] for i in fold.members(fold.group(index))]
    vector, root = RESULT if lane is None else OWN, folded.index(group[leader])
    parts = [Program(((copy(vector, at(IN, 0)),),)),
             on_vector(REDUCE, folded, rank, _only(vector), root)]
    if lane is not None:
        peers = LazySequence(len(level.groups), lambda number: _lanes(level.groups[number], lanes))
        parts.append(_grow_window(level.mine, lane, peers))
    parts.append(on_vector(BCAST, folded, rank, _only(RESULT), root))
    return concatenate(*parts)._replace(scratch=() if lane is None else (0, 0))


def _lanes(group: range, lanes: int) -> list[int]:
    """Return the ranks of a group that are its lanes."""
    fold = Fold(len(group), lanes)
    return [group[fold.real_rank(i)] for i in range(lanes)]


def _grow_window(mine: int, lane: int, peers: Sequence[Sequence[int]]) -> Program:
    """Grow the window of a group whose lanes hold parts of its own sum.

    Lane 0 keeps the window and reduces received data into it. The other lanes contribute received
    data to the next exchange, from two alternating buffers, because a send may still read one.

    Args:
        mine: the group.
        lane: the lane of this rank.
        peers: ranks of the lanes of all groups.
    """
    ranks = peers[mine]
    rank, count, covered = ranks[lane], len(peers), 0
    moves = digits(count, len(ranks))
    window, other = (RESULT, SPARE) if lane == 0 or len(moves) % 2 else (SPARE, RESULT)
    parts = [on_vector(ALLREDUCE, ranks, rank, _only(OWN))]
    for number, with_own in enumerate(moves):
        last = number == len(moves) - 1
        if covered:
            own, active, given = lane < with_own, ranks, window
            ahead = covered * (lane + 1) + min(lane + 1, with_own)
        else:
            # No rank has a window yet: as many lanes as can fetch own sums, then serve the others.
            heads = Fold(len(ranks), with_own, root=0)
            own, active, given = False, [ranks[heads.real_rank(i)] for i in range(with_own)], OWN
            ahead = 1 + heads.group(lane)
        to, frm = (peers[(mine + step) % count][lane] for step in (ahead, -ahead))
        before: list[Step] = []
        if own and lane == 0 and not last:
            before, given = [copy(SPARE, OWN), reduce(SPARE, window, LEFT)], SPARE
        elif own:
            before = [reduce(window, OWN, RIGHT)]
        if not covered:
            steps = [send(to, given), recv(frm, window)] if rank in active else []
        elif lane == 0:
            steps = [send(to, given), recv(frm, window, reduce=LEFT)]
        else:
            steps = [send(to, given), recv(frm, other)]
            window, other = other, window
        if lane == 0 and last and not own:
            steps.append(reduce(window, OWN, RIGHT))
        parts += [Program(tuple(tuple(part) for part in (before, steps) if part)),
                  on_vector(ALLREDUCE, active, rank, _only(window))]
        if not covered:
            served = [ranks[i] for i in heads.members(heads.group(lane))]
            head = ranks[heads.real_rank(heads.group(lane))]
            parts.append(on_vector(BCAST, served, rank, _only(window),
                                 served.index(head)))
        covered = (len(ranks) + 1) * covered + with_own
    return concatenate(*parts) if moves else Program(((copy(RESULT, OWN),),))


def _only(vector: Span) -> dict[str, Place]:
    """Map the only block of a flat algorithm to this vector, in place."""
    return dict.fromkeys((IN, OUT, TMP), lambda keys: (vector,))


def digits(count: int, lanes: int) -> list[int]:
    """Return the digits of ``count - 1`` in base ``lanes + 1``, highest first.

    >>> digits(11, 2)
    [1, 0, 1]
    """
    numerals, left = [], count - 1
    while left:
        left, digit = divmod(left, lanes + 1)
        numerals.append(digit)
    return numerals[::-1]


def rounds(topology: Topology, k: int) -> int | None:
    """Return the rounds for equal groups whose size k, a power of two, divides; in closed form."""
    size, lanes, moves = _regular(topology, k)
    if not size:
        return None
    first = sum(_doubling_rounds(t) + trees.depth(-(-lanes // t)) for t in moves[:1])
    return len(moves) * (1 + _doubling_rounds(lanes)) + first + 2 * trees.depth(-(-size // lanes))


def sent_vectors(topology: Topology, k: int) -> int | None:
    """Closed form where, moreover, a power of two of lanes fetch in the first round."""
    size, lanes, moves = _regular(topology, k)
    if not size or moves and moves[0] & (moves[0] - 1):
        return None
    first = sum(_doubling_rounds(t) + trees.degree(lanes // t) for t in moves[:1])
    return len(moves) * (1 + _doubling_rounds(lanes)) + first + trees.degree(-(-size // lanes))


def _regular(topology: Topology, k: int) -> tuple[int, int, list[int]]:
    """Return the size of a group, its lanes and the digits; zeros without a closed form."""
    groups = levels(topology, 0)[0].groups
    size = len(groups[0])
    lanes = min(k, size)
    if len(set(map(len, groups))) > 1 or size % lanes or lanes & (lanes - 1):
        return 0, 0, []
    return size, lanes, digits(len(groups), lanes)


def _doubling_rounds(size: int) -> int:
    """Return the rounds of recursive doubling."""
    bits = size.bit_length() - 1
    return bits if size == 1 << bits else bits + 2
