"""Exploration of all orders of messages: ``python -m hpccoll.testing.model_check``.

A simulated network stores the posted sends and receives, and delivers a message only on request:

    rank --posts--> network --deliver(edge)--> rank, which continues as far as it can

Between messages ranks only use their own memory, so runs differ in the order of deliveries only.
:func:`explore` tries all orders. If two orders have delivered the same messages, the bits of all
memory must be equal, which is checked; so each such state is continued once. That is exhaustive
for schedules without wildcards (S. F. Siegel, G. S. Avrunin, "Modeling wildcard-free MPI programs
for verification", PPoPP 2005). :func:`wander` takes one random order, for more ranks.

Sends are *synchronous*, complete at the delivery, or *buffered*, complete immediately.
:mod:`hpccoll.testing.fault_injection` injects faults into messages.
"""

from __future__ import annotations

import hashlib
import random
import sys
import time
from collections import deque
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import numpy

from hpccoll.errors import HpccollError
from hpccoll.ir.schedule import Schedule
from hpccoll.testing import every
from hpccoll.testing.world import Problem, Seat, StallError
from hpccoll.transport import NOTHING, Batch, Endpoint, MessageSpec
from hpccoll.transport.checked import CheckedEndpoint
from hpccoll.transport.loopback import spoil

__all__ = ["ExplorationResult", "Run", "explore", "explore_schedule", "wander"]

#: Source, destination and tag.
Edge = tuple[int, int, int]
#: Maximum states of one schedule.
MOST_STATES = 100_000
#: Sizes that the command explores; ranks and number of its random orders.
RANKS, WANDERERS, WANDERINGS = range(2, 5), 8, 10_000


class Network:
    """Messages between the ranks of a world, delivered one by one.

    Args:
        size: number of ranks.
    """

    def __init__(self, size: int, buffered: bool = False):
        self.size, self.buffered = size, buffered
        self.sent: dict[Edge, deque[_Message]] = {}
        self.awaited: dict[Edge, deque[_Message]] = {}
        #: Messages delivered so far, by edge.
        self.delivered: dict[Edge, int] = {}

    def clear(self) -> None:
        """Discard all messages."""
        for messages in (self.sent, self.awaited, self.delivered):
            messages.clear()

    def endpoint(self, rank: int) -> Endpoint:
        """Return one rank's side of this network."""
        return NetworkEndpoint(self, rank)

    def deliverable_edges(self) -> list[Edge]:
        """Return the edges on which a message can be delivered now."""
        return sorted(edge for edge, sent in self.sent.items()
                      if sent and self.awaited.get(edge))

    def deliver(self, edge: Edge) -> None:
        """Deliver the next message of an edge."""
        message, sink = self.sent[edge].popleft(), self.awaited[edge].popleft()
        self.delivered[edge] = self.delivered.get(edge, 0) + 1
        if message.array.nbytes != sink.array.nbytes:
            raise MisfitMessage(edge, message.array.nbytes, sink.array.nbytes)
        sink.array.view("u1")[...] = message.array.view("u1")
        message.done = sink.done = True

    def post(self, edge: Edge, sends: bool, array: Any) -> _Message:
        """Post one end of a message."""
        if not sends:
            spoil(array)
        message = _Message(array.copy() if sends and self.buffered else array,
                           sends and self.buffered)
        (self.sent if sends else self.awaited).setdefault(edge, deque()).append(message)
        return message

    def copy_message(self, message: _Message) -> _Message:
        """Return a copy of a message without a sender."""
        return _Message(message.array.copy(), True)

    def unreceived_edges(self) -> list[Edge]:
        """Return the edges with messages that were not received."""
        return sorted(edge for edge, sent in self.sent.items() if sent)


class MisfitMessage(HpccollError, RuntimeError):
    """The size of a message differs from that of its receive."""

    def __init__(self, edge: Edge, sent: int, wanted: int):
        self.edge = edge
        super().__init__(f"message from rank {edge[0]} to rank {edge[1]} has {sent} bytes, the "
                         f"receive {wanted} bytes")


class _Message:
    """End of a message, and True once that rank has completed it."""

    def __init__(self, array: Any, done: bool):
        self.array, self.done = array, done


class NetworkEndpoint:
    """One rank's side of a :class:`Network`, whose messages have one receiver each."""

    offers = NOTHING

    def __init__(self, network: Network, rank: int):
        self.network, self.rank, self.size = network, rank, network.size

    def direct(self, peers: Sequence[int], tag: int) -> bool:
        """Return False: messages are never used in place."""
        return False

    def batch(self, postings: Sequence[MessageSpec], tag: int, repeated: bool) -> Batch:
        """Prepare messages; see :class:`hpccoll.transport.Endpoint`."""
        return NetworkBatch(self, postings, tag)


class NetworkBatch:
    """Messages of one rank of a :class:`Network`."""

    def __init__(self, endpoint: NetworkEndpoint, postings: Sequence[MessageSpec], tag: int):
        self.endpoint, self.postings, self.tag = endpoint, postings, tag
        self.pending: list[_Message] = []

    def start(self) -> None:
        network, rank, tag = self.endpoint.network, self.endpoint.rank, self.tag
        self.pending = [network.post((rank, peer, tag) if sends else (peer, rank, tag), sends,
                                     array) for sends, peer, array, _ in self.postings]

    def test(self, tries: int = 1) -> bool:
        return all(message.done for message in self.pending)

    def free(self) -> None:
        self.pending = []


class Run:
    """Run of a schedule on a network, with a choice of the next delivery.

    Args:
        schedule, problem: the schedule and its data.
        network: network between the ranks.
        checked: messages carry checksums.
        segment: see :class:`hpccoll.testing.world.Seat`.
        calls: number of consecutive calls.
    """

    def __init__(self, schedule: Schedule, problem: Problem, network: Network,
                 checked: bool = False, segment: int = 0, calls: int = 1):
        self.network, self.checked, self.calls = network, checked, calls
        self.seats = [Seat(schedule, problem, rank, segment=segment)
                      for rank in range(problem.size)]
        self.begin()

    def begin(self) -> None:
        """Restart with fresh memory, up to the choice of the first delivery."""
        self.network.clear()
        endpoints = [self.network.endpoint(seat.rank) for seat in self.seats]
        wrapped: list[Endpoint] = [*map(CheckedEndpoint, endpoints)] if self.checked else endpoints
        for seat in self.seats:
            seat.fill()
        self.executions = [seat.execution(endpoint) for seat, endpoint in zip(self.seats, wrapped)]
        self.left = [self.calls] * len(self.seats)
        for seat in self.seats:
            self._begin(seat.rank)

    def _begin(self, rank: int) -> None:
        execution = self.executions[rank]
        while execution.done and self.left[rank]:
            self.left[rank] -= 1
            execution.start()

    def choices(self) -> list[Edge]:
        """Return the possible deliveries."""
        return self.network.deliverable_edges()

    def deliver(self, edge: Edge) -> None:
        """Deliver a message, and continue both its ranks as far as possible."""
        self.network.deliver(edge)
        for rank in edge[:2]:
            while self.executions[rank].progress():
                pass
            self._begin(rank)

    @property
    def is_done(self) -> bool:
        """Return True if all ranks have finished."""
        return all(execution.done for execution in self.executions) and not any(self.left)

    def stall_error(self) -> StallError:
        """Return the error of a run that cannot continue; names the ranks and their peers."""
        return StallError({e.endpoint.rank: e.pending_peers() for e in self.executions
                           if not e.done})

    def state(self) -> Hashable:
        """Return the number of delivered messages by edge."""
        return tuple(sorted(self.network.delivered.items()))

    def digest(self) -> bytes:
        """Return a digest of all memory and the positions of all ranks."""
        hashed = hashlib.blake2b(digest_size=16)
        for seat, execution in zip(self.seats, self.executions):
            hashed.update(repr((execution.done, execution.pending_peers())).encode())
            for memory in (*seat.memory.values(), seat.scratch):
                hashed.update(memory.array.tobytes())
        return hashed.digest()

    def outcome(self) -> list[str]:
        """Return the faults at the end."""
        if not self.is_done:
            return [str(self.stall_error())]
        found = [] if isinstance(self.seats[0].problem, Rounding) else [
            fault for seat in self.seats for fault in seat.faults()]
        left = self.network.unreceived_edges()
        return found + ([f"messages left over: {left}"] if left else [])

    def result(self) -> bytes:
        """Return the bits of all results."""
        hashed = hashlib.blake2b(digest_size=16)
        for seat in self.seats:
            hashed.update(seat.memory["out"].array.tobytes())
        return hashed.digest()


class ExplorationResult(NamedTuple):
    """Result of an exploration.

    Attributes:
        states: number of different states.
        deliveries: number of tried deliveries.
        faults: descriptions of faults; empty if every order ends with the same right bits.
    """

    states: int
    deliveries: int
    faults: list[str]


def explore(run: Run, most: int = MOST_STATES) -> ExplorationResult:
    """Try every order of deliveries.

    Args:
        run: the run; restarted for every order.
        most: maximum number of states; more are a fault.
    """
    seen: dict[Hashable, bytes] = {run.state(): run.digest()}
    stack: list[tuple[tuple[Edge, ...], Edge]] = [((), edge) for edge in reversed(run.choices())]
    at: tuple[Edge, ...] = ()
    deliveries, results = 0, set()
    if not stack:
        return ExplorationResult(1, 0, run.outcome())
    while stack:
        path, edge = stack.pop()
        if path != at:
            run.begin()
            for earlier in path:
                run.deliver(earlier)
        at = (*path, edge)
        deliveries += 1
        try:
            run.deliver(edge)
        except HpccollError as error:
            return ExplorationResult(len(seen), deliveries, [f"{error} after {at}"])
        state, digest = run.state(), run.digest()
        if state in seen:
            if seen[state] != digest:
                return ExplorationResult(len(seen), deliveries,
                                         [f"another order of the messages changes the bits: {at}"])
            continue
        seen[state] = digest
        if len(seen) > most:
            return ExplorationResult(len(seen), deliveries, [f"there are more than {most} states"])
        choices = run.choices()
        if not choices:
            results.add(run.result())
            faults = run.outcome()
            if faults:
                return ExplorationResult(len(seen), deliveries,
                                         [f"{fault} after {at}" for fault in faults])
        stack += [(at, choice) for choice in reversed(choices)]
    several = [f"{len(results)} different results"] if len(results) != 1 else []
    return ExplorationResult(len(seen), deliveries, several)


def wander(run: Run, seed: int) -> list[str]:
    """Deliver messages in a random order, a function of the seed; return the faults."""
    turns = random.Random(seed)
    while choices := run.choices():
        run.deliver(turns.choice(choices))
    return run.outcome()


class Rounding(Problem):
    """Problem whose sums depend on the order of evaluation, without expected results."""

    def input_blocks(self, rank: int) -> list[numpy.ndarray]:
        """Return the blocks of a rank's input."""
        if not self.collective.reduces:
            return super().input_blocks(rank)
        random = numpy.random.default_rng((self.seed, rank))
        count = sum(self.sizes)
        terms = random.standard_normal(count) * 10.0 ** random.integers(-3, 4, count)
        return self._cut(terms.astype(self.dtype))


def create_problem(schedule: Schedule, kind: type[Problem], rank_order: bool = False) -> Problem:
    """Return a problem for a schedule with few elements, and uneven blocks if possible."""
    size, payload = schedule.size, schedule.collective.payload
    number = {"none": 0, "vector": 1, "blocks": size, "pairs": size * size}[payload]
    sizes = [3 if schedule.uniform else 1 + key % 3 for key in range(number)]
    if number == 1:
        sizes = [2 * size + 1]
    operator, dtype = (("affine", "c16") if rank_order and kind is Problem else ("sum", "f4"))
    return kind(schedule.collective, size, sizes, schedule.root, operator, dtype)


def explore_schedule(schedule: Schedule, rank_order: bool, buffered: bool) -> ExplorationResult:
    """Try every order for a schedule: one result must be right, and all have equal bits."""
    exact, rounding = (create_problem(schedule, kind, rank_order) for kind in (Problem, Rounding))
    faults = wander(Run(schedule, exact, Network(schedule.size, buffered)), 0)
    found = explore(Run(schedule, rounding, Network(schedule.size, buffered)))
    return found._replace(faults=[f"{schedule.title}: {fault}" for fault in
                                  (*faults, *found.faults)])


def main() -> int:
    """Explore all algorithms, and print the faults."""
    began, states, deliveries, faults = time.monotonic(), 0, 0, []
    schedules = [made for size in RANKS for made in every(size)]
    for entry, schedule in schedules:
        for buffered in (False, True):
            found = explore_schedule(schedule, entry.rank_order, buffered)
            states, deliveries = states + found.states, deliveries + found.deliveries
            faults += found.faults
    print(f"{len(schedules)} schedules of up to {max(RANKS)} ranks, synchronous and buffered: "
          f"{states} states, {deliveries} deliveries, {time.monotonic() - began:.0f} s")
    began, large = time.monotonic(), list(every(WANDERERS, range(2, 3)))
    for seed in range(WANDERINGS):
        entry, schedule = large[seed % len(large)]
        problem = create_problem(schedule, Problem, entry.rank_order)
        for buffered in (False, True):
            run = Run(schedule, problem, Network(schedule.size, buffered))
            faults += [f"{schedule.title}, seed {seed}: {fault}" for fault in wander(run, seed)]
    print(f"{WANDERINGS} orders by chance of {len(large)} schedules of {WANDERERS} ranks, "
          f"synchronous and buffered: {time.monotonic() - began:.0f} s")
    print("\n".join(faults) or "no fault")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
