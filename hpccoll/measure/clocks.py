"""Offsets between the clocks of ranks, measured by messages."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path
from typing import Any

import numpy as np

#: Round trips between rank 0 and a node; the fastest one determines the offset.
ROUNDS, TAG = 8, 17


def seconds_ahead(comm: Any) -> float:
    """Return how many seconds the clock of rank 0 is ahead of this rank's; collective.

    Ranks of one node read the same clock. One rank of every other node measures round trips, and
    assumes that the fastest reply was sent at half of its round trip (F. Cristian, Probabilistic
    clock synchronization, 1989).
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
    """Return an identifier of the clock of :func:`time.perf_counter`, different on other nodes."""
    try:
        # Containers may have their own clock within one kernel.
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/time')}"
    except OSError:
        return platform.node()
