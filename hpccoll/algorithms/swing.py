"""Swing: most data between the nearest ranks, and partners that are not as far as powers of two.

The reduce-scatter takes steps 0, 1, 2, ... of :mod:`hpccoll.algorithms.routes`, to partners 1, 1,
3, 5, 11, ... ranks away, and sends every block in the first step of its route; the allgather runs
backwards. Scratch holds blocks in the order of their routes: what a step sends is one slice. An
allreduce needs no scratch: its vector is cut in such an order. Distances are two thirds of powers
of two, so fewer blocks cross between groups of ranks than with other algorithms of so few rounds,
unless the sizes of groups are powers of two.
Steps need an even number of ranks P: of an odd one, the last rank exchanges single blocks with
their owners, in every step as many as others exchange.
Source: De Sensi et al., "Swing: Short-cutting Rings for Higher Bandwidth Allreduce", NSDI 2024;
"Bine Trees: Enhancing Collective Operations by Optimizing Communication Locality", SC 2025, arXiv
2508.17311 (blocks in order, for powers of two).
Rounds: ceil(log2 P) for each half, P = p or p - 1. Sent: n(p-1)/p for each half.

    p = 16: reduce-scatter of rank 0 sends 8, 4, 2, 1 blocks to ranks 1, 15, 3, 11
"""

from __future__ import annotations

from functools import partial
from typing import Callable, Sequence

from hpccoll.algorithms.routes import Move, partner, routes
from hpccoll.collective import IN, OUT, TMP
from hpccoll.passes import runs
from hpccoll.schedule import LEFT, RIGHT, Program, Round, Span, at, copy, recv, reduce, send

#: Finds the memory that stands for some slots of scratch.
Place = Callable[..., Sequence[Span]]


def allreduce(rank: int, size: int) -> Program:
    """Halve with partners 1, 1, 3, 5, 11, ... away, most to the nearest, then retrace."""
    ring = size - size % 2
    order, moves = routes(ring)
    # Any rank may reduce any part of a vector. In the order of rank 0's routes few slices move:
    # one, if p is a power of two or three times one.
    part = {block: slot for slot, block in enumerate((*order, ring))}
    parts = [part[block] for block in layout(rank, size)] if rank < ring else ()

    def place(*spans: Span) -> Sequence[Span]:
        return runs(OUT, sorted(parts[slot] for span in spans
                                for slot in range(span.start, span.stop)))

    first = (copy(at(OUT, 0, size), at(IN, 0, size)),)
    if rank == ring:
        return Program((first, *(_hand_out(rank, lambda block: at(OUT, part[block]), move, order)
                                 for move in moves),
                        *(_hand_back(rank, lambda block: at(OUT, part[block]), move, order)
                          for move in reversed(moves))))
    return Program((first, *(_combine(rank, size, move, place) for move in moves),
                    *(_collect(rank, size, move, place) for move in reversed(moves))))


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


def scratch(*spans: Span) -> Sequence[Span]:
    """Leave slots of scratch what they are."""
    return spans


def layout(rank: int, size: int) -> list[int]:
    """The block in each slot of scratch; that of a last rank which is one too many comes last."""
    ring = size - size % 2
    return [partner(rank, offset, ring) for offset in routes(ring)[0]] + [ring] * (size % 2)


def served(move: Move, order: tuple[int, ...]) -> tuple[int, ...]:
    """The ranks with which a last rank that is one too many exchanges blocks in a step.

    They are those with the numbers of the offsets that move, so its port is as busy as others'.
    """
    start, stop = move.tail.start, move.tail.stop
    return order[start - (start == 1):stop]


def _combine(rank: int, size: int, move: Move, place: Place) -> Round:
    peer, last = partner(rank, move.reach, size - size % 2), size - 1
    steps = (send(peer, *place(move.tail)), recv(peer, *place(*move.front), reduce=LEFT))
    if size % 2 and rank in served(move, routes(last)[0]):
        steps += (send(last, *place(at(TMP, last))), recv(last, *place(at(TMP, 0)), reduce=LEFT))
    return steps


def _collect(rank: int, size: int, move: Move, place: Place) -> Round:
    peer, last = partner(rank, move.reach, size - size % 2), size - 1
    steps = (send(peer, *place(*move.front)), recv(peer, *place(move.tail)))
    if size % 2 and rank in served(move, routes(last)[0]):
        steps += (send(last, *place(at(TMP, 0))), recv(last, *place(at(TMP, last))))
    return steps


def _hand_out(last: int, place: Callable[[int], Span], move: Move, order: Sequence[int]) -> Round:
    own = place(last)
    return tuple(step for rank in served(move, order)
                 for step in (send(rank, place(rank)), recv(rank, own, reduce=LEFT)))


def _hand_back(last: int, place: Callable[[int], Span], move: Move, order: Sequence[int]) -> Round:
    own = place(last)
    return tuple(step for rank in served(move, order)
                 for step in (send(rank, own), recv(rank, place(rank))))
