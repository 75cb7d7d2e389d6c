"""Transfers of buckets, as tasks for the engine.

A *step barrier* precedes a blocking call, which cannot be cancelled. It is a small nonblocking
reduction. It checks that all ranks have reached the same step, and finds the ranks that have run
out of data. The barrier is polled: waiting for a slow rank leaves the processor to the computation,
and a failure of a rank is detected. Then all ranks enter the blocking call together, which is the
fastest transfer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy
from mpi4py import MPI

from hpccoll.errors import ExchangeMismatch
from hpccoll.training.compress.scheme import Steps

_NO_STEP = -(1 << 62)


class CollectiveStep(NamedTuple):
    """Next operation of an exchange; it must be the same on all ranks."""

    step: int
    kind: int
    number: int

    @property
    def code(self) -> int:
        """Integer form, for comparison between ranks."""
        return (self.step << 24 | self.number << 3 | self.kind) + 1

    @staticmethod
    def of(code: int) -> CollectiveStep:
        """Return the step of an integer form."""
        code -= 1
        return CollectiveStep(code >> 24, code & 7, code >> 3 & (1 << 21) - 1)

    def __str__(self) -> str:
        return f"{KINDS[self.kind]} {self.number} of step {self.step}"


#: Kinds of steps: a bucket of arrays that became ready one by one; buckets submitted in one call; a
#: new order of buckets; sparse arrays; a broadcast; other settings.
KINDS = BUCKET, RUN, ORDER, SPARSE, START, TUNE = (
    "bucket", "list", "order", "sparse array", "broadcast", "tuning")
_NUMBERS = {kind: number for number, kind in enumerate(KINDS)}


def collective_step(step: int, kind: str, number: int = 0) -> CollectiveStep:
    """Return a step of a named kind."""
    return CollectiveStep(step, _NUMBERS[kind], number)


class StepBarrier:
    """Polled barrier that checks for the same step on all ranks.

    Attributes:
        next_step: the next step of all ranks; ``None`` if all have run out of data.
        last: the rank that ran out of data last; valid if all have.
    """

    def __init__(self, comm: Any):
        self.comm, self.rank, self.size = comm, comm.Get_rank(), comm.Get_size()
        self.next_step: CollectiveStep | None = None
        self.last, self._wait_count = 0, 0
        self._local, self._all = numpy.empty((2, 3), numpy.int64)

    def wait(self, step: CollectiveStep | None) -> Steps:
        """Wait for all ranks; a rank that has run out of data passes ``None``."""
        code = _NO_STEP if step is None else step.code
        if step is not None:
            self._wait_count += 1  # the last rank with data has waited most often
        self._local[:] = code, _NO_STEP if step is None else -code, self._wait_count * self.size
        self._local[2] += self.rank
        yield self.comm.Iallreduce(self._local, self._all, MPI.MAX)
        most, least, last = self._all.tolist()
        self.next_step = None if most == _NO_STEP else CollectiveStep.of(most)
        self.last = last % self.size
        if self.next_step is None:
            self._wait_count = 0
        if most != -least and most != _NO_STEP:
            raise ExchangeMismatch(
                f"ranks make different calls of the exchange: {CollectiveStep.of(most)}; "
                f"{CollectiveStep.of(-least)}; rank {self.rank}: {step}; "
                "make the same calls on all ranks")


def allreduce_vector(comm: Any, values: Any, op: MPI.Op, blocking: bool,
                     piece_bytes: int = 0) -> Steps:
    """Allreduce a vector in place, in pieces of ``piece_bytes`` unless that is 0."""
    step = max(piece_bytes // values.itemsize, 1) if piece_bytes else len(values)
    for start in range(0, len(values), max(step, 1)):
        part = values[start:start + step]
        if blocking:
            comm.Allreduce(MPI.IN_PLACE, part, op)
        else:
            yield comm.Iallreduce(MPI.IN_PLACE, part, op)


def copy_scaled(values: Any, scale: float, into: Any) -> None:
    """Copy values times a factor."""
    if scale == 1:
        if values is not into:
            numpy.copyto(into, values)
    else:
        numpy.multiply(values, values.dtype.type(scale), out=into)


class ResultScaling(NamedTuple):
    """Scaling of a sum."""

    divisor: int = 1
    factor: float = 1.0

    def apply(self, values: Any, into: Any) -> None:
        """Write ``values / divisor * factor``."""
        if self.divisor & (self.divisor - 1) == 0:
            # An exact reciprocal: a product gives the same bits and is faster than a quotient.
            copy_scaled(values, self.factor / self.divisor, into)
            return
        numpy.divide(values, values.dtype.type(self.divisor), out=into)
        if self.factor != 1:
            numpy.multiply(into, values.dtype.type(self.factor), out=into)

    def apply_each(self, values: Sequence[Any], into: Sequence[Any]) -> None:
        """Apply :meth:`apply` to many arrays of one dtype."""
        factor = self.factor / self.divisor
        if self.divisor & (self.divisor - 1) or not all(
                type(one) is numpy.ndarray for one in (*values, *into)):
            for one, place in zip(values, into):
                self.apply(one, place)
        elif factor == 1:
            for one, place in zip(values, into):
                numpy.copyto(place, one)
        elif values:
            # A 0-d array: NumPy would convert a Python number in each call.
            factors = numpy.array(factor, values[0].dtype)
            for one, place in zip(values, into):
                numpy.multiply(one, factors, place)
