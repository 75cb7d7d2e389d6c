"""Changes aimed at memory: shared in one round, of another size, or used at another time."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from hpccoll.ir.collectives import OUT, TMP
from hpccoll.ir.schedule import COPY, RECV, SEND, Span, Step
from hpccoll.ir.schedule import at as slot
from support.mutations.places import (
    Written,
    draw_round,
    draw_step,
    is_local,
    is_message,
    replaced,
    single_slots,
    with_steps,
)


def shared_memory(first: Callable[[Step], object], second: Callable[[Step], object]
           ) -> Callable[[Random, Written], Written | None]:
    """Two steps of one round use the memory of the first."""
    def mutate(draw: Random, programs: Written) -> Written | None:
        places = [(rank, i, j, k) for rank, program in enumerate(programs)
                  for i, steps in enumerate(program.rounds) for j, one in enumerate(steps)
                  for k, other in enumerate(steps)
                  if j != k and first(one) and second(other) and one.spans and other.spans]
        if not places:
            return None
        rank, i, j, k = draw.choice(places)
        steps = programs[rank].rounds[i]
        return with_steps(programs, rank, i, k, [steps[k]._replace(spans=steps[j].spans)])
    return mutate


def scratch_mutation(change: Callable[[Random, list[int], int], None]
             ) -> Callable[[Random, Written], Written | None]:
    """A kind that changes the keys by which scratch is sized."""
    def mutate(draw: Random, programs: Written) -> Written | None:
        ranks = [rank for rank, program in enumerate(programs) if program.scratch]
        if not ranks:
            return None
        rank = draw.choice(ranks)
        keys = list(programs[rank].scratch)
        change(draw, keys, len(programs))
        return replaced(programs, rank, programs[rank].rounds, keys)
    return mutate


def other_key(draw: Random, keys: list[int], size: int) -> None:
    keys[draw.randrange(len(keys))] = draw.randrange(max(max(keys), size - 1) + 1)


def swap_keys(draw: Random, keys: list[int], size: int) -> None:
    one, other = draw.randrange(len(keys)), draw.randrange(len(keys))
    keys[one], keys[other] = keys[other], keys[one]


def drop_key(draw: Random, keys: list[int], size: int) -> None:
    del keys[draw.randrange(len(keys))]


def reuse(draw: Random, programs: Written) -> Written | None:
    """A slot of scratch is used in the place of another one, everywhere."""
    ranks = [rank for rank, program in enumerate(programs) if len(program.scratch) > 1]
    if not ranks:
        return None
    rank = draw.choice(ranks)
    old, new = draw.sample(range(len(programs[rank].scratch)), 2)

    def moved(spans: tuple[Span, ...]) -> tuple[Span, ...]:
        return tuple(slot(s.buffer, new if s == slot(TMP, old) else s.start)
                     for s in single_slots(spans))

    rounds = [tuple(step._replace(spans=moved(step.spans)) if is_message(step) else
                    step._replace(spans=moved(step.spans), source=moved(step.source))
                    if len(single_slots(step.spans)) == 1 else step for step in steps)
              for steps in programs[rank].rounds]
    return replaced(programs, rank, rounds)


def detour(key: Callable[[Random, int, int], int]
            ) -> Callable[[Random, Written], Written | None]:
    """What is received into a slot lands in new scratch first, and is copied in the next round."""
    def mutate(draw: Random, programs: Written) -> Written | None:
        place = draw_step(draw, programs, lambda s: s.kind == RECV and not s.side
                      and len(s.spans) == 1 and s.spans[0].stop == s.spans[0].start + 1
                      and s.spans[0].buffer == OUT)
        if place is None:
            return None
        rank, i, j, step = place
        program = programs[rank]
        into, = step.spans
        new = slot(TMP, len(program.scratch))
        rounds = list(program.rounds)
        rounds[i] = (*rounds[i][:j], step._replace(spans=(new,)), *rounds[i][j + 1:])
        rounds.insert(i + 1, (Step(COPY, -1, (into,), (new,)),))
        return replaced(programs, rank, rounds,
                        (*program.scratch, key(draw, into.start, len(programs))))
    return mutate


def early_copy(draw: Random, programs: Written) -> Written | None:
    """A local step moves to the front of the program."""
    place = draw_step(draw, programs, is_local)
    if place is None:
        return None
    rank, i, j, step = place
    changed = with_steps(programs, rank, i, j, [])
    return replaced(changed, rank, ((step,), *changed[rank].rounds))


def swap_spans(draw: Random, programs: Written) -> Written | None:
    """Two messages of a rank exchange their memory."""
    place = draw_round(draw, programs)
    if place is None:
        return None
    rank, i = place
    steps = programs[rank].rounds[i]
    kind = draw.choice((SEND, RECV))
    mine = [j for j, step in enumerate(steps) if step.kind == kind and step.spans]
    if len(mine) < 2:
        return None
    one, other = draw.sample(mine, 2)
    spans = {one: steps[other].spans, other: steps[one].spans}
    rounds = list(programs[rank].rounds)
    rounds[i] = tuple(step._replace(spans=spans.get(j, step.spans)) for j, step in enumerate(steps))
    return replaced(programs, rank, rounds)
