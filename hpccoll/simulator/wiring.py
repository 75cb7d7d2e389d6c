"""Wiring: programs on channels, and the resources of channels, all in arrays.

A channel leads from a rank, or class of ranks, to another. The resources of its messages are half
the sender's (its port, the links out of its groups, the bus) and half the receiver's. Each half
depends only on the depth at which the two paths differ, so halves are computed once. On a shape,
its links come between. An operation of the network on messages of several ranks is a channel with
as many halves as it has ends. Both event loops use these arrays:
:mod:`~hpccoll.simulator.event_loop` and its compiled form.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Sequence
from typing import NamedTuple

from hpccoll.errors import CapabilityError, ScheduleError
from hpccoll.ir.cost.network import PORTS, NetworkPaths, Resource, divergence_depth
from hpccoll.ir.cost.workload import Workload
from hpccoll.ir.in_network import MULTICAST, REDUCTION, InNetwork
from hpccoll.simulator.conditions import USUAL, SimulationDelays
from hpccoll.simulator.effort import PROGRAMS, ProgressCallback
from hpccoll.simulator.machine_model import Machine
from hpccoll.simulator.packed import pack
from hpccoll.simulator.routes import Routes, Uses
from hpccoll.simulator.symmetry import Folding
from hpccoll.simulator.traffic import LoggedThread, SimulationRun, Usage


class _Part(NamedTuple):
    """Resources on a part of a route, by index; seconds per unshared byte."""

    resources: array[int]
    weights: array[float]
    holds: array[int]
    beta: float


class ChannelWiring:
    """Programs of the simulated ranks, on channels.

    Attributes:
        multiple: number of ranks in each class.
        programs: rounds of the simulated ranks. For each message, ``codes`` is twice the channel,
            plus 1 for a send. For each round, ``seconds`` is the local work.
        depths, alphas, betas: of each channel, the depth at which its paths differ, the latency,
            and seconds per byte of a message on unshared resources.
        first_use: indices of the first use of each channel, with an end: ``uses`` (indices of
            resources), ``weights`` (use per byte) and ``holds`` (1 if the resource can ever limit
            a message).
        others: uses, weights and holds of the other routes of channels with several.
        networks: operation of each channel with several ends.
    """

    def __init__(self, work: Workload, machine: Machine, layout: NetworkPaths, folding: Folding,
                 progress: ProgressCallback, drawn: SimulationDelays | None = None):
        self.work, self.machine, self.layout = work, machine, layout
        drawn = self.drawn = drawn or USUAL.draw(layout.size)
        self.routes = Routes(machine, layout)
        symmetry = self.symmetry = folding.symmetry
        self.ranks = tuple(symmetry.representatives()) if symmetry else range(layout.size)
        self.multiple = array("q", [symmetry.images(rank) if symmetry else 1
                                    for rank in self.ranks])
        self.resources: list[Resource] = []
        self.capacity = array("d")
        self.known: dict[Resource, tuple[int, bool]] = {}
        self.channels: dict[Hashable, int] = {}
        self.halves: dict[tuple[bool, int, int], _Part] = {}
        self.depths, self.alphas, self.betas = array("i"), array("d"), array("d")
        self.first_use, self.uses, self.weights = array("q", [0]), array("i"), array("d")
        self.holds = array("b")
        self.others: dict[int, list[tuple[array[int], array[float], array[int]]]] = {}
        self.networks: dict[int, InNetwork] = {}
        self.paths = {rank: layout.path(rank) for rank in self.ranks}
        if folding.packed is None:
            made = folding.programs.of if folding.programs else None
            self.programs = pack(work, self.ranks, made, lambda part: progress(PROGRAMS, part, ""))
        else:
            self.programs = folding.packed
        self.seconds = array("d", [
            reduced * machine.gamma + copied * machine.copy
            for reduced, copied in zip(self.programs.reduced, self.programs.copied)])
        if drawn.works:
            self.seconds = array("d", [seconds + drawn.work(self.received_bytes(number))
                                       for number, seconds in enumerate(self.seconds)])
        self.codes = array("i")
        for number, rank in enumerate(self.ranks):
            self.codes.extend([
                2 * (self.channel(bool(code & 1), rank, code >> 1) if code >= 0 else
                     self.operation(code >> 1)) + (code & 1)
                for code in self.programs.codes_of(number)])
        del self.channels, self.halves, self.known, self.paths

    def channel(self, sends: bool, rank: int, peer: int) -> int:
        """Return the channel between two ranks: one for all images of the pair."""
        sender, receiver = (rank, peer) if sends else (peer, rank)
        key: Hashable = (self.symmetry.link(sends, rank, peer) if self.symmetry
                         else sender * self.layout.size + receiver)
        number = self.channels.get(key)
        if number is None:
            number = self.channels[key] = len(self.depths)
            self.wire(sender, receiver)
        return number

    def operation(self, peer: int) -> int:
        """Return the channel of an operation of the network, by the number of its peer."""
        if self.symmetry:
            raise ScheduleError(
                f"{self.work.schedule.title}: equivalent ranks differ in network operations; "
                "simulate it without folding: fold=False or --no-fold")
        if peer not in self.channels:
            self.channels[peer] = len(self.depths)
            self.wire_operation(self.programs.networks[-1 - peer])
        return self.channels[peer]

    def wire_operation(self, network: InNetwork) -> None:
        """Add a channel with many ends: every rank has its own stream to or from the switch."""
        sources, sinks = ([self.path(rank) for rank in ranks]
                          for ranks in (network.senders, network.receivers))
        depth = min(divergence_depth(sources[0], path) for path in (*sources[1:], *sinks)
                    if path != sources[0])
        level, machine = self.machine.level(depth), self.machine
        shaped = machine.shape is not None and not depth
        unit = None if shaped else level.in_network
        lacks = [need for need in network.needs if unit is None
                 or need == REDUCTION and not unit.reduces]
        if unit is None or lacks:
            raise CapabilityError(
                (lacks or [MULTICAST])[0],
                f"level {level.name!r} of machine {machine.name}" + " on a shape" * shaped,
                "leave the shape out: shapes have no operations of the network" if shaped else
                "take one whose level has it, such as dgx-h100, or give the level an "
                "'in_network': docs/simulate.md", schedule=self.work.schedule.title)
        parts = []
        for paths, uses in ((sources, self.routes.sender_use), (sinks, self.routes.receiver_use)):
            for path in paths:
                parts.append(self.part([(resource, unit.beta if resource.kind in PORTS else weight)
                                        for resource, weight in uses(path, depth)], path, path))
        way = _merge_route_parts(*parts)
        self.networks[len(self.depths)] = network
        self.depths.append(depth)
        self.alphas.append(unit.alpha)
        self.betas.append(max((weight / self.capacity[index] for index, weight in zip(
            way.resources, way.weights)), default=0.0))
        self.uses.extend(way.resources)
        self.weights.extend(way.weights)
        self.holds.extend(way.holds)
        self.first_use.append(len(self.uses))

    def wire(self, sender: int, receiver: int) -> None:
        ends = self.path(sender), self.path(receiver)
        depth = divergence_depth(*ends)
        half = self.half(True, sender, depth), self.half(False, receiver, depth)
        across = self.routes.node_routes(*ends)
        ways = [_merge_route_parts(*half, self.part(way, *ends)) if way
                else _merge_route_parts(*half)
                for way in across.ways]
        if len(ways) > 1:
            self.others[len(self.depths)] = [way[:3] for way in ways[1:]]
        self.depths.append(depth)
        self.alphas.append(self.machine.level(depth).alpha + across.seconds)
        self.betas.append(min(way.beta for way in ways))
        self.uses.extend(ways[0].resources)
        self.weights.extend(ways[0].weights)
        self.holds.extend(ways[0].holds)
        self.first_use.append(len(self.uses))

    def path(self, rank: int) -> tuple[int, ...]:
        if rank not in self.paths:
            self.paths[rank] = self.layout.path(rank)
        return self.paths[rank]

    def half(self, sends: bool, rank: int, depth: int) -> _Part:
        """Return the resources on a rank's side, for all images of a message."""
        key = sends, rank, depth
        if key not in self.halves:
            path = self.path(rank)
            needed = (self.routes.sender_use if sends else self.routes.receiver_use)(path, depth)
            self.halves[key] = self.part(needed, path, path)
        return self.halves[key]

    def part(self, uses: Uses, sender: tuple[int, ...], receiver: tuple[int, ...]) -> _Part:
        """Return the resources of a part of a route, for all images of a message."""
        found = _Part(array("i"), array("d"), array("b"), 0.0)
        beta = 0.0
        for resource, weight in uses:
            beta = max(beta, weight / resource.capacity)
            if self.symmetry and resource.kind not in PORTS:
                weight *= self.symmetry.images_on(resource, sender, receiver)
            if weight:
                index, holds = self.resource(self.routes.actual_resource(resource))
                found.resources.append(index)
                found.weights.append(weight)
                found.holds.append(holds)
        return found._replace(beta=beta)

    def resource(self, resource: Resource) -> tuple[int, bool]:
        """Return the index of a resource (or its representative), and True if it can ever limit."""
        if self.symmetry:
            resource = resource._replace(path=self.symmetry.representative_path(resource.path))
        if resource not in self.known:
            self.known[resource] = len(self.resources), self.routes.binding(resource)
            self.resources.append(resource)
            self.capacity.append(resource.capacity)
        return self.known[resource]

    def received_bytes(self, number: int) -> float:
        """Return the bytes that arrive in a round."""
        held = slice(*self.programs.first_message[number:number + 2])
        return sum(nbytes for code, nbytes in zip(self.programs.codes[held],
                                                  self.programs.nbytes[held]) if not code & 1)

    # -- used by event loops -------------------------------------------------------------------
    def rounds(self, rank: int, segment: int) -> range:
        """Return the indices of the rounds of a class of ranks for a segment."""
        place = rank * self.programs.kinds + self.work.kind(segment)
        return range(*self.programs.first_round[place:place + 2])

    def messages(self, number: int) -> slice:
        return slice(*self.programs.first_message[number:number + 2])

    @property
    def is_determined(self) -> bool:
        """Return True if the simulation is determined by the arrays.

        Routes are fixed, random values are in the arrays, messages have two ends, and rounds follow
        one another.
        """
        return not (self.others or self.drawn.any or self.programs.waits or self.networks)

    @property
    def ends(self) -> int:
        """Return the number of sends and receives of all segments."""
        one = len(self.codes)
        return one if self.programs.kinds > 1 else one * self.work.segments

    def stuck_error(self, rank: int, number: int, pending: int) -> ScheduleError:
        """Return the error of a round that never ends."""
        return ScheduleError(
            f"{self.work.schedule.title}: rank {self.ranks[rank]} deadlocks in round {number} "
            f"waiting for {pending} message(s); call verify() for the step")

    def size_error(self, rank: int, number: int, mine: float, theirs: float) -> ScheduleError:
        """Return the error of a message whose two ends differ in size."""
        return ScheduleError(
            f"{self.work.schedule.title}: rank {self.ranks[rank]} expects {mine:g} bytes in round "
            f"{number}, but its peer has {theirs:g}")

    def outcome(self, threads: Sequence[LoggedThread], busy: Sequence[float],
                level_bytes: dict[int, float], carried: Sequence[float],
                messages: int) -> SimulationRun:
        """Return the result of an event loop."""
        reduced = 0.0
        if self.machine.reduce_energy:
            reduced = sum(many * sum(self.programs.reduced[held.start:held.stop])
                          for rank, many in enumerate(self.multiple)
                          for held in (self.rounds(rank, s) for s in range(self.work.segments)))
        return SimulationRun(
            max((t.log[-1].ended for t in threads if t.log), default=0.0), self.ranks, threads,
            busy, level_bytes, [Usage(r, c) for r, c in zip(self.resources, carried)], messages,
            reduced, self.machine.shape, max(self.drawn.late, default=0.0))


def _merge_route_parts(*parts: _Part) -> _Part:
    """Merge parts of a route; a resource of two parts, shared by both directions, occurs once."""
    all_of = _Part(array("i"), array("d"), array("b"), max(part.beta for part in parts))
    for part in parts:
        all_of.resources.extend(part.resources)
        all_of.weights.extend(part.weights)
        all_of.holds.extend(part.holds)
    if len(set(all_of.resources)) == len(all_of.resources):
        return all_of
    weights: dict[int, float] = {}
    for index, weight in zip(all_of.resources, all_of.weights):
        weights[index] = weights.get(index, 0.0) + weight
    holds = dict(zip(all_of.resources, all_of.holds))
    return _Part(array("i", weights), array("d", weights.values()), array("b", holds.values()),
                 all_of.beta)
