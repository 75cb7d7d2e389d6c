"""Forms of a collective: blocking, nonblocking, persistent, or on Python objects.

A form provides the method's name, its candidates, and the callable of an iteration for one set of
buffers. The return value of a call is kept without a copy until it is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mpi4py import MPI

from hpccoll.algorithms import find
from hpccoll.config import AUTO, NATIVE, Config, load
from hpccoll.errors import ArgumentError
from hpccoll.ir.methods import COUNTS_AT_ROOT, METHODS
from hpccoll.measure import candidates as choosing
from hpccoll.measure.buffers import CaseBuffers
from hpccoll.measure.cases import Case
from hpccoll.runtime.progress.engine import can_progress
from hpccoll.tune.table import Candidate

#: Names of ``auto`` and the MPI library; all others are algorithms.
_WHOLE = (NATIVE, choosing.FORWARDED, AUTO)


class BlockingForm:
    """The upper-case method, called again in every iteration.

    Attributes:
        call, arguments: callable and arguments of an iteration.
        returned: return value of the last call.
    """

    word = "blocking"
    #: Collectives that have this form.
    collectives: Sequence[str] = tuple(METHODS)
    #: Name of the form in records and tables; empty for the usual one.
    about = ""

    def __init__(self, memory: CaseBuffers, method: Callable):
        self.memory, self.call = memory, memory.timed_callable(method)
        self.returned: Any = None

    @staticmethod
    def method(collective: str) -> str:
        """Return the method's name."""
        return collective.capitalize()

    @staticmethod
    def auto_choice(case: Case, config: Config) -> str | None:
        """Return the algorithm of ``auto``; ``None`` if the selection reports it."""
        return None

    @classmethod
    def select(cls, wanted: Sequence[Candidate], case: Case, memory: CaseBuffers,
               hierarchical: bool) -> tuple[list[Candidate], dict[str, str]]:
        """Return the candidates of this form, like :func:`hpccoll.measure.candidates.select`."""
        return choosing.select(wanted, case, memory, hierarchical)

    @property
    def arguments(self) -> tuple:
        return self.memory.arguments

    def prepare(self) -> None:
        """Restore the input before an iteration, outside the measured time."""
        if self.memory.restorable:
            self.memory.restore()

    def sample(self, seconds: float) -> Any:
        """Return what an iteration of these seconds measured: they, or a row of several times."""
        return seconds

    def deliver(self) -> None:
        """Copy the return value into the result buffer."""

    def free(self) -> None:
        """Release prepared requests."""


class NonblockingForm(BlockingForm):
    """Calls that return before they complete, so that ranks need not wait for each other.

    By default the MPI library runs them, so ``auto`` is no candidate unless requested.
    """

    @staticmethod
    def method(collective: str) -> str:
        return f"I{collective}"

    @staticmethod
    def auto_choice(case: Case, config: Config) -> str:
        preference = config.algorithm.get(METHODS[case.collective])
        return NATIVE if preference is None else Candidate(preference[0],
                                                           tuple(preference[1].items())).label

    @classmethod
    def select(cls, wanted: Sequence[Candidate], case: Case, memory: CaseBuffers,
               hierarchical: bool) -> tuple[list[Candidate], dict[str, str]]:
        chosen, refused = choosing.select(wanted, case, memory, hierarchical)
        if not wanted:
            chosen = [c for c in chosen if c.name != AUTO]
        for candidate in chosen:
            if candidate.name in _WHOLE:
                continue
            if not can_progress(load().progress):
                refused[candidate.label] = "MPI was initialised without MPI.THREAD_MULTIPLE"
            elif (case.collective in COUNTS_AT_ROOT
                  and not find(case.rule.name, candidate.name).own_blocks):
                refused[candidate.label] = ("only the root has all counts")
        return [c for c in chosen if c.label not in refused], refused


class AwaitedForm(NonblockingForm):
    """A nonblocking call followed by its wait."""

    word, about = "nonblocking", "nonblocking: times include the call and its Wait"

    def __init__(self, memory: CaseBuffers, method: Callable):
        super().__init__(memory, lambda *arguments: method(*arguments).Wait())


class PersistentForm(NonblockingForm):
    """A request that is created once, and started and waited for in every iteration."""

    word, about = "persistent", "persistent: created once; times include Start and Wait"

    def __init__(self, memory: CaseBuffers, method: Callable):
        self.request = method(*memory.arguments)
        start, wait = self.request.Start, self.request.Wait

        def restart() -> None:
            start()
            wait()

        super().__init__(memory, restart)

    @staticmethod
    def method(collective: str) -> str:
        return f"{collective}_init".capitalize()

    @property
    def arguments(self) -> tuple:
        return ()

    def free(self) -> None:
        self.request.Free()


class LowerCase(BlockingForm):
    """mpi4py's methods for Python objects, on arrays; a single float or complex as a number.

    Python's integers do not overflow as an array's, so an integer stays an array. These methods
    have no selection of algorithms: see :mod:`hpccoll.comm.objects.methods`.
    """

    word, about = "lower-case", "lower case: arrays as objects, a single float as a number"
    collectives = ("bcast", "reduce", "allreduce", "scan", "exscan")

    @staticmethod
    def method(collective: str) -> str:
        return collective

    @staticmethod
    def auto_choice(case: Case, config: Config) -> str:
        return AUTO

    @classmethod
    def select(cls, wanted: Sequence[Candidate], case: Case, memory: CaseBuffers,
               hierarchical: bool) -> tuple[list[Candidate], dict[str, str]]:
        wanted = choosing.expand(wanted or [Candidate(NATIVE), Candidate(AUTO)], case.collective,
                                 case.size, case.nbytes, hierarchical)
        refused = {c.label: "methods for objects have no choice of algorithms"
                   for c in wanted if c.name not in (NATIVE, AUTO)}
        return [c for c in wanted if c.label not in refused], refused

    @property
    def arguments(self) -> tuple:
        memory = self.memory
        given = memory.source if memory.given else None
        if given is not None and given.size == 1 and given.dtype.kind in "fc":
            given = given.item()
        buffers = 1 if memory.case.collective == "bcast" else 2
        return given, *memory.arguments[buffers:]

    def deliver(self) -> None:
        if self.memory.wanted:
            self.memory.result[...] = self.returned
        self.returned = None


#: All forms of a timing benchmark, by name.
FORMS: dict[str, type[BlockingForm]] = {
    form.word: form for form in (BlockingForm, AwaitedForm, PersistentForm, LowerCase)}


def check(form: type[BlockingForm], collectives: Sequence[str], in_place: bool,
          peers: bool) -> None:
    """Raise if options cannot be combined."""
    for collective in collectives:
        if collective not in form.collectives:
            raise ArgumentError("--calls", f"{collective} has no {form.word} calls",
                                f"choose from {', '.join(form.collectives)}")
    if form is PersistentForm:
        try:
            MPI.COMM_SELF.Barrier_init().Free()
        except NotImplementedError:
            raise ArgumentError("--calls", "this MPI library has no persistent collectives"
                                ) from None
    if form is LowerCase and in_place:
        raise ArgumentError("--in-place", "objects are not combined in place")
    if form is not BlockingForm and peers:
        raise ArgumentError("--peers", "peers support blocking calls only")
