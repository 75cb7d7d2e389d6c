"""Passes: transformations of programs - embedding, concatenation, reversal.

Hierarchical algorithms are composed of flat ones here. A program for a few ranks becomes part of a
parent's when its ranks, and the memory of its slots, are expressed in the parent's terms. Passes
transform one rank's program at a time and never read another rank's, so the cost of a composed
program is proportional to its own steps.

Besides ``in``, ``out`` and ``tmp`` intermediate programs may use buffers of other names;
:func:`allot` turns such a work buffer into scratch at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple, TypeAlias

from hpccoll.errors import ScheduleError
from hpccoll.ir.collectives import IN, TMP
from hpccoll.ir.extents import merge_parts
from hpccoll.ir.in_network import InNetwork, Peer, playing_ranks
from hpccoll.ir.order import one_after_another
from hpccoll.ir.schedule import COPY, LEFT, RECV, SEND, Program, Round, Span, Step

#: Callback that returns the memory of some of the parent's blocks, given their keys.
Place: TypeAlias = Callable[[Sequence[int]], Sequence[Span]]
#: Ranks of the parent that play the sub-program's ranks in one piece, and its memory.
PlacedPiece: TypeAlias = tuple[Sequence[int], Sequence[Span]]


class Piece(NamedTuple):
    """Some of the parent's blocks, as part of a sub-program's block.

    Attributes:
        ranks: the parent's rank for each of the sub-program's ranks for these blocks.
        keys: the blocks, in an order that all these ranks agree on.
    """

    ranks: Sequence[int]
    keys: Sequence[int]


def runs(buffer: str, numbers: Iterable[int]) -> tuple[Span, ...]:
    """Return spans of slots of a buffer, adjacent slots as one span."""
    if isinstance(numbers, range) and numbers.step == 1:
        return (Span(buffer, numbers.start, numbers.stop),) if numbers else ()
    spans, start, stop = [], 0, 0
    for number in numbers:
        if number != stop or start == stop:
            if start < stop:
                spans.append(Span(buffer, start, stop))
            start = number
        stop = number + 1
    return (*spans, Span(buffer, start, stop)) if start < stop else ()


def embed(program: Program, keys: Mapping[str, Sequence[int]],
          blocks: Callable[[int], Sequence[Piece]], place: Mapping[str, Place],
          ranks: Sequence[int] = ()) -> Program:
    """Rewrite a sub-program in its parent's terms.

    A message to a sub-rank becomes one message to each parent's rank that plays it for some of
    the blocks sent. Sender and receiver agree on these messages if any two ranks hold the pieces
    in which both take part in the same order. A step of blocks that consist of no pieces is
    dropped: it must not turn into an empty message, which would be sent.

    Args:
        keys: its block key of every slot of ``in`` and ``out``: see
            :func:`hpccoll.ir.collectives.slot_keys`.
        place: the parent's memory of the blocks of the sub-program's ``in`` and ``out``. If it
            names ``tmp``, the first scratch slot of each block is there; all other scratch
            slots become scratch of the result. Buffers may be given the same place only if the
            algorithm never needs a block in two of them at a time.
        ranks: the parent's rank for every sub-rank, for messages without blocks.
    """
    memory, scratch = _memory({**keys, TMP: program.scratch}, blocks, place)

    def pieces(spans: Sequence[Span]) -> Iterator[PlacedPiece]:
        for buffer, start, stop in spans:
            yield from chain.from_iterable(memory[buffer][start:stop])

    def rewrite_step(step: Step) -> Iterator[Step]:
        if step.kind not in (SEND, RECV):
            into, source = ([span for _, spans in pieces(side) for span in spans]
                            for side in (step.spans, step.source))
            for here, there in _pair_slots(into, source):
                if here != there or step.kind != COPY:
                    yield step._replace(spans=(here,), source=(there,))
        elif not step.spans:
            yield step._replace(peer=playing_ranks(step.peer, ranks))
        else:
            messages: dict[Peer, list[Span]] = {}
            before: Sequence[int] = ()
            for players, spans in pieces(step.spans):
                if players is not before:  # adjacent blocks mostly have the same ranks
                    before, mine = players, messages.setdefault(
                        playing_ranks(step.peer, players), [])
                mine.extend(spans)
            for peer, spans in messages.items():
                if spans:
                    yield step._replace(peer=peer, spans=tuple(merge_parts(spans)))

    return Program(tuple(tuple(chain.from_iterable(map(rewrite_step, steps)))
                         for steps in program.rounds), tuple(scratch), program.after)


def _memory(keys: Mapping[str, Sequence[int]], blocks: Callable[[int], Sequence[Piece]],
            place: Mapping[str, Place]) -> tuple[dict[str, list[list[PlacedPiece]]], list[int]]:
    """Return the pieces of every slot, and the scratch of those without a place."""
    scratch: list[int] = []
    known: dict[tuple[Place, int], list[PlacedPiece]] = {}

    def place_pieces(find: Place, key: int) -> list[PlacedPiece]:
        if (find, key) not in known:
            known[find, key] = [(ranks, find(inner)) for ranks, inner in blocks(key)]
        return known[find, key]

    def fresh(key: int) -> list[PlacedPiece]:
        pieces: list[PlacedPiece] = []
        for ranks, inner in blocks(key):
            pieces.append((ranks, runs(TMP, range(len(scratch), len(scratch) + len(inner)))))
            scratch.extend(inner)
        return pieces

    memory: dict[str, list[list[PlacedPiece]]] = {}
    for buffer, held in keys.items():
        taken = set() if buffer in place else set(held)
        memory[buffer] = []
        for key in held:
            again = key in taken
            memory[buffer].append(fresh(key) if again else place_pieces(place[buffer], key))
            taken.add(key)
    return memory, scratch


def _pair_slots(into: Sequence[Span], source: Sequence[Span]) -> list[tuple[Span, Span]]:
    """Pair the slots on both sides of a local step, in few and long spans."""
    if into == source:
        return list(zip(into, source))
    pairs: list[tuple[Span, Span]] = []
    for here, there in zip(_single(into), _single(source), strict=True):
        longer = (pairs[-1][0].join(here), pairs[-1][1].join(there)) if pairs else (None, None)
        if longer[0] and longer[1]:
            pairs[-1] = longer[0], longer[1]
        else:
            pairs.append((here, there))
    return pairs


def _single(spans: Iterable[Span]) -> Iterator[Span]:
    return (Span(buffer, n, n + 1) for buffer, start, stop in spans for n in range(start, stop))


def rename_buffers(program: Program, names: Mapping[str, tuple[str, int]]) -> Program:
    """Move whole buffers: to the buffer of the given name, from the given slot on."""
    def move_spans(spans: tuple[Span, ...]) -> tuple[Span, ...]:
        return tuple(Span(names[buffer][0], start + names[buffer][1], stop + names[buffer][1])
                     if buffer in names else Span(buffer, start, stop)
                     for buffer, start, stop in spans)

    return program._replace(rounds=tuple(
        tuple(step._replace(spans=move_spans(step.spans), source=move_spans(step.source))
              for step in steps) for steps in program.rounds))


def relabel_ranks(program: Program, order: Sequence[int],
                  key_of: Callable[[int], int] | None = None,
                  buffers: Collection[str] = ()) -> Program:
    """Rewrite a program of positions for the ranks at these positions.

    Args:
        key_of: maps a block key in terms of positions to one of ranks; identity if omitted.
        buffers: those with a slot for every position, converted to one for every rank.
    """
    def slots(span: Span) -> Sequence[int]:
        numbers = order if span.buffer in buffers else range(span.stop)
        return numbers[span.start:span.stop]

    def rewrite_step(step: Step) -> Iterator[Step]:
        if step.kind in (SEND, RECV):
            spans = merge_parts(chain.from_iterable(runs(span.buffer, slots(span))
                                                    for span in step.spans))
            yield step._replace(peer=playing_ranks(step.peer, order), spans=tuple(spans))
        elif not buffers:
            yield step
        else:
            (here,), (there,) = step.spans, step.source
            into, source, start = slots(here), slots(there), 0
            for stop in range(1, len(into) + 1):
                if stop == len(into) or (into[stop] - into[stop - 1],
                                         source[stop] - source[stop - 1]) != (1, 1):
                    yield step._replace(
                        spans=(Span(here.buffer, into[start], into[stop - 1] + 1),),
                        source=(Span(there.buffer, source[start], source[stop - 1] + 1),))
                    start = stop

    return Program(tuple(tuple(chain.from_iterable(map(rewrite_step, steps)))
                         for steps in program.rounds),
                   tuple(map(key_of, program.scratch)) if key_of else program.scratch,
                   program.after)


def allot(program: Program, buffer: str, keys: Sequence[int]) -> Program:
    """Convert a work buffer with slots of the given blocks' sizes to scratch."""
    moved = rename_buffers(program, {buffer: (TMP, len(program.scratch))})
    return moved._replace(scratch=(*program.scratch, *keys) if program.scratch else keys)


def concatenate(*programs: Program) -> Program:
    """Concatenate programs; each has its own scratch."""
    apart, base = [], 0
    for program in programs:
        apart.append(rename_buffers(program, {TMP: (TMP, base)}) if base else program)
        base += len(program.scratch)
    held = [p.scratch for p in apart if p.scratch]
    return Program(tuple(chain.from_iterable(p.rounds for p in apart)),
                   held[0] if len(held) == 1 else tuple(chain.from_iterable(held)),
                   one_after_another(apart))


def reverse(program: Program, side: str = LEFT) -> Program:
    """Reverse a program: data spread from one place is reduced into that place.

    Turns a broadcast into a reduction, and an allgather into a reduce-scatter, of operators that
    commute. The former ``out`` must hold the contributions at the start, and results are written
    to the former ``in``. Every rank must receive every block at most once, or a contribution
    would count twice. A multicast becomes a reduction in the network.
    """
    if program.after:
        raise ScheduleError("cannot reverse a program with lanes: reverse each lane")
    return program._replace(rounds=tuple(chain.from_iterable(
        _reverse_round(steps, side) for steps in reversed(program.rounds))))


def _reverse_round(steps: Round, side: str) -> list[Round]:
    """Return the reversed rounds of one round: local steps first, then messages."""
    local, messages = [], []
    for step in reversed(steps):
        network = step.peer if isinstance(step.peer, InNetwork) else None
        peer = step.peer if network is None else network.backwards
        if step.kind == SEND and not (network and network.reduces):
            messages.append(step._replace(kind=RECV, peer=peer, side=side if step.spans else ""))
        elif step.kind == RECV and not step.side and not (network and network.reduces):
            messages.append(step._replace(kind=SEND, peer=peer))
        elif step.kind == COPY and all(span.buffer == IN for span in step.source):
            local.append(step._replace(spans=step.source, source=step.spans))
        else:
            raise ScheduleError(f"cannot reverse '{step}': it is not a message of data or a copy "
                                "of the input")
    return [tuple(part) for part in (local, messages) if part]
