"""How the elements of one bucket get to all ranks and back: tasks for the engine.

A *gate* comes first where ranks must be in one place before something begins that cannot be called
off: a tiny nonblocking reduction, which says that all ranks have come, to the same turn, and which
of them have run out of data. It is polled, so waiting for a slow rank leaves the processor to what
computes, and a rank that fails meanwhile is heard. Behind it a blocking call - the fastest there
is - finds everybody there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy
from mpi4py import MPI

from hpccoll.errors import ExchangeMismatch
from hpccoll.training.compress.scheme import Steps

_NOBODY = -(1 << 62)


class Turn(NamedTuple):
    """What comes next in an exchange: the same on all ranks, or something is wrong.

    Attributes:
        step: how many steps came before.
        kind: one of :data:`KINDS`.
        number: which of its kind in the step.
    """

    step: int
    kind: int
    number: int

    @property
    def code(self) -> int:
        """As a number."""
        return (self.step << 24 | self.number << 3 | self.kind) + 1

    @staticmethod
    def of(code: int) -> Turn:
        """The turn of a number."""
        code -= 1
        return Turn(code >> 24, code & 7, code >> 3 & (1 << 21) - 1)

    def __str__(self) -> str:
        return f"{KINDS[self.kind]} {self.number} of step {self.step}"


#: What a turn may be: a bucket of arrays that became ready one by one; a run of buckets given at
#: once; the new order of buckets; sparse arrays; a broadcast.
KINDS = BUCKET, RUN, ORDER, SPARSE, START, TUNE = (
    "bucket", "list", "order", "sparse array", "broadcast", "tuning")
_NUMBERS = {kind: number for number, kind in enumerate(KINDS)}


def turn(step: int, kind: str, number: int = 0) -> Turn:
    """A turn of a kind by name."""
    return Turn(step, _NUMBERS[kind], number)


class Gate:
    """Lets ranks through when all have come.

    Args:
        comm: for nothing else.

    Attributes:
        turn: what all ranks do next; ``None`` when all have run out of data.
        last: the rank that ran out of data last; valid when all have.
    """

    def __init__(self, comm: Any):
        self.comm, self.rank, self.size = comm, comm.Get_rank(), comm.Get_size()
        self.turn: Turn | None = None
        self.last, self._passed = 0, 0
        self._mine, self._all = numpy.empty((2, 3), numpy.int64)

    def enter(self, turn: Turn | None) -> Steps:
        """Wait for all ranks; ``None`` from a rank that has run out of data.

        Raises:
            ExchangeMismatch: ranks have come to different turns.
        """
        code = _NOBODY if turn is None else turn.code
        if turn is not None:
            self._passed += 1  # the last one with data has passed most gates
        self._mine[:] = code, _NOBODY if turn is None else -code, self._passed * self.size
        self._mine[2] += self.rank
        yield self.comm.Iallreduce(self._mine, self._all, MPI.MAX)
        most, least, last = self._all.tolist()
        self.turn, self.last = None if most == _NOBODY else Turn.of(most), last % self.size
        if self.turn is None:
            self._passed = 0
        if most != -least and most != _NOBODY:
            raise ExchangeMismatch(
                f"ranks make different calls of the exchange: {Turn.of(most)}; {Turn.of(-least)}; "
                f"rank {self.rank}: {turn}; make the same calls on all ranks")


def dense(comm: Any, values: Any, op: MPI.Op, blocking: bool, piece_bytes: int = 0) -> Steps:
    """Combine vectors of all ranks in place, in pieces of so many bytes if that is not 0."""
    step = max(piece_bytes // values.itemsize, 1) if piece_bytes else len(values)
    for start in range(0, len(values), max(step, 1)):
        part = values[start:start + step]
        if blocking:
            comm.Allreduce(MPI.IN_PLACE, part, op)
        else:
            yield comm.Iallreduce(MPI.IN_PLACE, part, op)


def put(values: Any, scale: float, into: Any) -> None:
    """Copy, times a factor."""
    if scale == 1:
        if values is not into:
            numpy.copyto(into, values)
    else:
        numpy.multiply(values, values.dtype.type(scale), out=into)


class Finish(NamedTuple):
    """What is done to a sum on its way out.

    Attributes:
        divisor: number that it is divided by.
        factor: number that it is multiplied by then.
    """

    divisor: int = 1
    factor: float = 1.0

    def apply(self, values: Any, into: Any) -> None:
        """Write ``values / divisor * factor``."""
        if self.divisor & (self.divisor - 1) == 0:
            # Exact, and products are faster than quotients; the same bits.
            put(values, self.factor / self.divisor, into)
            return
        numpy.divide(values, values.dtype.type(self.divisor), out=into)
        if self.factor != 1:
            numpy.multiply(into, values.dtype.type(self.factor), out=into)

    def apply_each(self, values: Sequence[Any], into: Sequence[Any]) -> None:
        """:meth:`apply` to arrays of one type, by the hundred."""
        factor = self.factor / self.divisor
        if self.divisor & (self.divisor - 1) or not all(
                type(one) is numpy.ndarray for one in (*values, *into)):
            for one, place in zip(values, into):
                self.apply(one, place)
        elif factor == 1:
            for one, place in zip(values, into):
                numpy.copyto(place, one)
        elif values:
            # An array without dimensions: NumPy would make one of a number, every time.
            factors = numpy.array(factor, values[0].dtype)
            for one, place in zip(values, into):
                numpy.multiply(one, factors, place)
