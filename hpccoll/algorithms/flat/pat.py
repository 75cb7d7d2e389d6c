"""PAT: reduce-scatter and allgather over distances 1, 2, 4, ... with most data between neighbours.

Seen from rank r, block s is the block of rank r + s. Round d of the reduce-scatter sends the
partial sums of all s that are odd multiples of 2^d to rank r + 2^d, where they are blocks
s - 2^d, multiples of 2^(d+1). The allgather runs backwards. No rank is folded and no byte
moves twice, whatever p is. Scratch holds the blocks in the order of their bit-reversed
numbers: the multiples of 2^d are then always at the front, and what a round moves is the tail
of them, one slice; what it meets is the front, with at most one gap.
Source: Jeaugey, "PAT", arXiv 2506.20252 (NCCL); Loch and Koslovski, "Sparbit", SBAC-PAD 2021.
Rounds: q = ceil(log2 p) for each half, 2q for allreduce. Sent: n(p-1)/p for each half.

    p = 13: reduce-scatter sends 6, 3, 2, 1 blocks to ranks r+1, r+2, r+4, r+8
"""

from __future__ import annotations

from hpccoll.ir.collectives import IN, OUT, TMP
from hpccoll.ir.schedule import (
    LEFT,
    RIGHT,
    Program,
    Round,
    Span,
    Step,
    at,
    copy,
    recv,
    reduce,
    send,
)


def allreduce(rank: int, size: int) -> Program:
    """Combine and collect in scratch, which keeps its order; put the blocks in place last."""
    order = layout(size)
    keys = [(rank + offset) % size for offset in order]
    load = tuple(copy(at(TMP, slot), at(IN, key)) for slot, key in enumerate(keys))
    combine = [_combine(rank, size, *part) for part in slices(order)]
    collect = [_collect(rank, size, *part) for part in reversed(slices(order))]
    store = tuple(copy(at(OUT, key), at(TMP, slot)) for slot, key in enumerate(keys))
    return Program((load, *combine, *collect, store), keys)


def reduce_scatter(rank: int, size: int) -> Program:
    """Combine in scratch; the last round has only the own block left and ends in ``out``."""
    order = layout(size)
    keys = [(rank + offset) % size for offset in order]
    rounds = [tuple(copy(at(TMP, slot), at(IN, key)) for slot, key in enumerate(keys))]
    if size == 1:
        return Program((*rounds, (copy(at(OUT, 0), at(TMP, 0)),)), keys)
    *parts, (distance, tail, _) = slices(order)
    rounds += [_combine(rank, size, *part) for part in parts]
    rounds.append((send((rank + distance) % size, tail),
                   recv((rank - distance) % size, at(OUT, 0)),
                   reduce(at(OUT, 0), at(TMP, 0), RIGHT)))
    return Program(tuple(rounds), keys)


def allgather(rank: int, size: int) -> Program:
    """Collect in scratch, then put the blocks in place."""
    order = layout(size)
    keys = [(rank + offset) % size for offset in order]
    collect = [_collect(rank, size, *part) for part in reversed(slices(order))]
    store = tuple(copy(at(OUT, key), at(TMP, slot)) for slot, key in enumerate(keys))
    return Program(((copy(at(TMP, 0), at(IN, 0)),), *collect, store), keys)


def layout(size: int) -> list[int]:
    """Return the offsets below the size, sorted by their reversed bits.

    >>> layout(6)
    [0, 4, 2, 1, 5, 3]
    """
    order = [0]
    while len(order) < size:
        order = [2 * offset for offset in order] + [2 * offset + 1 for offset in order]
    return [offset for offset in order if offset < size]


def slices(order: list[int]) -> list[tuple[int, Span, tuple[Span, ...]]]:
    """Yield for distances 1, 2, 4, ... the tail that moves and the front that it meets."""
    parts, live, distance = [], len(order), 1
    while live > 1:
        kept = (live + 1) // 2
        # The largest offset has no counterpart in the tail when one too many is kept.
        alone = order.index(2 * distance * (kept - 1)) if live % 2 else kept
        front = [at(TMP, 0, alone), at(TMP, alone + 1, kept)]
        parts.append((distance, at(TMP, kept, live),
                      tuple(span for span in front if span.start < span.stop)))
        live, distance = kept, 2 * distance
    return parts


def _combine(rank: int, size: int, distance: int, tail: Span, front: tuple[Span, ...]) -> Round:
    return (send((rank + distance) % size, tail),
            recv((rank - distance) % size, *front, reduce=LEFT))


def _collect(rank: int, size: int, distance: int, tail: Span, front: tuple[Span, ...]) -> Round:
    """Send the front, in two messages around a gap to avoid packing; receive the tail."""
    steps: list[Step] = []
    start = tail.start
    for span in front:
        stop = start + span.stop - span.start
        steps += (send((rank - distance) % size, span),
                  recv((rank + distance) % size, at(TMP, start, stop)))
        start = stop
    return tuple(steps)
