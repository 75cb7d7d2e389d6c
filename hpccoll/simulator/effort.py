"""Estimated cost of a simulation: programs, messages, time and memory."""

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

#: Approximate seconds and bytes per message in the compiled event loop and in Python.
COMPILED = find_spec("hpccoll.simulator._events") is not None
COSTS = {True: (15e-6, 600), False: (80e-6, 3300)}
#: Maximum number of simulated messages.
MOST = 100_000_000
#: Approximate number of ranks whose programs are sampled.
LOOKED = 5
#: Progress callback: stage (``ESTIMATE``, ``PROGRAMS`` or ``MESSAGES``), its completed share
#: (of an estimate: the seconds), and a line of text.
ProgressCallback: TypeAlias = Callable[[str, float, str], None]
ESTIMATE, PROGRAMS, MESSAGES = "estimate", "programs", "messages"


def ignore_progress(stage: str, part: float, text: str) -> None:
    """Ignore progress."""


class Effort(NamedTuple):
    """Estimated effort of a simulation.

    Attributes:
        programs: number of ranks, or classes of ranks, whose programs are made.
        messages: sends and receives of all these programs.
        seconds: approximate, on one core.
        nbytes: of memory, approximate.
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
        work: the rounds of all ranks.
        programs: number of separately simulated ranks.
        settled: True if machine and conditions permit the compiled event loop.
        repeat: number of simulations.
    """
    size, root = work.schedule.size, work.schedule.root
    # The first, the last and the root may have more rounds than all others.
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
    # The first program fills caches for all others, so a mean would count them repeatedly.
    seconds = sum(took[rank] for rank in special) + (
        median(took[rank] for rank in others) * (programs - len(special)))
    usual = sum(made[rank] for rank in others) / len(others)
    # An end of a message counts half: its counterpart belongs to another program.
    ends = round(sum(made[rank] for rank in special)
                 + usual * (programs - len(special))) * work.segments
    in_python = any(r.waits is not None or any(isinstance(m.peer, InNetwork) for m in r.messages)
                    for held in rounds.values() for r in held)
    each, nbytes = COSTS[COMPILED and settled and not in_python]
    return Effort(programs, ends, seconds + ends / 2 * each * repeat, ends / 2 * nbytes)


def check(expected: Effort, title: str) -> None:
    """Raise if a simulation would exceed time or memory."""
    if expected.messages > MOST:
        raise ArgumentError("schedule", f"{title} requires {expected}, more than the limit",
                            "use fewer ranks, or a layout of equal groups")
