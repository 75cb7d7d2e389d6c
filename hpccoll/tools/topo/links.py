"""Cost of a message between two ranks: latency and bandwidth, measured pair by pair.

One pair measures at a time, so that links are not shared; the other ranks sleep meanwhile, because
a polling rank would take a processor from those that measure.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy
from mpi4py import MPI

from hpccoll.runtime.progress.waiting import wait_until
from hpccoll.tools.topo.job_map import JobMap

#: Bytes of the latency message, and of the bandwidth message.
SMALL, LARGE = 8, 1 << 20
#: Round trips: warm-up, measured small ones, measured large ones.
WARMUP, SHORT, LONG = 5, 50, 5
#: Maximum number of ranks of which all pairs are measured.
MOST = 32
TAG = 7


class Links(NamedTuple):
    """Measured links, on rank 0.

    Attributes:
        ranks: the measured ranks, in order.
        latency: seconds of a small message one way, by pair of ranks, the smaller one first.
        bandwidth: bytes per second of a large message, by pair of ranks.
        missing: number of pairs that were not measured, after an interruption.
    """

    ranks: tuple[int, ...]
    latency: Mapping[tuple[int, int], float]
    bandwidth: Mapping[tuple[int, int], float]
    missing: int = 0

    def levels(self, machine: JobMap) -> dict[str, tuple[float, float, int]]:
        """Return median latency, median bandwidth and number of pairs by level."""
        pairs: dict[str, list[tuple[int, int]]] = {}
        for pair in self.latency:
            pairs.setdefault(machine.meet(*pair), []).append(pair)
        return {level: (statistics.median(self.latency[pair] for pair in measured),
                        statistics.median(self.bandwidth[pair] for pair in measured), len(measured))
                for level, measured in pairs.items()}


def choose_ranks(size: int, most: int = MOST) -> tuple[int, ...]:
    """Select the ranks to measure: all, or some neighbours and some distant ones.

    >>> choose_ranks(4), choose_ranks(100, 6)
    ((0, 1, 2, 3), (0, 1, 2, 32, 65, 99))
    """
    if size <= most:
        return tuple(range(size))
    near = most // 2
    far = most - near
    return tuple(sorted({*range(near), *(size * n // far - 1 for n in range(1, far + 1))}))


def measure(comm: MPI.Intracomm, ranks: Sequence[int],
            progress: Callable[[str, float], None] = lambda name, part: None,
            stopped: Callable[[], bool] = lambda: False) -> Links | None:
    """Measure all pairs of ranks; collective over ``comm``, ``None`` on all ranks but 0.

    If ``stopped`` returns True on any rank, the remaining pairs are not measured.
    """
    mine, me = {}, comm.Get_rank()
    pairs = [(a, b) for i, a in enumerate(ranks) for b in ranks[i + 1:]]
    for number, (a, b) in enumerate(pairs):
        if me in (a, b):
            times = _pair(comm, b if me == a else a, first=me == a)
            if me == a:
                mine[a, b] = times
        progress(f"ranks {a} and {b}", (number + 1) / len(pairs))
        if wait_for_all(comm, stopped()):
            break
    answers = comm.gather(mine)
    if answers is None:
        return None
    times_of = {pair: times for part in answers for pair, times in part.items()}
    done = [pair for pair in pairs if pair in times_of]
    return Links(tuple(ranks), {pair: times_of[pair][0] for pair in done},
                 {pair: LARGE / times_of[pair][1] for pair in done}, len(pairs) - len(done))


def wait_for_all(comm: MPI.Intracomm, stop: bool = False) -> bool:
    """Wait for all ranks, with sleeps that leave processors to working ranks.

    Returns:
        True if any rank requests a stop.
    """
    mine, found = numpy.array([stop], "i4"), numpy.empty(1, "i4")
    request = comm.Iallreduce(mine, found, MPI.MAX)
    wait_until(request.Test)
    return bool(found[0])


def _pair(comm: MPI.Intracomm, peer: int, first: bool) -> tuple[float, float]:
    """Measure the seconds of a small and of a large message, one way: half a round trip.

    Uses the shortest time of small messages, because disturbances only add time, and the median of
    large messages, because an idle link may buffer the first bytes.
    """
    halves = []
    for nbytes, trips, middle in ((SMALL, SHORT, min), (LARGE, LONG, statistics.median)):
        out, into = numpy.zeros(nbytes, "u1"), numpy.zeros(nbytes, "u1")
        seconds = []
        for trip in range(WARMUP + trips):
            start = time.perf_counter()
            if first:
                comm.Send(out, peer, TAG)
                comm.Recv(into, peer, TAG)
            else:
                comm.Recv(into, peer, TAG)
                comm.Send(out, peer, TAG)
            if trip >= WARMUP:
                seconds.append(time.perf_counter() - start)
        halves.append(middle(seconds) / 2)
    return halves[0], halves[1]
