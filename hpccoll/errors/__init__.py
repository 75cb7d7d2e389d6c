"""Exceptions of hpccoll: their fields and their messages.

Each class also subclasses the built-in exception a caller would already catch, so
``except ValueError`` keeps working in programs without knowledge of hpccoll. A message has
three parts: the problem, the ranks or arguments, and the remedy.

A new error is a class here. One that is also an ``MPI.Exception`` goes into ``mpi.py``, so that
this module needs only the standard library. Attributes hold the fields, and the constructor
writes the message from them.
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

#: Names of a list that are all said beside a likely one.
MOST_CHOICES = 12


def did_you_mean(word: str, valid: Iterable[str]) -> str:
    """Suggest the names most similar to a word; empty if none is similar.

    >>> did_you_mean("Alreduce", ["allreduce", "bcast"])
    "did you mean 'allreduce'"
    """
    from difflib import get_close_matches  # only who errs pays for it

    by_case = {name.lower(): name for name in valid}
    near = [by_case[match] for match in get_close_matches(word.lower(), by_case, 2)]
    return f"did you mean {' or '.join(map(repr, near))}" if near else ""


class HpccollError(Exception):
    """Base of every exception raised on purpose by hpccoll.

    It can be pickled and copied, so that it comes back whole from another process.

    Attributes:
        states: where the ranks were, if the error is of a wait and that is known.
    """

    states: RankStates | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        # By default the constructor would get the message, which it makes of other arguments.
        return _made_again, (type(self), self.args, vars(self))


def cause_of(error: BaseException) -> BaseException | None:
    """Return what to name as the cause of an error that replaces another: no error of hpccoll."""
    return error.__cause__ if isinstance(error, HpccollError) else error


def _made_again(cls: type[HpccollError], args: tuple[Any, ...], fields: Mapping[str, Any]
                ) -> HpccollError:
    # Of two built-in bases only the one with fields of its own may make the object.
    error = OSError.__new__(cls) if issubclass(cls, OSError) else cls.__new__(cls)
    error.args = args
    vars(error).update(fields)
    return error


class ArgumentError(HpccollError, ValueError):
    """An argument has an unusable value; nothing was sent and no buffer was touched.

    Attributes:
        argument: name of the argument (or environment variable) at fault.
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
    """A call has failed on this communicator, here or on another rank: it cannot be used any more.

    Messages of the call may still arrive, and would be taken for those of later ones.
    """

    def __init__(self, message: str = "hpccoll: communicator is broken: a call failed on another "
                 "rank; call Dup on a working communicator, or end the job"):
        super().__init__(message)

    @classmethod
    def from_report(cls, rank: int, report: Mapping[str, Any]) -> BrokenCommunicatorError:
        """The error on other ranks, and in later calls, of a call that failed on a rank."""
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
    """Ranks that a call needs were killed or have exited.

    This is not a ``CollectiveTimeout``: a longer wait would not help. The communicator is broken.

    Attributes:
        ranks: the lost ranks.
    """

    def __init__(self, ranks: tuple[int, ...], states: RankStates, call: str, reporter: str = ""):
        self.ranks, self.states = ranks, states
        super().__init__(format_wait(
            states, f"{call} cannot complete, and the communicator is broken{reporter}",
            "call comm.shrink() on the remaining ranks, or end the job"))


class UnavailableError(HpccollError, NotImplementedError):
    """Something cannot be had with this MPI library, or as this job was started."""


class ConcurrentCallError(HpccollError, RuntimeError):
    """A call was made on a communicator during another call; nothing was sent.

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
    """This process was forked from a rank: it has the rank's memory, and no part in its job."""

    def __init__(self, pid: int):
        super().__init__(
            f"collective called in a forked process: its parent is rank process {pid}; call it in "
            "the parent, or start workers with multiprocessing.get_context('spawn')")


class MpiLibraryError(HpccollError, ImportError, RuntimeError):
    """No MPI library can be loaded, or the launcher is another one's."""

    def __init__(self, problem: str, remedy: str):
        super().__init__(f"{problem}; {remedy}")


class ScheduleError(HpccollError, ValueError):
    """A schedule is malformed: it names memory or ranks that do not exist, or is no schedule.

    Attributes:
        rank, round, step: where it is at fault, as ``print(schedule)`` shows it; ``None`` where it
            is not in a single one.
        problem: what is wrong there.
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
    """A schedule does not do what its collective promises."""


class CapabilityError(ScheduleError, NotImplementedError):
    """A schedule is right, but takes what this transport, or machine, does not have.

    Attributes:
        missing: what it is.
    """

    def __init__(self, missing: str, where: str, remedy: str, *, schedule: str = "",
                 rank: int | None = None, round: int | None = None, step: str | None = None):
        self.missing = missing
        super().__init__(f"requires {missing}, which {where} does not have; {remedy}",
                         schedule=schedule, rank=rank, round=round, step=step)


class CollectiveTimeout(HpccollError, TimeoutError, RuntimeError):
    """A collective did not finish in time.

    Attributes:
        collective, rank, round: what was running here.
        peers: the ranks it waited for.
        seconds: how long nothing had moved.
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
    """The node has no room for shared memory that a call needs."""


class MessageSizeError(HpccollError, RuntimeError):
    """A message arrived with another size than the schedule says: ranks disagree on counts."""


class ForeignMessage(MessageSizeError):
    """A message arrived that is not of this call, or not of this size.

    Attributes:
        peer: who sent it; -1 where it was seen without a message.
        rank: who expected another one.
    """

    def __init__(self, peer: int, rank: int):
        self.peer, self.rank = peer, rank
        who = f"rank {peer}" if peer >= 0 else "a rank"
        super().__init__(f"{who} makes a different call than rank {rank}, or sends another message "
                         "size; make the same calls with the same arguments on all ranks")


class TuningError(HpccollError, ValueError):
    """A tuning table cannot be used; the same error on every rank.

    Attributes:
        path: the file at fault, as text.
        problem: what is wrong with it.
    """

    def __init__(self, path: object, problem: str, remedy: str = ""):
        self.path, self.problem = str(path), problem
        super().__init__(f"tuning table {self.path}: {problem}; " + (
            remedy or "create a new one with 'hpccoll tune', or set HPCCOLL_TUNING=off"))


class NoisyMachineError(HpccollError, RuntimeError):
    """Other programs on the same cores disturbed the measurement; the same error on every rank."""


class NonFiniteError(HpccollError, FloatingPointError):
    """Gradients contain NaN or infinity; the same error on every rank, and nothing was applied.

    Attributes:
        ranks: with such gradients; empty if only the sum has them, or if ranks were not compared.
    """

    def __init__(self, problem: str, ranks: tuple[int, ...] = ()):
        self.ranks = ranks
        super().__init__(problem)


class ExchangeError(HpccollError, RuntimeError):
    """An exchange of gradients cannot go on; raised on every rank of it.

    Attributes:
        arrays: names of the arrays concerned.
        ranks: the ranks at fault.
    """

    def __init__(self, problem: str, arrays: tuple[str, ...] = (), ranks: tuple[int, ...] = ()):
        super().__init__(problem)
        self.arrays, self.ranks = arrays, ranks


class ExchangeMismatch(ExchangeError, ValueError):
    """Ranks disagree on an array, or bring one that is not what was declared."""


class ExchangeStall(ExchangeError, TimeoutError):
    """Some ranks have not brought an array that others wait for."""


class RankFailed(ExchangeError):
    """Another rank raised an error and has left the exchange."""


class ProcessGroupError(HpccollError, RuntimeError):
    """A process group cannot be made, or cannot be used any more."""


class GroupTimeout(HpccollError, TimeoutError, RuntimeError):
    """A call on a process group did not finish in time.

    Attributes:
        title: what ran, on which group and rank.
        seconds: how long it was waited for.
    """

    def __init__(self, title: str, seconds: float):
        self.title, self.seconds = title, seconds
        super().__init__(f"{title} timed out after {seconds:g} s; check that all ranks of the "
                         "group make this call with the same arguments, or increase the timeout")


class ShardError(HpccollError, ValueError):
    """Ranks did not bring what sharded training needs; weights and state are as before.

    Attributes:
        faults: what is wrong, by rank.
    """

    def __init__(self, faults: Mapping[int, Sequence[str]], remedy: str):
        self.faults = {rank: tuple(texts) for rank, texts in faults.items() if texts}
        text = "; ".join(f"rank {rank}: {', '.join(texts[:MOST_NAMED])}" + (
            f" and {len(texts) - MOST_NAMED} more" if len(texts) > MOST_NAMED else "")
            for rank, texts in sorted(self.faults.items()))
        super().__init__(f"{text}; {remedy}")


class FrameworkError(HpccollError, ImportError):
    """A framework is not installed, or in a version that hpccoll does not support.

    Attributes:
        framework: its name, such as ``"jax"``.
    """

    def __init__(self, framework: str, problem: str, extra: str = ""):
        self.framework = framework
        super().__init__(f"{framework}: {problem}; run pip install 'hpccoll[{extra or framework}]'")


class NonFiniteArray(ExchangeError, NonFiniteError):
    """An array holds NaN or infinity, and its compression cannot carry that."""
