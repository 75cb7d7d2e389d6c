"""Exceptions of hpccoll.

Each class also subclasses a built-in exception, so ``except ValueError`` works in programs without
knowledge of hpccoll. Attributes hold the fields; the constructor writes the message: the problem,
the ranks or arguments, and the remedy.

A new error is a class here. An error that is also an ``MPI.Exception`` goes into ``mpi.py``, so
that this module needs only the standard library.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hpccoll.errors.waits import MOST_NAMED, RankStates, format_wait, rank_list

__all__ = ["ArgumentError", "ArgumentTypeError", "BrokenCommunicatorError", "BufferArgumentError",
           "CapabilityError", "CollectiveTimeout", "CommunicatorError", "ConcurrentCallError",
           "ExchangeError", "ExchangeMismatch", "ExchangeStall", "ForeignMessage", "ForkedError",
           "FrameworkError", "GroupTimeout", "HpccollError", "MessageSizeError", "MpiLibraryError",
           "NoisyMachineError", "NonFiniteArray", "NonFiniteError", "PeerLost", "ProcessGroupError",
           "ProofError", "RankFailed", "ScheduleError", "ShardError", "TuningError",
           "UnavailableError"]

#: Longest list of valid names that a message includes after a suggestion.
MOST_CHOICES = 12


def did_you_mean(word: str, valid: Iterable[str]) -> str:
    """Suggest the names most similar to a word; empty if none is similar.

    >>> did_you_mean("Alreduce", ["allreduce", "bcast"])
    "did you mean 'allreduce'"
    """
    from difflib import get_close_matches  # imported only for errors

    by_case = {name.lower(): name for name in valid}
    near = [by_case[match] for match in get_close_matches(word.lower(), by_case, 2)]
    return f"did you mean {' or '.join(map(repr, near))}" if near else ""


class HpccollError(Exception):
    """Base of all exceptions of hpccoll; can be pickled and copied with its fields.

    Attributes:
        states: the status of the ranks during a failed wait, if known.
    """

    states: RankStates | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        # By default unpickling passes the message to the constructor, which expects the fields.
        return _made_again, (type(self), self.args, vars(self))


def cause_of(error: BaseException) -> BaseException | None:
    """Return the cause for an error that replaces another; ``None`` for errors of hpccoll."""
    return error.__cause__ if isinstance(error, HpccollError) else error


def _made_again(cls: type[HpccollError], args: tuple[Any, ...], fields: Mapping[str, Any]
                ) -> HpccollError:
    # Python requires the ``__new__`` of the base with fields of its own.
    error = OSError.__new__(cls) if issubclass(cls, OSError) else cls.__new__(cls)
    error.args = args
    vars(error).update(fields)
    return error


class ArgumentError(HpccollError, ValueError):
    """An argument has an invalid value; no message was sent and no buffer was changed.

    Attributes:
        argument: name of the argument or environment variable.
    """

    def __init__(self, argument: str, problem: str, remedy: str = ""):
        self.argument = argument
        super().__init__(f"{argument}: {problem}" + (f"; {remedy}" if remedy else ""))

    @classmethod
    def unknown_word(cls, argument: str, word: object, valid: Iterable[object], problem: str = ""
                     ) -> ArgumentError:
        """Create the error of an unknown word: suggest a similar valid one, or list all.

        >>> str(ArgumentError.unknown_word("algorithm", "rign", ["ring", "bruck"]))
        "algorithm: 'rign' is unknown; did you mean 'ring'; choose from ring, bruck"
        """
        names = list(dict.fromkeys(map(str, valid)))
        meant = did_you_mean(str(word), names)
        listed = f"choose from {', '.join(names)}" if names else "there are no choices"
        if meant and len(names) > MOST_CHOICES:
            listed = f"there are {len(names)} choices"
        return cls(argument, problem or f"{word!r} is unknown", f"{meant}; {listed}".strip("; "))


class ArgumentTypeError(ArgumentError, TypeError):
    """An argument has the wrong type, or an operator does not exist for a type."""


class BufferArgumentError(ArgumentError, BufferError):
    """A buffer cannot be used: read-only, not contiguous, overlapping, wrong byte order."""


class CommunicatorError(HpccollError, ValueError):
    """The communicator is null, was freed, or is of a kind that hpccoll does not support."""


class BrokenCommunicatorError(CommunicatorError, RuntimeError):
    """A call failed on this communicator, on this or another rank; it can no longer be used.

    Messages of the failed call may still arrive, and later calls would receive them.
    """

    def __init__(self, message: str = "hpccoll: communicator is broken: a call failed on another "
                 "rank; call Dup on a working communicator, or end the job"):
        super().__init__(message)

    @classmethod
    def from_report(cls, rank: int, report: Mapping[str, Any]) -> BrokenCommunicatorError:
        """Create the error that other ranks and later calls raise after a rank has failed."""
        number, title, reason = report["number"], report["title"], report["reason"]
        call = f"blocking call {number}, {title}," if number else title
        problem = f"rank {rank} failed in {call} at {report['when']}"
        states = RankStates("communicator is broken")
        if report.get("missing"):
            states = RankStates(report["missing"], tuple(report.get("lines", ())))
            problem = f"communicator is broken: {problem} ({reason.partition(':')[0]})"
        else:
            problem += f": {reason}"
        error = cls(format_wait(states, problem,
                                "call Dup on a working communicator, or end the job"))
        error.states = states
        return error


class PeerLost(BrokenCommunicatorError):
    """Ranks that a call needs were killed or have exited; the communicator is broken.

    Attributes:
        ranks: the lost ranks.
    """

    def __init__(self, ranks: tuple[int, ...], states: RankStates, call: str, reporter: str = ""):
        self.ranks, self.states = ranks, states
        super().__init__(format_wait(
            states, f"{call} cannot complete, and the communicator is broken{reporter}",
            "end the job; if the MPI library has ULFM, comm.shrink() goes on without them"))


class UnavailableError(HpccollError, NotImplementedError):
    """This MPI library, or its launcher, does not support the operation."""


class ConcurrentCallError(HpccollError, RuntimeError):
    """A call was made on a communicator during another call; no message was sent.

    Attributes:
        site, other: file and line of this call, and of the other one.
    """

    def __init__(self, site: str, other: str, thread: str):
        self.site, self.other = site, other
        if thread:
            problem = (f"at {site}, and by thread {thread!r} at {other}; call comm.Dup() for each "
                       "thread")
        else:
            problem = (f"inside a pending call, at {site}; call comm.Dup() for operators, signal "
                       "handlers and finalisers")
        super().__init__(f"concurrent calls on a communicator: {problem}")


class ForkedError(CommunicatorError, RuntimeError):
    """This process was forked from a rank and cannot communicate."""

    def __init__(self, pid: int):
        super().__init__(
            f"collective called in a forked process: its parent is rank process {pid}; call it in "
            "the parent, or start workers with multiprocessing.get_context('spawn')")


class MpiLibraryError(HpccollError, ImportError, RuntimeError):
    """No MPI library can be loaded, or the launcher belongs to another library."""

    def __init__(self, problem: str, remedy: str):
        super().__init__(f"{problem}; {remedy}")


class ScheduleError(HpccollError, ValueError):
    """A schedule is malformed, for example names memory or ranks that do not exist.

    Attributes:
        rank, round, step: location of the fault, as in ``print(schedule)``; ``None`` if not single.
        problem: description of the fault.
    """

    def __init__(self, problem: str, *, schedule: str = "", rank: int | None = None,
                 round: int | None = None, step: str | None = None):
        self.problem, self.rank, self.round, self.step = problem, rank, round, step
        where = [schedule] if schedule else []
        where += [f"rank {rank}"] if rank is not None else []
        where += [f"round {round}"] if round is not None else []
        where += [f"step '{step}'"] if step is not None else []
        super().__init__(f"{', '.join(where)}: {problem}" if where else problem)


class ProofError(ScheduleError):
    """A schedule does not implement its collective."""


class CapabilityError(ScheduleError, NotImplementedError):
    """A correct schedule needs an operation that this transport or machine lacks.

    Attributes:
        missing: the operation.
    """

    def __init__(self, missing: str, where: str, remedy: str, *, schedule: str = "",
                 rank: int | None = None, round: int | None = None, step: str | None = None):
        self.missing = missing
        super().__init__(f"requires {missing}, which {where} does not have; {remedy}",
                         schedule=schedule, rank=rank, round=round, step=step)


class CollectiveTimeout(HpccollError, TimeoutError, RuntimeError):
    """A collective did not finish in time.

    Attributes:
        collective, rank, round: the collective, this rank and its current round.
        peers: the ranks that it waited for.
        seconds: seconds without progress.
    """

    def __init__(self, collective: str, rank: int, round: int, peers: tuple[int, ...],
                 seconds: float, states: RankStates | None = None):
        self.collective, self.rank, self.round = collective, rank, round
        self.peers, self.seconds = peers, seconds
        self.states = states = states or RankStates(f"no message from {rank_list(peers)}")
        super().__init__(format_wait(
            states,
            f"{collective} timed out on rank {rank} after {seconds:g} s without progress"
            + f" in round {round}" * bool(round),
            f"send SIGCONT to {rank_list(states.stopped)}, or end the job" if states.stopped else
            "check that all ranks make this call with the same arguments, or increase "
            "HPCCOLL_TIMEOUT"))


class SharedMemoryError(HpccollError, OSError):
    """The node has too little free shared memory."""


class MessageSizeError(HpccollError, RuntimeError):
    """A message has another size than its receiver expected: ranks disagree on counts."""


class ForeignMessage(MessageSizeError):
    """A message of another call or of another size arrived.

    Attributes:
        peer: its sender; -1 if the difference was detected without a message.
        rank: its receiver.
    """

    def __init__(self, peer: int, rank: int):
        self.peer, self.rank = peer, rank
        who = f"rank {peer}" if peer >= 0 else "a rank"
        super().__init__(f"{who} makes a different call than rank {rank}, or sends another message "
                         "size; make the same calls with the same arguments on all ranks")


class TuningError(HpccollError, ValueError):
    """A tuning table cannot be used; the same error on every rank.

    Attributes:
        path: the file, as text.
        problem: description of the fault.
    """

    def __init__(self, path: object, problem: str, remedy: str = ""):
        self.path, self.problem = str(path), problem
        super().__init__(f"tuning table {self.path}: {problem}; " + (
            remedy or "create a new one with 'hpccoll tune', or set HPCCOLL_TUNING=off"))


class NoisyMachineError(HpccollError, RuntimeError):
    """Other programs on the same cores disturbed the measurement; the same error on every rank."""


class NonFiniteError(HpccollError, FloatingPointError):
    """Gradients contain NaN or infinity; the same error on every rank, weights are unchanged.

    Attributes:
        ranks: those with such gradients; empty if unknown, or if only the sum contains NaN.
    """

    def __init__(self, problem: str, ranks: tuple[int, ...] = ()):
        self.ranks = ranks
        super().__init__(problem)


class ExchangeError(HpccollError, RuntimeError):
    """An exchange of gradients failed; raised on all its ranks.

    Attributes:
        arrays: names of the arrays.
        ranks: the ranks that caused the error.
    """

    def __init__(self, problem: str, arrays: tuple[str, ...] = (), ranks: tuple[int, ...] = ()):
        super().__init__(problem)
        self.arrays, self.ranks = arrays, ranks


class ExchangeMismatch(ExchangeError, ValueError):
    """Ranks disagree on an array, or pass one that differs from its declaration."""


class ExchangeStall(ExchangeError, TimeoutError):
    """Some ranks have not passed an array that others wait for."""


class RankFailed(ExchangeError):
    """Another rank raised an error and has left the exchange."""


class ProcessGroupError(HpccollError, RuntimeError):
    """A process group cannot be created, or can no longer be used."""


class GroupTimeout(HpccollError, TimeoutError, RuntimeError):
    """A call on a process group did not finish in time.

    Attributes:
        title: the call, its group and rank.
        seconds: duration of the wait.
    """

    def __init__(self, title: str, seconds: float):
        self.title, self.seconds = title, seconds
        super().__init__(f"{title} timed out after {seconds:g} s; check that all ranks of the "
                         "group make this call with the same arguments, or increase the timeout")


class ShardError(HpccollError, ValueError):
    """Ranks passed invalid arguments to sharded training; weights and state are unchanged.

    Attributes:
        faults: descriptions of the faults, by rank.
    """

    def __init__(self, faults: Mapping[int, Sequence[str]], remedy: str):
        self.faults = {rank: tuple(texts) for rank, texts in faults.items() if texts}
        text = "; ".join(f"rank {rank}: {', '.join(texts[:MOST_NAMED])}" + (
            f" and {len(texts) - MOST_NAMED} more" if len(texts) > MOST_NAMED else "")
            for rank, texts in sorted(self.faults.items()))
        super().__init__(f"{text}; {remedy}")


class FrameworkError(HpccollError, ImportError):
    """A framework is not installed, or its version is not supported.

    Attributes:
        framework: its name, such as ``"jax"``.
    """

    def __init__(self, framework: str, problem: str, extra: str = ""):
        self.framework = framework
        super().__init__(f"{framework}: {problem}; run pip install 'hpccoll[{extra or framework}]'")


class NonFiniteArray(ExchangeError, NonFiniteError):
    """An array contains NaN or infinity, which its compression does not support."""
