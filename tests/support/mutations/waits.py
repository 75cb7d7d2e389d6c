"""Changes to what rounds wait for: lanes, and dependencies of single rounds."""

from __future__ import annotations

from random import Random

from hpccoll.ir.order import Waits
from hpccoll.ir.schedule import SEND, Program, Round
from support.mutations.places import Written, single_slots


def relaxed(program: Program) -> Program:
    """The same rounds, each waiting only for those with which it shares a slot that one writes."""
    uses = [_uses(steps) for steps in program.rounds]
    return program._replace(after=tuple(
        tuple(other for other in range(number)
              if writes & (uses[other][0] | uses[other][1]) or uses[other][1] & reads)
        for number, (reads, writes) in enumerate(uses)))


def _uses(steps: Round) -> tuple[set[object], set[object]]:
    reads: set[object] = set()
    writes: set[object] = set()
    for step in steps:
        (reads if step.kind == SEND else writes).update(single_slots(step.spans))
        reads.update(single_slots(step.source))
    return reads, writes


def relax(draw: Random, programs: Written) -> Written | None:
    """One rank, or all, wait for no more than their memory wants."""
    chosen = range(len(programs)) if draw.random() < .5 else [draw.randrange(len(programs))]
    changed = [relaxed(program) if rank in chosen and not program.after else program
               for rank, program in enumerate(programs)]
    return changed if changed != programs else None


def _draw(draw: Random, programs: Written) -> int | None:
    ranks = [rank for rank, program in enumerate(programs) if program.after]
    return draw.choice(ranks) if ranks else None


def _with(programs: Written, rank: int, after: Waits) -> Written:
    return [*programs[:rank], programs[rank]._replace(after=after), *programs[rank + 1:]]


def drop_wait(draw: Random, programs: Written) -> Written | None:
    """A round does not wait for one that it named."""
    rank = _draw(draw, programs)
    after = programs[rank].after if rank is not None else ()
    places = [number for number, named in enumerate(after) if named]
    if rank is None or not places:
        return None
    number = draw.choice(places)
    gone = draw.choice(after[number])
    return _with(programs, rank, (*after[:number], tuple(
        other for other in after[number] if other != gone), *after[number + 1:]))


def add_wait(draw: Random, programs: Written) -> Written | None:
    """A round waits for one more that stands before it."""
    rank = _draw(draw, programs)
    after = programs[rank].after if rank is not None else ()
    if rank is None or len(after) < 2:
        return None
    number = draw.randrange(1, len(after))
    return _with(programs, rank, (*after[:number], tuple(sorted(
        {*after[number], draw.randrange(number)})), *after[number + 1:]))


def all_at_once(draw: Random, programs: Written) -> Written | None:
    """The rounds of a rank wait for nothing."""
    rank = draw.randrange(len(programs))
    return _with(programs, rank, ((),) * len(programs[rank].rounds))


def one_by_one(draw: Random, programs: Written) -> Written | None:
    """The rounds of a rank follow one another."""
    rank = _draw(draw, programs)
    if rank is None:
        return None
    rounds = tuple(filter(None, programs[rank].rounds))  # as in all programs of one lane
    return [*programs[:rank], programs[rank]._replace(rounds=rounds, after=()),
            *programs[rank + 1:]]
