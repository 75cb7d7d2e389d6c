"""Where a schedule can be changed: drawing a round or a step, and putting others in its place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import cast

from hpccoll.ir.in_network import InNetwork
from hpccoll.ir.order import Waits
from hpccoll.ir.schedule import COPY, RECV, REDUCE, SEND, Program, Round, Span, Step
from hpccoll.ir.schedule import at as slot

#: The programs of all ranks.
Written = list[Program]


def replaced(programs: Written, rank: int, rounds: Sequence[Round],
             scratch: Sequence[int] | None = None) -> Written:
    """The same programs with another one for a rank; rounds without steps are left out."""
    old = programs[rank]
    # In lanes, others may wait for a round that is empty.
    kept = tuple(tuple(steps) for steps in rounds if steps or old.after)
    program = Program(kept, old.scratch if scratch is None else tuple(scratch),
                      carried(old.after, old.rounds, kept))
    return [*programs[:rank], program, *programs[rank + 1:]]


def carried(waits: Waits, old: Sequence[object], new: Sequence[object]) -> Waits:
    """What changed rounds wait for: each for what it, or the one in its place, waited for."""
    if not waits:
        return ()
    places = {id(item): place for place, item in enumerate(old)}
    origin = [place if place < len(old) and old[place] is item
              else places.get(id(item), min(place, len(old) - 1))
              for place, item in enumerate(new)]
    return tuple(tuple(other for other in range(place) if origin[other] in waits[origin[place]])
                 for place in range(len(new)))


def draw_round(draw: Random, programs: Written, most: int = 0) -> tuple[int, int] | None:
    """A rank, and one of its rounds that has ``most`` rounds after it."""
    places = [(rank, i) for rank, program in enumerate(programs)
              for i in range(len(program.rounds) - most)]
    return draw.choice(places) if places else None


def draw_step(draw: Random, programs: Written, good: Callable[[Step], object] = bool
          ) -> tuple[int, int, int, Step] | None:
    """A rank, the number of a round and of a step of it, and the step."""
    places = [(rank, i, j, step) for rank, program in enumerate(programs)
              for i, steps in enumerate(program.rounds) for j, step in enumerate(steps)
              if good(step)]
    return draw.choice(places) if places else None


def rounds_mutation(most: int, change: Callable[[Random, list[Round], int], None]
                    ) -> Callable[[Random, Written], Written | None]:
    """A kind that changes a list of rounds at a place."""
    def mutate(draw: Random, programs: Written) -> Written | None:
        place = draw_round(draw, programs, most)
        if place is None:
            return None
        rank, i = place
        rounds = list(programs[rank].rounds)
        change(draw, rounds, i)
        return replaced(programs, rank, rounds)
    return mutate


def step_mutation(good: Callable[[Step], object],
                  change: Callable[[Random, Step, Written, int], Sequence[Step] | None]
                  ) -> Callable[[Random, Written], Written | None]:
    """A kind that puts other steps, or none, in the place of one."""
    def mutate(draw: Random, programs: Written) -> Written | None:
        place = draw_step(draw, programs, good)
        if place is None:
            return None
        rank, i, j, step = place
        steps = change(draw, step, programs, rank)
        return None if steps is None else with_steps(programs, rank, i, j, steps)
    return mutate


def with_steps(programs: Written, rank: int, i: int, j: int, steps: Sequence[Step]) -> Written:
    rounds = list(programs[rank].rounds)
    rounds[i] = (*rounds[i][:j], *steps, *rounds[i][j + 1:])
    return replaced(programs, rank, rounds)


def both_mutation(change: Callable[[Random, tuple[Span, ...]], tuple[Span, ...] | None]
                  ) -> Callable[[Random, Written], Written | None]:
    """A kind that changes both ends of a message alike; ``None`` takes the message away."""
    def mutate(draw: Random, programs: Written) -> Written | None:
        place = draw_step(draw, programs, lambda step: step.kind == SEND and step.spans
                          and not through_network(step))
        if place is None:
            return None
        rank, i, j, step = place
        peer = cast(int, step.peer)
        turn = sum(s.kind == SEND and s.peer == step.peer
                   for steps in programs[rank].rounds[:i] for s in steps) + sum(
                       s.kind == SEND and s.peer == step.peer for s in programs[rank].rounds[i][:j])
        ends = [(k, m, s) for k, steps in enumerate(programs[peer].rounds)
                for m, s in enumerate(steps) if s.kind == RECV and s.peer == rank]
        if turn >= len(ends):
            return None
        k, m, other = ends[turn]
        seed = draw.getrandbits(32)
        for r, x, y, s in ((rank, i, j, step), (peer, k, m, other)):
            spans = change(Random(seed), s.spans)
            programs = with_steps(programs, r, x, y,
                                  [] if spans is None else [s._replace(spans=spans)])
        return programs
    return mutate


def is_message(step: Step) -> bool:
    return step.kind in (SEND, RECV)


def through_network(step: Step) -> bool:
    return isinstance(step.peer, InNetwork)


def has_spans(step: Step) -> bool:
    return bool(step.spans)


def wide(step: Step) -> bool:
    return is_message(step) and sum(s.stop - s.start for s in step.spans) > 1


def is_local(step: Step) -> bool:
    return step.kind in (COPY, REDUCE)


def receives(step: Step) -> bool:
    return step.kind == RECV


def sends(step: Step) -> bool:
    return step.kind == SEND


def single_slots(spans: tuple[Span, ...]) -> list[Span]:
    return [slot(span.buffer, i) for span in spans for i in range(span.start, span.stop)]
