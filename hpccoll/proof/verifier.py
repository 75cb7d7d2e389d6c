"""Proof that a schedule implements its collective, for all block sizes.

The programs of all ranks are run on symbols. A symbol is a contribution (block, element,
rank), or the combination of two symbols, so a result carries its complete history: which
contributions it holds, how often, in which order and association. Messages are matched
with zero buffering: a send completes only when its receive is posted. Proved are

* every output block contains each required contribution exactly once - in rank order, for
  operators that do not commute - and other memory is unchanged;
* each send matches one receive of the same blocks, in order, and no message is left;
* no deadlock, even when every send is synchronous;
* no step touches memory that a message of the same round, or another segment, may be
  using; scratch stays in bounds;
* the numbers of rounds and of sent blocks equal the closed form, if there is one.

There are two proofs: :mod:`hpccoll.proof.slots` proves the programs as written, on slots, for every
size of every block, in place and not; :mod:`hpccoll.proof.elements` proves the lowered programs,
for the samples of :mod:`hpccoll.proof.cases`, in segments as well.

A builder is not trusted: it is interrupted after :data:`MOST_SECONDS`, between two steps of its
Python code. A loop inside a C function cannot be interrupted: such a builder hangs.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Sequence
from types import TracebackType

from hpccoll.errors import ProofError, ScheduleError
from hpccoll.ir.collectives import Collective
from hpccoll.ir.schedule import Program, Schedule
from hpccoll.ir.wellformed import program_of
from hpccoll.proof.cases import BlockSizes, cases, lower_all
from hpccoll.proof.elements import prove_segments as prove_segments
from hpccoll.proof.result import Proof
from hpccoll.proof.slots import prove_slots
from hpccoll.worker import Worker

__all__ = ["Proof", "verify"]
#: Time limit in seconds of a builder for one rank's program.
MOST_SECONDS = 10.0


def verify(schedule: Schedule, collective: Collective | None = None, *,
           commutative: bool = True, sizes: BlockSizes | None = None) -> Proof:
    """Prove a schedule for all block sizes, and its lowered form for a sample.

    Args:
        schedule: to prove.
        collective: its specification; the schedule's own collective if omitted.
        commutative: ``False`` requires rank order of every reduction.
        sizes: block sizes to add to the sample.

    Raises:
        ProofError: with the rank, round and step of the error.
    """
    collective = collective or schedule.collective
    programs = programs_of(schedule)
    proof = prove_slots(schedule, collective, programs)
    proofs = [proof]
    if collective.in_place:
        proofs.append(prove_slots(schedule, collective, programs, in_place=True))
    sample = cases(schedule, collective) + ([] if sizes is None else [sizes])
    proofs += [prove(schedule, collective, case, programs) for case in sample]
    proof = proof._replace(
        rank_order=all(p.rank_order for p in proofs),
        replicas_identical=all(p.replicas_identical for p in proofs))
    for what, claimed, proved in (("rounds", schedule.rounds, proof.rounds),
                                  ("blocks sent by the busiest rank", schedule.sent, proof.sent)):
        if claimed is not None and claimed != proved:
            raise ProofError(f"has {proved} {what}, the closed form gives {claimed}",
                             schedule=schedule.title)
    if not commutative and not proof.rank_order:
        raise ProofError("contributions are not combined in rank order, so non-commutative "
                         "operators give wrong results", schedule=schedule.title)
    return proof


def prove(schedule: Schedule, collective: Collective, case: BlockSizes,
          programs: Sequence[Program] | None = None) -> Proof:
    """Prove the lowered form of a schedule for one case; see :func:`verify`."""
    programs = programs_of(schedule) if programs is None else programs
    return prove_segments(schedule, collective, case, [
        lower_all(schedule, collective, rank, case, program)
        for rank, program in enumerate(programs)])


def programs_of(schedule: Schedule) -> list[Program]:
    """Make and check the programs of all ranks."""
    programs: list[Program] = []
    try:
        with _Watch() as watch:
            for rank in range(schedule.size):
                watch.patient(MOST_SECONDS)
                programs.append(program_of(schedule, rank))
    except ScheduleError as error:
        if isinstance(error, ProofError):
            raise
        raise ProofError(error.problem, schedule=schedule.title, rank=len(programs),
                         round=error.round, step=error.step) from error.__cause__ or error
    except _TooLate:
        raise ProofError(f"the builder did not return within {MOST_SECONDS:g} s",
                         schedule=schedule.title, rank=len(programs)) from None
    return programs


class _TooLate(BaseException):
    """Ends a builder. Not an ``Exception``: a builder that catches these must end as well."""


class _Watch:
    """Raises :class:`_TooLate` in the thread that made it when the time is over."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.end, self.raised = float("inf"), False
        self.lock, self.worker = threading.Lock(), Worker("hpccoll proof", self._look)

    def patient(self, seconds: float) -> None:
        """Restart the time limit."""
        self.end = time.monotonic() + seconds

    def _look(self) -> float:
        with self.lock:
            if time.monotonic() >= self.end:
                self.end += 1.0  # repeated if that does not end it
                self.raised = True
                _raise_in(self.thread)
        return max(min(self.end - time.monotonic(), MOST_SECONDS), 0.01)

    def __enter__(self) -> _Watch:
        self.worker.wake()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        with self.lock:
            self.end = float("inf")
        self.worker.stop()
        if self.raised:
            self._receive()

    def _receive(self) -> None:
        """Receive an exception that may have been raised too late for the builder.

        A second exception is raised and caught: it replaces the first. CPython cancels an exception
        with a null pointer, but 3.11 then assumes forever that one is pending: every call and loop
        of the process becomes slower, and a profiler hangs.
        """
        try:
            _raise_in(self.thread)
            while True:  # it is raised between two steps
                pass
        except _TooLate:
            pass


def _raise_in(thread: int) -> None:
    """Raise :class:`_TooLate` in a thread at its next step of Python code."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(_TooLate))
