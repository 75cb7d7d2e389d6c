"""Validation of the output of a builder, before any other use.

A builder is user code and may return anything. :func:`program_of` makes one rank's program and
either returns it, as tuples, or raises an error with the location. It visits each step once and no
slot, so it ends in bounded time and memory for any input: programs have at most :data:`MOST_STEPS`
rounds and steps, and memory at most :data:`MOST_SLOTS` slots per buffer. It has no time limit for a
builder that does not return; proofs have one.

:mod:`hpccoll.proof` checks the semantics of a program.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from operator import index
from typing import Any, NoReturn

from hpccoll.errors import HpccollError, ScheduleError
from hpccoll.ir.collectives import COLLECTIVES, IN, TMP, Collective, slot_keys
from hpccoll.ir.in_network import InNetwork, fault_of
from hpccoll.ir.order import Waits
from hpccoll.ir.schedule import (
    COPY,
    LEFT,
    RECV,
    REDUCE,
    RIGHT,
    SEND,
    Program,
    Round,
    Schedule,
    Span,
    Step,
)

#: Maximum rounds and steps of one program, together.
MOST_STEPS = 1 << 22
#: Maximum slots of one buffer, and maximum blocks of a collective.
MOST_SLOTS = 1 << 22
#: Permitted sides of a step of each kind.
SIDES = {SEND: ("",), RECV: ("", LEFT, RIGHT), COPY: ("",), REDUCE: (LEFT, RIGHT)}


def program_of(schedule: Schedule, rank: int) -> Program:
    """Make one rank's program and check its form."""
    try:
        program = schedule.program(rank)
    except HpccollError:
        raise
    except (Exception, SystemExit) as error:
        raise ScheduleError(f"the builder raised {type(error).__name__}: {error}",
                            schedule=schedule.title, rank=rank) from error
    return _Form(schedule, rank).check_program(program)


def keys_of(schedule: Schedule, collective: Collective | None = None) -> int:
    """Return the number of blocks of a collective (the schedule's); their keys are 0, 1, ..."""
    payload = (collective or schedule.collective).payload
    if payload == "vector":
        return schedule.nblocks
    return {"none": 0, "pairs": schedule.size ** 2}.get(payload, schedule.size)


@lru_cache(64)
def _slots(collective: str, size: int, root: int, nblocks: int, at_root: bool
           ) -> tuple[tuple[str, int], ...]:
    """Return the number of slots of the buffers of the root, or of the other ranks."""
    rank = root if at_root else (root + 1) % size
    keys = slot_keys(COLLECTIVES[collective], rank, size, root, nblocks)
    return tuple((buffer, len(held)) for buffer, held in keys.items())


class _Form:
    """Form of a valid program of one rank."""

    def __init__(self, schedule: Schedule, rank: int):
        self.schedule, self.rank, self.size = schedule, rank, schedule.size
        self.round: int | None = None
        self.step: Any = None
        if schedule.nblocks > MOST_SLOTS:
            self.fault(f"has {schedule.nblocks} blocks, at most {MOST_SLOTS} are supported")
        self.held = dict(_slots(schedule.collective.name, schedule.size, schedule.root,
                                schedule.nblocks, rank == schedule.root))

    def fault(self, problem: str) -> NoReturn:
        raise ScheduleError(problem, schedule=self.schedule.title, rank=self.rank,
                            round=self.round, step=_text(self.step))

    def check_program(self, program: Any) -> Program:
        """Return the same program as tuples."""
        if not isinstance(program, Program):
            self.fault(f"the builder returned {_describe(program)}, expected a Program")
        self.held[TMP] = self.scratch(program.scratch)
        rounds: list[Round] = []
        left = MOST_STEPS
        for steps in self.sequence(program.rounds, "rounds", MOST_STEPS):
            self.round = len(rounds)
            if isinstance(steps, Step):
                self.step = steps
                self.fault("expected a round, got a step: rounds are tuples of steps")
            held = tuple(self.sequence(steps, "a round", left))
            left -= 1 + len(held)
            for self.step in held:
                self.check(self.step)
            self.step = None
            rounds.append(held)
        return Program(tuple(rounds), program.scratch, self.check_waits(program.after, len(rounds)))

    def check_waits(self, after: Any, rounds: int) -> Waits:
        self.round = None
        given = self.sequence(after, "after", MOST_STEPS)
        if given and len(given) != rounds:
            self.fault(f"after has entries for {len(given)} rounds, but there are {rounds}")
        checked = []
        for self.round, numbers in enumerate(given):
            held = self.sequence(numbers, "what a round waits for", rounds)
            for number in held:
                if not _is_index(number) or not 0 <= number < self.round:
                    self.fault(f"waits for round {number!r}, which is not before it")
            checked.append(tuple(map(index, held)))  # sets of rounds are the bits of Python's int
        self.round = None
        return tuple(checked)

    def sequence(self, items: Any, what: str, most: int) -> Sequence[Any]:
        if not isinstance(items, (tuple, list)):
            self.fault(f"{what} must be a tuple, got {_describe(items)}")
        if len(items) > most:
            self.fault(f"has more than {MOST_STEPS} rounds and steps")
        return items

    def scratch(self, keys: Any) -> int:
        if not isinstance(keys, (tuple, list, range)):
            self.fault(f"scratch must be a tuple of block keys, got {_describe(keys)}")
        if len(keys) > MOST_SLOTS:
            self.fault(f"has {len(keys)} slots of scratch, at most {MOST_SLOTS} are supported")
        most = keys_of(self.schedule)
        # A range is validated by its ends.
        ends = range(0, len(keys), max(len(keys) - 1, 1)) if isinstance(keys, range) else range(
            len(keys))
        for slot in ends:
            key = keys[slot]
            if not _is_index(key) or not 0 <= key < most:
                blocks = f"the blocks are 0 to {most - 1}" if most else "there are no blocks"
                self.fault(f"tmp[{slot}] has the size of block {key!r}, but {blocks}")
        if self.schedule.collective.payload == "pairs" and not self.schedule.uniform:
            for slot, key in enumerate(keys):
                if self.rank not in divmod(key, self.size):
                    source, sink = divmod(key, self.size)
                    self.fault(f"tmp[{slot}] has the size of the block from rank {source} to rank "
                               f"{sink}, which this rank does not have")
        return len(keys)

    def check(self, step: Any) -> None:
        if not isinstance(step, Step):
            self.fault(f"expected a step, got {_describe(step)}")
        kind, peer, spans, source, side = step
        sides = SIDES.get(kind) if isinstance(kind, str) else None
        if sides is None:
            self.fault(f"is of kind {kind!r}, expected {', '.join(SIDES)}")
        if not isinstance(side, str) or side not in sides:
            self.fault(f"has side {side!r}, expected {' or '.join(map(repr, SIDES[kind]))}")
        slots = self.spans(spans)
        if kind in (SEND, RECV):
            self.peer(peer, kind == SEND)
        else:
            if len(spans) != 1 or not isinstance(source, tuple) or len(source) != 1:
                self.fault("must have one source span and one destination span")
            given = self.spans(source)
            if given != slots:
                self.fault(f"works on {slots} slots from {given} slots")
        if kind != SEND:
            for span in spans:
                if span.buffer == IN:
                    self.fault(f"{span} is written, but the input is read-only")

    def peer(self, peer: Any, sends: bool) -> None:
        if isinstance(peer, InNetwork):
            problem = fault_of(peer, self.rank, sends, self.size)
            if problem:
                self.fault(problem)
            return
        if type(peer) is not int and not _is_index(peer):
            self.fault(f"the peer is {peer!r}, expected a rank")
        if not 0 <= peer < self.size or peer == self.rank:
            self.fault(f"{peer} is not another rank of 0..{self.size - 1}")

    def why_absent(self, buffer: str, held: int) -> str:
        """Return why a rank has so few slots of a buffer."""
        rule = self.schedule.collective
        if held or buffer == TMP or not rule.rooted:
            return f"this rank has {held} slots there"
        if rule.name == "bcast":
            return "bcast has no input; the root's data are in OUT"
        return f"only the root has {'an input' if buffer == IN else 'a result'} in {rule.name}"

    def spans(self, spans: Any) -> int:
        """Return the number of slots of some spans."""
        if not isinstance(spans, tuple):
            self.fault(f"spans must be a tuple, got {_describe(spans)}")
        slots = 0
        for span in spans:
            if not isinstance(span, Span):
                self.fault(f"expected a span, got {_describe(span)}")
            buffer, start, stop = span
            if not (type(start) is type(stop) is int or _is_index(start) and _is_index(stop)):
                self.fault(f"{buffer}[{start!r}:{stop!r}]: slots must be integers")
            held = self.held.get(buffer, -1) if isinstance(buffer, str) else -1
            if not 0 <= start <= stop <= held:
                self.fault(f"{span} does not exist: {self.why_absent(buffer, max(held, 0))}")
            slots += stop - start
        return slots


def _is_index(value: Any) -> bool:
    """Return True if a value is an integer of Python or NumPy."""
    if isinstance(value, int):
        return True
    try:
        index(value)
    except TypeError:
        return False
    return True


def _describe(value: Any) -> str:
    """Return a short description of a value for messages."""
    name = type(value).__name__
    article = "" if value is None else "an " if name[0] in "aeiou" else "a "
    return "nothing" if value is None else article + name


def _text(step: Any) -> str | None:
    """Return the printed form of a step, or its shortened repr if it has none."""
    if step is None:
        return None
    try:
        text = str(step)
    except Exception:  # any object of a builder: the text must not hide the fault
        text = tuple.__repr__(step) if isinstance(step, tuple) else type(step).__name__
    return text if len(text) < 200 else f"{text[:197]}..."


