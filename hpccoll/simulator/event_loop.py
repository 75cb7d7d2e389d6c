"""The event loop: events in time order, exact for any schedule on any machine of the model.

Every rank runs its rounds in order, one at a time; with segments, two at a time, in turn. Lanes of
a program are independent, except for the rounds that they wait for. A message begins when both ends
are posted (rendezvous, as the proof requires), takes ``alpha``, then flows at the rate of
:mod:`~hpccoll.simulator.fair_share`, recomputed whenever a message on one of its resources begins
or ends. Messages from one rank to another flow one after the other. A round's local work starts
when its messages are complete and waits for the rank's processor, in order of arrival.

Ranks folded into classes (:mod:`~hpccoll.simulator.symmetry`) run as one: a message stands for all
its images, and a link counts the images that it carries.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable
from itertools import chain
from typing import Any

from hpccoll.ir.cost.network import NetworkPaths
from hpccoll.ir.cost.workload import Workload
from hpccoll.ir.in_network import InNetwork
from hpccoll.simulator.compiled_loop import is_available, run_compiled
from hpccoll.simulator.conditions import USUAL, SimulatedConditions
from hpccoll.simulator.effort import MESSAGES, ProgressCallback, ignore_progress
from hpccoll.simulator.fair_share import new_rates
from hpccoll.simulator.machine_model import Machine
from hpccoll.simulator.symmetry import Folding
from hpccoll.simulator.traffic import (
    AwaitedMessage,
    ClassLink,
    CompletedRound,
    Flow,
    MessageResources,
    PipelineSlot,
    PostedRound,
    SimulationRun,
    in_lanes,
)
from hpccoll.simulator.wiring import ChannelWiring
from hpccoll.units import time_text

#: Events at the same time, up to rounding, are processed together.
TOGETHER = 1e-14
#: Number of time steps between two progress reports.
OFTEN = 256
BEGIN, FINISH, POST, COMPUTED, COME = range(5)


def run(work: Workload, machine: Machine, layout: NetworkPaths, folding: Folding,
        progress: ProgressCallback = ignore_progress,
        conditions: SimulatedConditions = USUAL) -> SimulationRun:
    """Simulate a schedule, and report the progress."""
    wiring = ChannelWiring(work, machine, layout, folding, progress, conditions.draw(layout.size))
    if is_available() and wiring.is_determined:
        return run_compiled(wiring, progress)
    engine = EventLoop(wiring)
    engine.go(progress)
    return engine.outcome()


class EventLoop:
    """State of one simulation."""

    def __init__(self, wiring: ChannelWiring):
        self.wiring, self.work, self.ranks = wiring, wiring.work, wiring.ranks
        self.drawn = wiring.drawn
        self.capacity, self.carried = wiring.capacity, [0.0] * len(wiring.capacity)
        self.channels = [self.channel(number) for number in range(len(wiring.depths))]
        self.flowing: list[dict[Flow, float]] = [{} for _ in self.capacity]
        self.dirty: dict[int, None] = {}
        self.now, self.order = 0.0, 0
        #: Heap of events: time, order, kind, and arguments.
        self.events: list[tuple[float, int, int, tuple[Any, ...]]] = []
        self.ready: deque[PipelineSlot] = deque()
        self.processor = [0.0] * len(self.ranks)
        self.active, self.since = [0] * len(self.ranks), [0.0] * len(self.ranks)
        self.busy = [0.0] * len(self.ranks)
        self.level_bytes: dict[int, float] = {}
        #: Number of messages of all ranks, and of the simulated ones.
        self.messages = self.met = 0
        self.threads: list[PipelineSlot] = []
        for rank in range(len(self.ranks)):
            for slot in range(self.work.depth):
                self.add(rank, slot)

    def channel(self, number: int) -> ClassLink:
        """Return a channel with its waiting messages."""
        wiring = self.wiring
        held = slice(*wiring.first_use[number:number + 2])
        needs = [(wiring.uses[held], wiring.weights[held], wiring.holds[held]),
                 *wiring.others.get(number, ())]
        depth = wiring.depths[number]
        return ClassLink(depth, wiring.machine.level(depth), wiring.alphas[number],
                         wiring.betas[number],
                         [MessageResources([(i, w) for i, w, holds in zip(*need) if holds],
                                           list(zip(need[0], need[1]))) for need in needs],
                         wiring.networks.get(number))

    def add(self, rank: int, slot: int) -> None:
        """Add the threads of a slot: one that runs all its segments, or one for each lane."""
        segments = [self.wiring.rounds(rank, segment)
                    for segment in range(slot, self.work.segments, self.work.depth)]
        if not segments[0] or segments[0][0] not in self.wiring.programs.waits:
            self.threads.append(PipelineSlot(
                rank, slot, map(self.round, chain.from_iterable(segments)), len(self.threads)))
            return
        beside: tuple[list[PipelineSlot], list[PipelineSlot]] = [], []
        for rounds in in_lanes([list(map(self.round, numbers)) for numbers in segments]):
            beside[0].append(PipelineSlot(rank, slot, rounds, len(self.threads), beside))
            self.threads.append(beside[0][-1])

    def round(self, number: int) -> PostedRound:
        """Return a round, constructed on demand."""
        wiring, channels = self.wiring, self.channels
        held = wiring.messages(number)
        return PostedRound(
            [(code & 1, channels[code >> 1], nbytes) for code, nbytes in zip(
                wiring.codes[held], wiring.programs.nbytes[held])],
            wiring.seconds[number], wiring.programs.waits.get(number))

    # -- events ----------------------------------------------------------------------------
    def at(self, time: float, kind: int, *what) -> None:
        self.order += 1
        heapq.heappush(self.events, (time, self.order, kind, what))

    def go(self, progress: ProgressCallback) -> None:
        """Process events until none is left."""
        ends = self.wiring.ends or 1
        steps = 0
        late = self.drawn.late
        for thread in self.threads:
            if late and late[self.ranks[thread.rank]]:
                self.at(late[self.ranks[thread.rank]], COME, thread)
            else:
                self.ready.append(thread)
        self.advance()
        self.share()
        handlers: dict[int, Callable[..., None]] = {
            BEGIN: self.begin, FINISH: self.finish, POST: self.end_posting,
            COMPUTED: self.end_round, COME: self.ready.append}
        events = self.events
        while events:
            steps += 1
            if not steps % OFTEN:
                progress(MESSAGES, 2 * self.met / ends, f"{time_text(self.now)} are simulated")
            self.now = events[0][0]
            limit = self.now * (1 + TOGETHER)
            while events and events[0][0] <= limit:
                _, _, kind, what = heapq.heappop(events)
                handlers[kind](*what)
                if self.ready:
                    self.advance()
            self.share()
        stuck = next((t for t in self.threads if t.current is not None and not t.held), None)
        if stuck:
            raise self.wiring.stuck_error(stuck.rank, len(stuck.log), stuck.pending)

    def advance(self) -> None:
        """Start the next round of every thread whose round is over."""
        while self.ready:
            thread = self.ready.popleft()
            if not thread.held:
                thread.current = next(thread.rounds, None)
            if thread.current is not None and thread.free():
                self.start(thread, thread.current)

    def start(self, thread: PipelineSlot, current: PostedRound) -> None:
        """Post a round's messages, one after the other if posting takes time."""
        messages = current.messages
        thread.began, thread.pending = self.now, len(messages)
        if not messages:
            self.computes(thread, None)
            return
        if not any(channel.overhead for _, channel, _ in messages):
            for message in messages:
                self.post(thread, *message)
            return
        free = max(self.now, self.processor[thread.rank])
        for message in messages:
            free += message[1].overhead
            self.at(free, POST, thread, *message)
            self.occupy(thread.rank)
        self.processor[thread.rank] = free

    def end_posting(self, thread: PipelineSlot, *message) -> None:
        self.release(thread.rank)
        self.post(thread, *message)

    def post(self, thread: PipelineSlot, sends: int, channel: ClassLink, nbytes: float) -> None:
        """Post one side of a message; it begins if the other one waits."""
        if channel.network is not None:
            self.join(thread, sends, channel, channel.network, nbytes)
            return
        queue = channel.waiting.setdefault(thread.slot, deque())
        if not queue or queue[0][0] == sends:
            queue.append((sends, thread, len(thread.log), nbytes))
            return
        _, other, number, theirs = queue.popleft()
        if theirs != nbytes:
            raise self.wiring.size_error(thread.rank, len(thread.log), nbytes, theirs)
        here, there = (thread, len(thread.log)), (other, number)
        self.match(Flow(channel, (here, there) if sends else (there, here), nbytes, self.now,
                        0 if sends else 1), self.wiring.multiple[(thread if sends else other).rank])

    def join(self, thread: PipelineSlot, sends: int, channel: ClassLink, network: InNetwork,
             nbytes: float) -> None:
        """Post one end of an operation of the network; it begins with the last end."""
        waiting = channel.ends.setdefault(thread.slot, {})
        waiting.setdefault((sends, thread.rank), deque()).append((thread, len(thread.log), nbytes))
        if len(waiting) < network.ends:
            return
        ends = []
        for end in sorted(waiting, key=lambda end: -end[0]):
            other, number, theirs = waiting[end].popleft()
            if theirs != nbytes:
                raise self.wiring.size_error(thread.rank, len(thread.log), nbytes, theirs)
            ends.append((other, number))
            if not waiting[end]:
                del waiting[end]
        here = thread, len(thread.log)
        self.match(Flow(channel, ends, nbytes, self.now, ends.index(here)),
                   sum(map(len, network.sources)))

    def match(self, flow: Flow, sent: int) -> None:
        """Handle a message with all ends posted; it stands for ``sent`` messages."""
        channel = flow.channel
        for thread, _ in flow.ends:
            self.occupy(thread.rank)
        self.messages += sent
        self.met += len(flow.ends) // 2
        self.level_bytes[channel.depth] = (self.level_bytes.get(channel.depth, 0.0)
                                           + flow.nbytes * sent)
        flow.alpha += self.drawn.message()
        if flow.alpha:
            self.at(self.now + flow.alpha, BEGIN, flow)
        else:
            self.begin(flow)

    def begin(self, flow: Flow) -> None:
        """Handle the arrival of the first byte: the message flows after earlier ones."""
        if not flow.left or not flow.uses:
            self.arrive(flow)
            return
        flow.channel.line.append(flow)
        if len(flow.channel.line) == 1:
            self.enter(flow)

    def enter(self, flow: Flow) -> None:
        """Start the flow of a message on its resources."""
        flow.since = self.now
        if len(flow.channel.ways) > 1:
            flow.met = min(flow.channel.ways, key=self.route_load)
        alone, most = True, math.inf
        for index, weight in flow.uses:
            alone = alone and not self.flowing[index]
            self.flowing[index][flow] = weight
            if self.capacity[index] / weight < most:
                most, flow.held_by = self.capacity[index] / weight, index
        if alone:
            self.flows_at(flow, most)
        else:
            self.dirty.update(dict.fromkeys(index for index, _ in flow.uses))

    def route_load(self, way: MessageResources) -> tuple[float, float]:
        """Return the seconds per byte of one more message on a route: fullest resource, total."""
        waits = [(len(self.flowing[index]) + 1) * weight / self.capacity[index]
                 for index, weight in way.uses]
        return max(waits), sum(waits)

    def flows_at(self, flow: Flow, rate: float) -> None:
        flow.rate = rate
        flow.version += 1
        self.at(self.now + flow.left / rate, FINISH, flow, flow.version)

    def finish(self, flow: Flow, version: int) -> None:
        """Handle the arrival of the last byte, unless the rate has changed since."""
        if version != flow.version:
            return
        flow.version += 1
        for index, _ in flow.uses:
            del self.flowing[index][flow]
            if self.flowing[index]:
                self.dirty[index] = None
        line = flow.channel.line
        line.popleft()
        if line:
            self.enter(line[0])
        self.arrive(flow)

    def share(self) -> None:
        """Recompute the rates of messages after a change on resources."""
        if not self.dirty:
            return
        rates = new_rates(self.dirty, self.flowing, self.capacity)
        self.dirty.clear()
        for flow, (rate, held_by) in rates.items():
            flow.held_by = held_by
            if math.isclose(rate, flow.rate, rel_tol=1e-14):
                continue
            flow.left = max(flow.left - flow.rate * (self.now - flow.since), 0.0)
            flow.since = self.now
            self.flows_at(flow, rate)

    def arrive(self, flow: Flow) -> None:
        """Handle a message that is complete on both sides."""
        for index, weight in flow.met.meets:
            self.carried[index] += weight * flow.nbytes
        for thread, _ in flow.ends:
            self.release(thread.rank)
            thread.pending -= 1
            if not thread.pending:
                self.computes(thread, flow)

    def computes(self, thread: PipelineSlot, flow: Flow | None) -> None:
        """Start the local work of a round once the processor is free; its messages are complete."""
        seconds = (thread.current.seconds if thread.current else 0.0) + self.drawn.round()
        arrived = self.now
        if not seconds:
            self.log_round(thread, flow, arrived)
            self.ready.append(thread)
            return
        end = max(arrived, self.processor[thread.rank]) + seconds
        self.processor[thread.rank] = end
        self.occupy(thread.rank)
        self.at(end, COMPUTED, thread, flow, arrived)

    def end_round(self, thread: PipelineSlot, flow: Flow | None, arrived: float) -> None:
        self.release(thread.rank)
        self.log_round(thread, flow, arrived)
        self.ready.append(thread)

    def log_round(self, thread: PipelineSlot, flow: Flow | None, arrived: float) -> None:
        waited = None
        if flow is not None:
            (last, at), (sender, _), (receiver, _) = (
                flow.ends[flow.last], flow.ends[0], flow.ends[-1])
            channel = flow.channel
            other = receiver if thread is sender else sender
            waited = AwaitedMessage(last.index, at, other.rank,
                                    flow.matched, flow.alpha,
                                    channel.beta * (flow.nbytes + channel.header), flow.nbytes,
                                    channel.depth)
        thread.log.append(CompletedRound(thread.began, arrived, self.now, waited,
                                         thread.last_awaited()))
        if thread.beside is not None:
            self.ready.extend(thread.beside[1])
            thread.beside[1].clear()

    # -- busy times ------------------------------------------------------------------------
    def occupy(self, rank: int) -> None:
        if not self.active[rank]:
            self.since[rank] = self.now
        self.active[rank] += 1

    def release(self, rank: int) -> None:
        self.active[rank] -= 1
        if not self.active[rank]:
            self.busy[rank] += self.now - self.since[rank]

    def outcome(self) -> SimulationRun:
        return self.wiring.outcome(self.threads, self.busy, self.level_bytes, self.carried,
                                   self.messages)
