"""What a simulation will cost, said before it starts: programs, messages, time and memory."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from statistics import median
from time import perf_counter
from typing import NamedTuple, TypeAlias

from hpccoll.errors import ArgumentError
from hpccoll.ir.cost.workload import Workload
from hpccoll.ir.in_network import InNetwork
from hpccoll.units import size_text, time_text

#: Seconds and bytes that a message takes, about, in the compiled event loop and in Python.
COMPILED = find_spec("hpccoll.simulator._events") is not None
COSTS = {True: (15e-6, 600), False: (80e-6, 3300)}
#: Most messages that are tried at all.
MOST = 100_000_000
#: Ranks whose programs are looked at, about.
LOOKED = 5
#: Told how a simulation goes on: its stage (``ESTIMATE``, ``PROGRAMS`` or ``MESSAGES``), the part
#: of it that is done (of an estimate: the seconds), and a line for people.
Told: TypeAlias = Callable[[str, float, str], None]
ESTIMATE, PROGRAMS, MESSAGES = "estimate", "programs", "messages"


def silent(stage: str, part: float, text: str) -> None:
    """Tell nobody."""


class Effort(NamedTuple):
    """What it takes.

    Attributes:
        programs: ranks, or classes of ranks, whose programs are made.
        messages: sends and receives of them all.
        seconds: about, on one core.
        nbytes: of memory, about.
    """

    programs: int
    messages: int
    seconds: float
    nbytes: float

    def __str__(self) -> str:
        return (f"{self.programs:,} programs and {self.messages:,} messages, about "
                f"{time_text(self.seconds, 2)} and {size_text(self.nbytes)}")


def effort(work: Workload, programs: int, settled: bool = True, repeat: int = 1) -> Effort:
    """Estimate from the programs of a few ranks.

    Args:
        work: what to do.
        programs: how many ranks are timed on their own.
        settled: the machine and the conditions let the compiled event loop serve it.
        repeat: how often it is simulated.
    """
    size, root = work.schedule.size, work.schedule.root
    # The first, the last and the root may have more to do than all others.
    special = {0, size - 1, root}
    others = {size * k // LOOKED for k in range(1, LOOKED)} - special or special
    if programs < size:
        special = set()
    rounds, took = {}, {}
    for rank in (*special, *others):
        start = perf_counter()
        rounds[rank] = work.rounds(rank)
        took[rank] = perf_counter() - start
    made = {rank: sum(len(r.messages) for r in held) for rank, held in rounds.items()}
    # The first program fills caches that serve all others, so a mean would count them as often.
    seconds = sum(took[rank] for rank in special) + (
        median(took[rank] for rank in others) * (programs - len(special)))
    usual = sum(made[rank] for rank in others) / len(others)
    # An end of a message counts half: its counterpart is one of another program.
    ends = round(sum(made[rank] for rank in special)
                 + usual * (programs - len(special))) * work.segments
    in_python = any(r.waits is not None or any(isinstance(m.peer, InNetwork) for m in r.messages)
                    for held in rounds.values() for r in held)
    each, nbytes = COSTS[COMPILED and settled and not in_python]
    return Effort(programs, ends, seconds + ends / 2 * each * repeat, ends / 2 * nbytes)


def check(expected: Effort, title: str) -> None:
    """Refuse what would not end, and not fit.

    Raises:
        ArgumentError: it would take days.
    """
    if expected.messages > MOST:
        raise ArgumentError("schedule", f"{title} requires {expected}, more than the limit",
                            "use fewer ranks, or a layout of equal groups")
