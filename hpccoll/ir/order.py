"""Order of a program's rounds: lanes, and dependencies of single rounds.

A program without :attr:`~hpccoll.ir.schedule.Program.after` is one lane. With it, a round begins
when the rounds that it names are over, and the latest earlier rounds with a send to the same rank,
or a receive from the same rank. So the n-th message from one rank to another is the n-th on both
sides. Proofs, lowering, the simulator and execution use the order of :func:`waits`, which includes
both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from operator import index

from hpccoll.ir.in_network import Peer
from hpccoll.ir.schedule import RECV, SEND, Program, Round

#: For every round, the numbers of earlier ones that must be over before it begins.
Waits = tuple[tuple[int, ...], ...]


def lanes(*each: Sequence[Round], scratch: Sequence[int] = (), before: Sequence[Round] = ()
          ) -> Program:
    """Combine lanes: sequences of rounds that run independently of each other.

    Args:
        each: the lanes; no lane may use memory that another one writes.
        scratch: of all lanes together, as in :class:`~hpccoll.ir.schedule.Program`.
        before: rounds that all lanes wait for.

    >>> two = lanes([(), ()], [()], before=[()])
    >>> two.after
    ((), (0,), (0,), (1,))
    """
    rounds, after = list(before), list(chain_waits(len(before)))
    last = [after_all(after)] * len(each)
    for turn in zip_longest(*each):
        for lane, steps in enumerate(turn):
            if steps is not None:
                rounds.append(steps)
                after.append(last[lane])
                last[lane] = (len(rounds) - 1,)
    return Program(tuple(rounds), scratch, tuple(after))


def after_all(after: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Return the rounds that no round waits for: a wait for them is a wait for all."""
    awaited = {number for numbers in after for number in numbers}
    return tuple(number for number in range(len(after)) if number not in awaited)


def one_after_another(programs: Iterable[Program]) -> Waits:
    """Return the waits of the rounds of consecutive programs; ``()`` for one lane."""
    programs = list(programs)
    if not any(program.after for program in programs):
        return ()
    joined: list[tuple[int, ...]] = []
    for program in programs:
        base, ends = len(joined), after_all(joined)
        joined += [tuple(base + number for number in numbers) or ends
                   for numbers in program.after or chain_waits(len(program.rounds))]
    return tuple(joined)


def chain_waits(rounds: int) -> Waits:
    """Return the waits of one lane: each round waits for the one before it."""
    return tuple((number - 1,) if number else () for number in range(rounds))


def waits(program: Program) -> Waits:
    """Return the waits of each round, the order of messages included; ``()`` for a single lane.

    Transitive waits are omitted.
    """
    if not program.after:
        return ()
    found: list[tuple[int, ...]] = []
    before: list[int] = []
    latest: dict[tuple[str, Peer], int] = {}
    # Sets of rounds are the bits of Python's int, and builders may count with NumPy's.
    after = (map(index, numbers) for numbers in program.after)
    for number, (steps, named) in enumerate(zip(program.rounds, after)):
        ends = {(step.kind, step.peer) for step in steps if step.kind in (SEND, RECV)}
        wanted = {*named, *(latest[end] for end in ends if end in latest)}
        latest.update(dict.fromkeys(ends, number))
        known = 0
        kept = []
        for other in sorted(wanted, reverse=True):
            if not known >> other & 1:
                kept.append(other)
                known |= before[other] | 1 << other
        found.append(tuple(sorted(kept)))
        before.append(known)
    return tuple(found)


def pasts(waits: Waits) -> list[int]:
    """Return for every round those that are over before it begins, as bits."""
    before: list[int] = []
    for numbers in waits:
        known = 0
        for number in numbers:
            known |= before[number] | 1 << number
        before.append(known)
    return before


def lane_numbers(waits: Waits) -> list[int]:
    """Return the lane of every round: a small number of lanes, in the order written."""
    found: list[int] = []
    ends: list[int] = []  # of each lane, the last round so far
    for number, numbers in enumerate(waits):
        lane = next((found[other] for other in reversed(numbers) if ends[found[other]] == other),
                    len(ends))
        if lane == len(ends):
            ends.append(number)
        ends[lane] = number
        found.append(lane)
    return found


def by_lane(waits: Waits) -> Iterator[list[int]]:
    """Yield the numbers of each lane's rounds."""
    found = lane_numbers(waits)
    for lane in range(max(found, default=-1) + 1):
        yield [number for number, held in enumerate(found) if held == lane]
