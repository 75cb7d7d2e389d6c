"""The event loop in C, if compiled: the same events with identical bits.

Input and output are arrays; rounds of the log become objects on access (decision 0055).
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

try:
    from hpccoll.simulator._events import run as _pass_time
except ImportError:  # not compiled
    _pass_time = None  # type: ignore[assignment]

from hpccoll.simulator.effort import MESSAGES, ProgressCallback
from hpccoll.simulator.traffic import AwaitedMessage, CompletedRound, SimulationRun
from hpccoll.simulator.wiring import ChannelWiring
from hpccoll.units import time_text


def is_available() -> bool:
    """Return True if the event loop in C was compiled."""
    return _pass_time is not None


def run_compiled(wiring: ChannelWiring, progress: ProgressCallback) -> SimulationRun:
    """Simulate the wired programs."""
    work, programs = wiring.work, wiring.programs
    kinds = {(0, wiring.machine.level(0).alpha): 0}
    kind_of = array("i", [kinds.setdefault(key, len(kinds))
                          for key in zip(wiring.depths, wiring.alphas)])
    levels = [wiring.machine.level(depth) for depth, _ in kinds]
    log = _Log(wiring)
    busy, carried = _zeros("d", len(wiring.ranks)), _zeros("d", len(wiring.capacity))
    level_bytes, counts, ends = _zeros("d", len(levels)), _zeros("q", 2), wiring.ends or 1
    inputs = (wiring.capacity, kind_of, wiring.first_use, wiring.uses, wiring.weights,
              wiring.holds, array("d", [alpha for _, alpha in kinds]),
              *(array("d", [getattr(level, what) for level in levels])
                for what in ("overhead", "header")),
              programs.first_round, wiring.seconds, programs.first_message, wiring.codes,
              programs.nbytes, array("i", map(work.kind, range(work.segments))), wiring.multiple,
              log.first)
    outputs = (*log.columns, log.held, busy, carried, level_bytes, counts)

    def report_progress(met: int, now: float) -> None:
        progress(MESSAGES, 2 * met / ends, f"{time_text(now)} are simulated")

    fault = _pass_time(inputs, outputs, work.depth, report_progress)
    if fault is not None:
        thread, number, *what = fault
        raise (wiring.stuck_error if len(what) == 1 else wiring.size_error)(
            thread // work.depth, number, *what)
    sent: dict[int, float] = {}
    for (depth, _), nbytes in zip(kinds, level_bytes):
        if nbytes or counts[0]:
            sent[depth] = sent.get(depth, 0.0) + nbytes
    return wiring.outcome([_Thread(log, thread) for thread in range(len(log.held))], busy, sent,
                          carried, counts[0])


def _zeros(kind: str, number: int) -> array:
    made = array(kind)
    return array(kind, bytes(number * made.itemsize))


class _Log:
    """Rounds of all threads, in columns.

    For each: times of its begin, its arrival, its end and the match of its last message; thread and
    round that posted that message, the class of ranks, and the message.
    """

    def __init__(self, wiring: ChannelWiring):
        self.wiring, work = wiring, wiring.work
        self.first, rounds = array("q", [0]), 0
        for rank in range(len(wiring.ranks)):
            for slot in range(work.depth):
                rounds += sum(len(wiring.rounds(rank, segment))
                              for segment in range(slot, work.segments, work.depth))
                self.first.append(rounds)
        self.held = _zeros("i", len(self.first) - 1)
        self.columns = (*(_zeros("d", rounds) for _ in range(4)),
                        *(_zeros("i", rounds) for _ in range(4)))

    def round_at(self, place: int) -> CompletedRound:
        began, arrived, ended, matched, by, at, peer, message = (
            column[place] for column in self.columns)
        if by < 0:
            return CompletedRound(began, arrived, ended, None)
        wiring = self.wiring
        channel, nbytes = wiring.codes[message] >> 1, wiring.programs.nbytes[message]
        depth = wiring.depths[channel]
        level = wiring.machine.level(depth)
        return CompletedRound(began, arrived, ended, AwaitedMessage(
            by, at, peer, matched, wiring.alphas[channel],
            wiring.betas[channel] * (nbytes + level.header), nbytes, depth))


class _Thread(Sequence[CompletedRound]):
    """Log of one thread; its rounds become objects on access."""

    __slots__ = ("_log", "number")

    def __init__(self, log: _Log, number: int):
        self._log, self.number = log, number

    @property
    def rank(self) -> int:
        return self.number // self._log.wiring.work.depth

    @property
    def log(self) -> Sequence[CompletedRound]:
        return self

    def __len__(self) -> int:
        return self._log.held[self.number]

    def __getitem__(self, index: Any) -> Any:
        places = range(len(self))[index]
        first = self._log.first[self.number]
        return (self._log.round_at(first + places) if isinstance(places, int)
                else [self._log.round_at(first + place) for place in places])
