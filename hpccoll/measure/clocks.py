"""Clocks of ranks, compared by messages."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path
from typing import Any

import numpy as np

#: Messages to and fro between rank 0 and a node, of which the fastest tells the time.
ROUNDS, TAG = 8, 17


def seconds_ahead(comm: Any) -> float:
    """How far the clock of rank 0 is ahead of this rank's; collective.

    Ranks of one node read the same clock. One rank of every other node sends messages to and fro,
    and takes the answer of the fastest to come from the middle of its way (F. Cristian,
    Probabilistic clock synchronization, 1989).
    """
    rank, clocks = comm.Get_rank(), comm.allgather(clock_name())
    leaders = {clock: clocks.index(clock) for clock in clocks if clock != clocks[0]}
    ahead: dict[str, float] = {}
    stamp = np.empty(1)
    for clock, leader in leaders.items():
        if rank == leader:
            ahead[clock] = _ask(comm, stamp)
        elif rank == 0:
            for _ in range(ROUNDS):
                comm.Recv(stamp, leader, TAG)
                stamp[0] = time.perf_counter()
                comm.Send(stamp, leader, TAG)
    known: dict[str, float] = {}
    for found in comm.allgather(ahead):
        known |= found
    return known.get(clocks[rank], 0.0)


def _ask(comm: Any, stamp: Any) -> float:
    answers = []
    for _ in range(ROUNDS):
        sent = time.perf_counter()
        comm.Send(stamp, 0, TAG)
        comm.Recv(stamp, 0, TAG)
        back = time.perf_counter()
        answers.append((back - sent, float(stamp[0]) - (sent + back) / 2))
    return min(answers)[1]


def clock_name() -> str:
    """What tells the clock behind :func:`time.perf_counter` from those of other nodes."""
    try:
        # Containers may have a clock of their own within one kernel.
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/time')}"
    except OSError:
        return platform.node()
