"""Calibration: a machine for the simulator, measured on the ranks of this job.

At every level of the layout, two ranks in different groups exchange messages through hpccoll
itself, so that the cost of its Python code and transports is included. The smallest message gives
``alpha``; several one-way messages, which need not wait for each other, give ``overhead``; the
slope between large ones gives ``beta``. Then many ranks send concurrently: between groups, disjoint
pairs, all in one direction; in the innermost group, all ranks in pairs, both ways.
If the concurrent messages are clearly slower than one message times their number, their total rate
is the limit of the link between groups, or of the bus in the innermost one: its memory. (Pairs that
send both ways would soon take turns, and each would have a direction of the link alone.) The
additional time of small messages of many ranks on such a link is the ``header``. Reductions and
copies are timed on one rank, on arrays too large for most caches: with small messages they matter
little.

Ranks that do not measure poll as in a collective, and do not sleep: on shared processors, a waiting
rank takes turns with a working one.

Switches are not measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from statistics import median
from typing import Any

import numpy
from mpi4py import MPI

import hpccoll
from hpccoll.errors import NoisyMachineError
from hpccoll.ir.cost.network import NetworkPaths
from hpccoll.ir.topology import Topology
from hpccoll.machine.backoff import wait_until
from hpccoll.machine.identity import library_name
from hpccoll.measure.load import OtherLoad, load_text
from hpccoll.measure.samples import sample
from hpccoll.simulator.machine_model import Level, Machine
from hpccoll.tools.bench.provenance import record

#: Bytes of the latency message, and of the bandwidth messages.
SMALL, MIDDLE, LARGE = 8, 4 << 20, 32 << 20
#: Number of batches of small and of large messages; the median is used, as in benchmarks.
MANY, FEW = 100, 9
#: Seconds for the batches of one measurement, and minimum batches even if that takes longer.
PATIENCE, LEAST = 2.0, 3
#: Round trips in a batch: few, so that some batches are undisturbed.
TURNS, LARGE_TURNS = 10, 2
#: Bytes of the reduced and copied arrays, and repetitions in a batch.
LOCAL, LOCAL_TURNS = 16 << 20, 3
#: Factor between the batches' quarters above which the machine is too busy.
BUSY = 10.0
#: Concurrent pairs count as limited below this part of the sum of their single rates.
HELD_UP = 0.85


def calibrate(comm: hpccoll.Comm, name: str,
              stopped: Callable[[], bool] = lambda: False, force: bool = False) -> Machine:
    """Measure a machine; collective over two ranks or more, and the same on all of them.

    Args:
        stopped: callback after every measurement; if it returns True on any rank, all end.
        force: True to accept the measurement of a busy machine.
    """
    def time_message(*asked: Any) -> float:
        seconds = _message_seconds(comm, *asked)
        if comm.allreduce(stopped(), MPI.LOR):
            raise KeyboardInterrupt
        return seconds

    topology, others = comm.layout, OtherLoad(comm)
    hosts = comm.allgather(MPI.Get_processor_name())
    levels: list[Level] = []
    names: set[str] = set()
    for depth, pairs in _crossings(topology):
        a, b = pairs[0]
        alone = time_message(pairs[:1], SMALL)
        overhead = min(time_message(pairs[:1], SMALL, one_way), alone / 2)
        middle, large = (time_message(pairs[:1], n) for n in (MIDDLE, LARGE))
        beta = max(large - middle, 1e-3 * large) / (LARGE - MIDDLE)
        across = depth < topology.depth - 1
        senders = len(pairs) if across else 2 * len(pairs)
        limit = math.inf
        if senders > 1:
            together = senders * LARGE / time_message(pairs, LARGE, one_way if across
                                                      else exchange_twice)
            limit = together if together < HELD_UP * senders / beta else math.inf
        header = 0.0
        if across and limit < math.inf:
            # With header * beta alone, with header * senders / limit among others.
            delay = time_message(pairs, SMALL) - alone
            header = min(max(delay, 0.0) / (senders / limit - beta), (alone - overhead) / beta)
        levels.append(Level(_name("node" if hosts[a] == hosts[b] else "network", names),
                            max(alone - overhead - header * beta, 0.0), beta,
                            link=limit if across else math.inf,
                            bus=math.inf if across else limit, overhead=overhead, header=header))
    spread = steadiness(comm)
    problem = load_text(comm.allreduce(others.share(), MPI.MAX)) or describe_spread(spread)
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
    """Yield each depth with more than one group, and disjoint pairs of ranks in different groups.

    At the innermost depth the pairs are in one group, elsewhere in two neighbouring groups.
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
    """Return the factor between quarters of the batches of one small message, on the worst rank.

    The factor is between the first and the third quarter, so single disturbances have no effect.
    """
    buffer = numpy.zeros(SMALL // 4, "f4")

    with comm.using(bcast="linear"):
        times = sorted(sample(lambda: comm.Bcast(buffer, 0), 1 + MANY, calls=TURNS)[1:])
    return float(comm.allreduce(times[3 * MANY // 4] / times[MANY // 4], MPI.MAX))


def there_and_back(pair: hpccoll.Comm, buffer: numpy.ndarray) -> None:
    """Send a message, and receive the reply."""
    pair.Bcast(buffer, 0)
    pair.Bcast(buffer, 1)


def one_way(pair: hpccoll.Comm, buffer: numpy.ndarray) -> None:
    """Send two messages from the first rank, one after the other."""
    pair.Bcast(buffer, 0)
    pair.Bcast(buffer, 0)


def exchange_twice(pair: hpccoll.Comm, buffer: numpy.ndarray) -> None:
    """Exchange two messages concurrently, twice."""
    pair.Allgather(MPI.IN_PLACE, buffer)
    pair.Allgather(MPI.IN_PLACE, buffer)


def describe_spread(spread: float) -> str:
    """Return a text on a factor between batches; empty if they are steady."""
    if spread < BUSY:
        return ""
    return (f"batches of one message differ by {spread:.0f}x: other processes use these cores")


def _message_seconds(comm: hpccoll.Comm, pairs: Sequence[tuple[int, int]], nbytes: int,
                     messages: Callable[[hpccoll.Comm, numpy.ndarray],
                                        None] = there_and_back) -> float:
    """Return the seconds of one of two messages in a pair; of the slowest of several pairs."""
    index = next((i for i, pair in enumerate(pairs) if comm.rank in pair), None)
    plain = MPI.Intracomm(comm).Split(MPI.UNDEFINED if index is None else index, comm.rank)
    seconds = 0.0
    if plain != MPI.COMM_NULL:
        # An explicit layout: the layout in the environment is that of all ranks.
        pair = hpccoll.Comm(plain, Topology(2))
        buffer = numpy.zeros((2 if messages is exchange_twice else 1) * nbytes // 4, "f4")
        turns, batches = (TURNS, MANY) if nbytes == SMALL else (LARGE_TURNS, FEW)

        def batches_of(count: int) -> float:
            return turns * median(sample(lambda: messages(pair, buffer), count, calls=turns))

        with pair.using(bcast="linear", allgather="ring", segment_bytes=2 * nbytes):
            batches_of(1)  # warm-up: connections and plans
            fit = PATIENCE / pair.allreduce(batches_of(1), MPI.MAX)
            seconds = batches_of(min(batches, max(LEAST, int(fit)))) / (2 * turns)
        pair.Free()
    wait_until(comm.Ibarrier().Test)
    return comm.allreduce(seconds, MPI.MAX)


def _local() -> tuple[float, float]:
    """Return the seconds per byte of reducing into one operand, and of copying."""
    left, right = numpy.ones(LOCAL // 4, "f4"), numpy.ones(LOCAL // 4, "f4")

    def time_function(function: Callable[..., Any], *operands: Any) -> float:
        return median(sample(partial(function, *operands), FEW, calls=LOCAL_TURNS)) / LOCAL

    return time_function(numpy.add, left, right, left), time_function(numpy.copyto, left, right)


def _name(word: str, taken: set[str]) -> str:
    """Return the word, with a number if an outer level has the same name."""
    name, number = word, 2
    while name in taken:
        name, number = f"{word}-{number}", number + 1
    taken.add(name)
    return name
