"""Swing: most data between the nearest ranks, and partners that are not as far as powers of two.

The reduce-scatter takes steps 0, 1, 2, ... of :mod:`~hpccoll.algorithms.parts.swing_routes`, to
partners 1, 1, 3, 5, 11, ... ranks away, and sends every block in the first step of its route; the
allgather runs backwards. Scratch holds blocks in the order of their routes: what a step sends is
one slice. An allreduce needs no scratch if such an order of its vector suits all ranks (up to 128
ranks all multiples of 8). Distances are two thirds of powers of two, so fewer blocks cross between
groups of ranks than with other algorithms of so few rounds, unless sizes of groups are powers of
two.
Steps need an even number of ranks P: of an odd one, the last rank exchanges single blocks with
their owners, in every step as many as others exchange.
Source: De Sensi et al., "Swing: Short-cutting Rings for Higher Bandwidth Allreduce", NSDI 2024;
"Bine Trees: Enhancing Collective Operations by Optimizing Communication Locality", SC 2025, arXiv
2508.17311 (blocks in order, for powers of two).
Rounds: ceil(log2 P) for each half, P = p or p - 1. Sent: n(p-1)/p for each half.

    p = 16: reduce-scatter of rank 0 sends 8, 4, 2, 1 blocks to ranks 1, 15, 3, 11
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial

from hpccoll.algorithms.parts.swing_routes import Move, partner, routes
from hpccoll.ir.collectives import IN, OUT, TMP
from hpccoll.ir.passes import runs
from hpccoll.ir.schedule import LEFT, RIGHT, Program, Round, Span, at, copy, recv, reduce, send

#: Returns the memory of some slots of scratch, as the spans of each message.
Place = Callable[..., Sequence[Sequence[Span]]]


def allreduce(rank: int, size: int) -> Program:
    """Halve with partners 1, 1, 3, 5, 11, ... away, most to the nearest, then retrace."""
    ring = size - size % 2
    order, moves = routes(ring)
    part = parts(ring)
    if rank == ring:
        place = partial(at, OUT) if part is None else lambda block: at(OUT, part[block])
        return Program(((copy(at(OUT, 0, size), at(IN, 0, size)),),
                        *(_hand_out(rank, place, move, order) for move in moves),
                        *(_hand_back(rank, place, move, order) for move in reversed(moves))))
    keys = layout(rank, size)
    if part is None:
        return Program((tuple(copy(at(TMP, slot), at(IN, key)) for slot, key in enumerate(keys)),
                        *(_combine(rank, size, move, scratch) for move in moves),
                        *(_collect(rank, size, move, scratch) for move in reversed(moves)),
                        tuple(copy(at(OUT, key), at(TMP, slot)) for slot, key in enumerate(keys))),
                       keys)

    def slices(*spans: Span) -> Sequence[Sequence[Span]]:
        return [(span,) for span in runs(OUT, sorted(
            part[keys[slot]] for span in spans for slot in range(span.start, span.stop)))]

    return Program(((copy(at(OUT, 0, size), at(IN, 0, size)),),
                    *(_combine(rank, size, move, slices) for move in moves),
                    *(_collect(rank, size, move, slices) for move in reversed(moves))))


def reduce_scatter(rank: int, size: int) -> Program:
    """Halve with partners 1, 1, 3, 5, 11, ... away, in scratch; the last round ends in ``out``."""
    ring = size - size % 2
    order, moves = routes(ring)
    if rank == ring:
        return Program(((copy(at(TMP, 0, size), at(IN, 0, size)),),
                        *(_hand_out(rank, partial(at, TMP), move, order) for move in moves),
                        (copy(at(OUT, 0), at(TMP, rank)),)), range(size))
    keys = layout(rank, size)
    *most, (give, take, *others) = (_combine(rank, size, move, scratch) for move in moves)
    return Program((tuple(copy(at(TMP, slot), at(IN, key)) for slot, key in enumerate(keys)),
                    *most, (give, recv(take.peer, at(OUT, 0)), *others,
                            reduce(at(OUT, 0), at(TMP, 0), RIGHT))), keys)


def allgather(rank: int, size: int) -> Program:
    """Collect from partners ..., 11, 5, 3, 1, 1 away, in scratch; put the blocks in place."""
    ring = size - size % 2
    order, moves = routes(ring)
    if rank == ring:
        return Program(((copy(at(OUT, rank), at(IN, 0)),),
                        *(_hand_back(rank, partial(at, OUT), move, order)
                          for move in reversed(moves))))
    keys = layout(rank, size)
    return Program(((copy(at(TMP, 0), at(IN, 0)),),
                    *(_collect(rank, size, move, scratch) for move in reversed(moves)),
                    tuple(copy(at(OUT, key), at(TMP, slot)) for slot, key in enumerate(keys))),
                   keys)


def scratch(*spans: Span) -> Sequence[Sequence[Span]]:
    """Return slots of scratch unchanged, as one message."""
    return [spans]


@lru_cache(maxsize=64)
def parts(ring: int) -> tuple[int, ...] | None:
    """The part of the vector that is each block of an allreduce, in the order of rank 0's routes.

    Any rank may reduce any part. In this order few slices move: one in every step, if the number
    of ranks is a power of two or three times one. ``None`` where they are many for some ranks.

    >>> parts(6), parts(26)
    ((0, 4, 3, 1, 5, 2, 6), None)
    """
    order, moves = routes(ring)
    part = sorted(range(ring + 1), key=(*order, ring).__getitem__)
    for rank in (1, ring // 2, ring - 1):
        tails = [sorted(part[partner(rank, offset, ring)]
                        for offset in order[move.tail.start:move.tail.stop]) for move in moves]
        if sum(len(runs(OUT, tail)) for tail in tails) > 2 * len(moves):
            return None
    return tuple(part)


def layout(rank: int, size: int) -> list[int]:
    """Return the block in each slot of scratch; for odd sizes, that of the last rank is last."""
    ring = size - size % 2
    return [partner(rank, offset, ring) for offset in routes(ring)[0]] + [ring] * (size % 2)


def served_ranks(move: Move, order: Sequence[int]) -> Sequence[int]:
    """The ranks with which a last rank that is one too many exchanges blocks in a step.

    They are those with the numbers of the offsets that move, so its port is as busy as others'.
    """
    start, stop = move.tail.start, move.tail.stop
    return order[start - (start == 1):stop]


def _combine(rank: int, size: int, move: Move, place: Place) -> Round:
    peer, last = partner(rank, move.reach, size - size % 2), size - 1
    steps = [send(peer, *spans) for spans in place(move.tail)]
    steps += [recv(peer, *spans, reduce=LEFT) for spans in place(*move.front)]
    if size % 2 and rank in served_ranks(move, routes(last)[0]):
        (given,), (own,) = place(at(TMP, last)), place(at(TMP, 0))
        steps += (send(last, *given), recv(last, *own, reduce=LEFT))
    return tuple(steps)


def _collect(rank: int, size: int, move: Move, place: Place) -> Round:
    peer, last = partner(rank, move.reach, size - size % 2), size - 1
    steps = [send(peer, *spans) for spans in place(*move.front)]
    steps += [recv(peer, *spans) for spans in place(move.tail)]
    if size % 2 and rank in served_ranks(move, routes(last)[0]):
        (own,), (taken,) = place(at(TMP, 0)), place(at(TMP, last))
        steps += (send(last, *own), recv(last, *taken))
    return tuple(steps)


def _hand_out(last: int, place: Callable[[int], Span], move: Move, order: Sequence[int]) -> Round:
    own = place(last)
    return tuple(step for rank in served_ranks(move, order)
                 for step in (send(rank, place(rank)), recv(rank, own, reduce=LEFT)))


def _hand_back(last: int, place: Callable[[int], Span], move: Move, order: Sequence[int]) -> Round:
    own = place(last)
    return tuple(step for rank in served_ranks(move, order)
                 for step in (send(rank, own), recv(rank, place(rank))))
