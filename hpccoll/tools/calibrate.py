"""Calibration: a machine for the simulator, measured on the ranks of this job.

For every level of the layout, two ranks that part there pass a message back and forth through
hpccoll itself, so that what its Python and its transports cost is in the numbers: the smallest
message gives ``alpha``, several one way, which need not wait for each other, its ``overhead``, and
the slope between large ones ``beta``. Then many send at once: between groups, disjoint pairs, all
in one direction; in the innermost group, all ranks in pairs, both ways.
If together they are clearly slower than one message times their number, the rate of all is the
limit of the link between groups, or of the bus in the innermost one: its memory. (Pairs that send
there and back would soon do so in turns, and each have a direction of the link to itself.) By how
much small messages of many ranks take longer than one on such a link is the ``header``. Reducing
and copying are timed on one rank, on arrays too large for most caches: they count for little where
messages are small.

Ranks that do not measure wait as they would in a collective, not asleep: where processors are
shared, a rank that waits takes turns with one that works.

What is not measured: switches.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any

import numpy
from mpi4py import MPI

import hpccoll
from hpccoll.errors import NoisyMachineError
from hpccoll.ir.cost.network import NetworkPaths
from hpccoll.ir.topology import Topology
from hpccoll.machine.identity import library_name
from hpccoll.measure.load import OtherLoad, load_text
from hpccoll.simulator.machine_model import Level, Machine
from hpccoll.tools.bench.provenance import record

#: Bytes of the message whose time is the latency; and of those that show the rate.
SMALL, MIDDLE, LARGE = 8, 4 << 20, 32 << 20
#: Batches of small and of large messages, whose median counts, as in benchmarks.
MANY, FEW = 100, 9
#: Seconds for the batches of one measurement, and fewest batches even where that takes longer.
PATIENCE, LEAST = 2.0, 3
#: Messages there and back in a batch: short, so that some batches are left in peace.
TURNS, LARGE_TURNS = 10, 2
#: Bytes of the arrays that are reduced and copied, and how often in a batch.
LOCAL, LOCAL_TURNS = 16 << 20, 3
#: From which factor between the batches' quarters on the machine is too busy to be measured.
BUSY = 10.0
#: Pairs together count as held up below this part of what they reach one by one.
HELD_UP = 0.85


def calibrate(comm: hpccoll.Comm, name: str,
              stopped: Callable[[], bool] = lambda: False, force: bool = False) -> Machine:
    """Measure a machine; collective over two ranks or more, and the same on all of them.

    Args:
        comm: the ranks.
        name: what the machine is called.
        stopped: asked after every measurement; where it says so on any rank, all end.
        force: accept the measurement of a busy machine.

    Raises:
        NoisyMachineError: on all ranks, where a busy machine was measured.
        KeyboardInterrupt: on all ranks, where one was told to stop.
    """
    def passing(*asked: Any) -> float:
        seconds = _passing(comm, *asked)
        if comm.allreduce(stopped(), MPI.LOR):
            raise KeyboardInterrupt
        return seconds

    topology, others = comm.layout, OtherLoad(comm)
    hosts = comm.allgather(MPI.Get_processor_name())
    levels: list[Level] = []
    names: set[str] = set()
    for depth, pairs in _crossings(topology):
        a, b = pairs[0]
        alone = passing(pairs[:1], SMALL)
        overhead = min(passing(pairs[:1], SMALL, one_way), alone / 2)
        middle, large = (passing(pairs[:1], n) for n in (MIDDLE, LARGE))
        beta = max(large - middle, 1e-3 * large) / (LARGE - MIDDLE)
        across = depth < topology.depth - 1
        senders = len(pairs) if across else 2 * len(pairs)
        limit = math.inf
        if senders > 1:
            together = senders * LARGE / passing(pairs, LARGE, one_way if across else exchanged)
            limit = together if together < HELD_UP * senders / beta else math.inf
        header = 0.0
        if across and limit < math.inf:
            # With header * beta alone, with header * senders / limit among others.
            delay = passing(pairs, SMALL) - alone
            header = min(max(delay, 0.0) / (senders / limit - beta), (alone - overhead) / beta)
        levels.append(Level(_name("node" if hosts[a] == hosts[b] else "network", names),
                            max(alone - overhead - header * beta, 0.0), beta,
                            link=limit if across else math.inf,
                            bus=math.inf if across else limit, overhead=overhead, header=header))
    spread = steadiness(comm)
    problem = load_text(comm.allreduce(others.share(), MPI.MAX)) or disturbed(spread)
    if problem and not force:
        raise NoisyMachineError(f"{problem}; no file is written; repeat it when the machine is "
                                "idle, with at most one rank per core, or use --force")
    gamma, copy = (comm.bcast(value) for value in _local())
    machine = record(comm, str(topology))
    words = comm.bcast(None if machine is None else (
        f"{machine['ranks']} ranks ({topology}) on {len(machine['hosts'])} host(s), "
        f"{machine['cpu']}, "
        f"{machine['cores']} cores, {library_name(machine['mpi'])}, hpccoll {machine['hpccoll']}",
        f"measured by hpccoll simulate --calibrate, {machine['time'][:10]}"))
    return Machine(name, tuple(levels), gamma, copy, f"measured: {words[0]}", (words[1],))


def _crossings(topology: Topology) -> Iterator[tuple[int, list[tuple[int, int]]]]:
    """For every depth at which some ranks part: disjoint pairs of such ranks.

    At the innermost depth the pairs lie in one group, elsewhere in two neighbouring groups.
    """
    layout = NetworkPaths(topology)
    paths = [layout.path(rank) for rank in range(topology.size)]
    innermost = topology.depth - 1
    for depth in range(topology.depth):
        groups: dict[tuple, dict[int, list[int]]] = {}
        for rank, path in enumerate(paths):
            if len(path) > depth:
                groups.setdefault(path[:depth], {}).setdefault(path[depth], []).append(rank)
        parted = next((list(g.values()) for g in groups.values() if len(g) > 1), None)
        if parted is None:
            continue
        if depth == innermost:
            ranks = [rank for group in parted for rank in group]
            yield depth, list(zip(ranks[::2], ranks[1::2]))
        else:
            yield depth, list(zip(parted[0], parted[1]))


def steadiness(comm: hpccoll.Comm) -> float:
    """By which factor quarters of the batches of one small message differ, on the worst rank.

    Between the first and the third quarter of the batches, so that single bad moments do not count.
    """
    buffer = numpy.zeros(SMALL // 4, "f4")

    def often() -> None:
        for _ in range(TURNS):
            comm.Bcast(buffer, 0)

    with comm.using(bcast="linear"):
        often()
        times = sorted(_timed(often) for _ in range(MANY))
    return float(comm.allreduce(times[3 * MANY // 4] / times[MANY // 4], MPI.MAX))


def _timed(function: Callable[[], None]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def there_and_back(pair: hpccoll.Comm, buffer: numpy.ndarray) -> None:
    """Two messages, one after the other."""
    pair.Bcast(buffer, 0)
    pair.Bcast(buffer, 1)


def one_way(pair: hpccoll.Comm, buffer: numpy.ndarray) -> None:
    """Two messages, one after the other, from the first rank."""
    pair.Bcast(buffer, 0)
    pair.Bcast(buffer, 0)


def exchanged(pair: hpccoll.Comm, buffer: numpy.ndarray) -> None:
    """Two messages at once, twice."""
    pair.Allgather(MPI.IN_PLACE, buffer)
    pair.Allgather(MPI.IN_PLACE, buffer)


def disturbed(spread: float) -> str:
    """What batches that differ by such a factor say of the machine; empty where they are steady."""
    if spread < BUSY:
        return ""
    return (f"batches of one message differ by {spread:.0f}x: other processes use these cores")


def _passing(comm: hpccoll.Comm, pairs: Sequence[tuple[int, int]], nbytes: int,
             messages: Callable[[hpccoll.Comm, numpy.ndarray], None] = there_and_back) -> float:
    """Seconds of one of two messages between the ranks of a pair, the slowest of several pairs."""
    index = next((i for i, pair in enumerate(pairs) if comm.rank in pair), None)
    plain = MPI.Intracomm(comm).Split(MPI.UNDEFINED if index is None else index, comm.rank)
    seconds = 0.0
    if plain != MPI.COMM_NULL:
        # With a layout of its own: the one that the environment gives is that of all ranks.
        pair = hpccoll.Comm(plain, Topology(2))
        buffer = numpy.zeros((2 if messages is exchanged else 1) * nbytes // 4, "f4")
        turns, batches = (TURNS, MANY) if nbytes == SMALL else (LARGE_TURNS, FEW)

        def often() -> None:
            for _ in range(turns):
                messages(pair, buffer)

        with pair.using(bcast="linear", allgather="ring", segment_bytes=2 * nbytes):
            often()  # makes what the others find ready
            fit = PATIENCE / pair.allreduce(_median(often, 1), MPI.MAX)
            seconds = _median(often, min(batches, max(LEAST, int(fit)))) / (2 * turns)
        pair.Free()
    ended = comm.Ibarrier()
    while not ended.Test():
        time.sleep(0)
    return comm.allreduce(seconds, MPI.MAX)


def _local() -> tuple[float, float]:
    """Seconds per byte of reducing into one operand, and of copying."""
    left, right = numpy.ones(LOCAL // 4, "f4"), numpy.ones(LOCAL // 4, "f4")

    def timed(function: Callable[..., Any], *operands: Any) -> float:
        def often() -> None:
            for _ in range(LOCAL_TURNS):
                function(*operands)
        return _median(often, FEW) / LOCAL_TURNS / LOCAL

    return timed(numpy.add, left, right, left), timed(numpy.copyto, left, right)


def _median(function: Callable[[], None], batches: int) -> float:
    return median(_timed(function) for _ in range(batches))


def _name(word: str, taken: set[str]) -> str:
    """The word, or the word with a number where an outer level has it."""
    name, number = word, 2
    while name in taken:
        name, number = f"{word}-{number}", number + 1
    taken.add(name)
    return name
