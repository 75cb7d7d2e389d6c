"""Dataflow analysis of a phase: uses of messages and of results by its local steps.

A transport that reads a message in place needs the steps that use it (:func:`consumers`); an
executor that accumulates in higher precision needs the results that the next step uses
(:func:`fused_with_next`, :func:`links`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from hpccoll.ir.collectives import TMP
from hpccoll.ir.extents import Local, Phase, is_within, overlap
from hpccoll.ir.schedule import RECV


def consumers(phase: Phase, space: int) -> list[list[Local]] | None:
    """Return the local steps that use each message of a phase, if messages can be used in place.

    A transport that can read a message in place may run these steps on arrival, in this
    order, instead of receiving the message first. That is safe when all local work of the
    phase consumes messages, in the order of the messages, from landing space that nothing
    reads later, and writes nothing that a message of the phase is sent from or received into.

    Returns:
        One list per message, or ``None`` if messages must be received first.
    """
    uses: list[list[Local]] = [[] for _ in phase.messages]
    last = 0
    for step in phase.after:
        operands = step.operands
        owners = [i for i, (kind, _, extent) in enumerate(phase.messages)
                  if kind == RECV and any(overlap(o, extent) for o in operands)]
        if len(owners) != 1 or owners[0] < last:
            return None
        last, = owners
        landing = phase.messages[last].extent
        if landing.buffer != TMP or landing.offset < space:
            return None
        mine = [o for o in operands if not is_within(o, landing)]
        if len(mine) == len(operands) or len(operands) == 2 and not mine:
            return None
        if any(overlap(extent, step.into) or kind == RECV and any(overlap(extent, o) for o in mine)
               for kind, _, extent in phase.messages):
            return None
        uses[last].append(step)
    return uses


def fused_with_next(steps: Sequence[Local]) -> list[bool]:
    """Return for each local step True if the next one uses its result as an operand.

    Such steps form a chain, ``x = a op b; x = x op c; y = d op x``, which may pass a result on
    before it is rounded. Chains depend on the layout of the blocks, except in the phases
    ``single_block`` of :class:`LoweredProgram`: only there may rounding depend on them.
    """
    return [_continues(step, following) for step, following in zip(steps, steps[1:])] + (
        [False] * bool(steps))


class Link(NamedTuple):
    """Use of the accumulator, which holds unrounded results, by a step in a chain.

    Attributes:
        left, right: this operand is in the accumulator.
        held: the result is stored there.
        rounded: the rounded result is written to memory.
    """

    left: bool
    right: bool
    held: bool
    rounded: bool


def links(steps: Sequence[Local]) -> Iterator[Link]:
    """Yield each local step's use of an accumulator, for phases that permit chains."""
    where = None
    for step, following, more in zip(steps, (*steps[1:], None), fused_with_next(steps)):
        left = where is not None and step.left == where
        again = following is not None and following.into == step.into
        yield Link(left, where is not None and not left, more, not (more and again))
        where = step.into if more else None


def _continues(step: Local, following: Local) -> bool:
    if not (step.right and following.right):
        return False
    others = [operand for operand in following.operands if operand != step.into]
    return len(others) == 1 and not overlap(others[0], step.into)
