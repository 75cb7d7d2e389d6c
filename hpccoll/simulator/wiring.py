"""What is posted, and what it shares: programs on channels, all in arrays.

A channel leads from a rank, or class of ranks, to another. What its messages need is half the
sender's (its port, the links out of its groups, the bus) and half the receiver's, and each half
depends on nothing else but the depth at which the two part, so halves are found once. Both event
loops read from here: :mod:`~hpccoll.simulator.event_loop` and its compiled twin.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Sequence
from typing import NamedTuple

from hpccoll.errors import ScheduleError
from hpccoll.simulator.effort import PROGRAMS, Told
from hpccoll.simulator.machine_model import Machine
from hpccoll.simulator.network import (
    RECV_PORT,
    SEND_PORT,
    NetworkPaths,
    Resource,
    binding,
    entering,
    leaving,
    parting,
)
from hpccoll.simulator.packed import pack
from hpccoll.simulator.symmetry import Folding
from hpccoll.simulator.traffic import LoggedThread, SimulationRun, Usage
from hpccoll.simulator.workload import Workload


class _Half(NamedTuple):
    """What a message needs on one side: resources, by index; and seconds a byte takes alone."""

    resources: array[int]
    weights: array[float]
    holds: array[int]
    beta: float


class ChannelWiring:
    """Programs of ranks that are timed, on channels.

    Attributes:
        ranks: those that are timed, each for its class.
        multiple: ranks that each stands for.
        programs: their rounds; ``codes`` has for each of their messages twice the channel, and 1
            if it is sent; ``seconds`` for each of their rounds the local work.
        depths, betas: of each channel, the depth at which its ends part, and seconds per byte of
            a message that is alone on its way.
        first_use: where the uses of each channel begin, with an end: ``uses`` (indices of
            resources), ``weights`` (of them a byte needs) and ``holds`` (1 if the resource can
            ever hold a message up).
        resources, capacity: what is shared.
    """

    def __init__(self, work: Workload, machine: Machine, layout: NetworkPaths, folding: Folding,
                 told: Told):
        self.work, self.machine, self.layout = work, machine, layout
        symmetry = self.symmetry = folding.symmetry
        self.ranks = tuple(symmetry.representatives()) if symmetry else range(layout.size)
        self.multiple = array("q", [symmetry.images(rank) if symmetry else 1
                                    for rank in self.ranks])
        self.resources: list[Resource] = []
        self.capacity = array("d")
        self.known: dict[Resource, tuple[int, bool]] = {}
        self.channels: dict[Hashable, int] = {}
        self.halves: dict[tuple[bool, int, int], _Half] = {}
        self.depths, self.betas = array("i"), array("d")
        self.first_use, self.uses, self.weights = array("q", [0]), array("i"), array("d")
        self.holds = array("b")
        self.paths = {rank: layout.path(rank) for rank in self.ranks}
        if folding.packed is None:
            made = folding.programs.of if folding.programs else None
            self.programs = pack(work, self.ranks, made, lambda part: told(PROGRAMS, part, ""))
        else:
            self.programs = folding.packed.chosen(self.ranks) if symmetry else folding.packed
        self.seconds = array("d", [
            reduced * machine.gamma + copied * machine.copy
            for reduced, copied in zip(self.programs.reduced, self.programs.copied)])
        self.codes = array("i")
        for number, rank in enumerate(self.ranks):
            self.codes.extend([2 * self.channel(bool(code & 1), rank, code >> 1) + (code & 1)
                               for code in self.programs.mine(number)])
        del self.channels, self.halves, self.known, self.paths

    def channel(self, sends: bool, rank: int, peer: int) -> int:
        """The channel between two ranks: one for all images of the pair."""
        sender, receiver = (rank, peer) if sends else (peer, rank)
        key: Hashable = (self.symmetry.link(sends, rank, peer) if self.symmetry
                         else sender * self.layout.size + receiver)
        number = self.channels.get(key)
        if number is None:
            number = self.channels[key] = len(self.depths)
            self.wire(sender, receiver)
        return number

    def wire(self, sender: int, receiver: int) -> None:
        """Add a channel."""
        depth = parting(self.path(sender), self.path(receiver))
        out, into = self.half(True, sender, depth), self.half(False, receiver, depth)
        self.depths.append(depth)
        self.betas.append(max(out.beta, into.beta))
        for half in (out, into):
            self.uses.extend(half.resources)
            self.weights.extend(half.weights)
            self.holds.extend(half.holds)
        self.first_use.append(len(self.uses))

    def path(self, rank: int) -> tuple[int, ...]:
        """The path of a rank."""
        if rank not in self.paths:
            self.paths[rank] = self.layout.path(rank)
        return self.paths[rank]

    def half(self, sends: bool, rank: int, depth: int) -> _Half:
        """What messages need on a rank's side, for all images of a message at once."""
        key = sends, rank, depth
        if key in self.halves:
            return self.halves[key]
        path = self.path(rank)
        found = _Half(array("i"), array("d"), array("b"), 0.0)
        beta = 0.0
        for resource, weight in (leaving if sends else entering)(self.machine, path, depth):
            beta = max(beta, weight / resource.capacity)
            if self.symmetry and resource.kind not in (SEND_PORT, RECV_PORT):
                weight *= self.symmetry.sharing(resource, path, path)
            if weight:
                index, holds = self.resource(resource)
                found.resources.append(index)
                found.weights.append(weight)
                found.holds.append(holds)
        self.halves[key] = found = found._replace(beta=beta)
        return found

    def resource(self, resource: Resource) -> tuple[int, bool]:
        """Index of a resource, or of the one that stands for it, and whether it ever binds."""
        if self.symmetry:
            resource = resource._replace(path=self.symmetry.classed(resource.path))
        if resource not in self.known:
            self.known[resource] = len(self.resources), binding(self.machine, self.layout,
                                                                resource)
            self.resources.append(resource)
            self.capacity.append(resource.capacity)
        return self.known[resource]

    # -- what event loops ask ----------------------------------------------------------------
    def rounds(self, rank: int, segment: int) -> range:
        """Where the rounds of a class of ranks are for a segment."""
        place = rank * self.programs.kinds + self.work.kind(segment)
        return range(*self.programs.first_round[place:place + 2])

    def messages(self, number: int) -> slice:
        """Where the messages of a round are."""
        return slice(*self.programs.first_message[number:number + 2])

    @property
    def ends(self) -> int:
        """Sends and receives of all segments."""
        one = len(self.codes)
        return one if self.programs.kinds > 1 else one * self.work.segments

    def stuck(self, rank: int, number: int, pending: int) -> ScheduleError:
        """A round that never ends."""
        return ScheduleError(
            f"{self.work.schedule.title}: rank {self.ranks[rank]} waits for ever in round "
            f"{number} for {pending} message(s); verify() names the step")

    def unequal(self, rank: int, number: int, mine: float, theirs: float) -> ScheduleError:
        """A message whose two ends are of different sizes."""
        return ScheduleError(
            f"{self.work.schedule.title}: rank {self.ranks[rank]} expects {mine:g} bytes in round "
            f"{number}, but its peer says {theirs:g}")

    def outcome(self, threads: Sequence[LoggedThread], busy: Sequence[float],
                level_bytes: dict[int, float], carried: Sequence[float],
                messages: int) -> SimulationRun:
        """What an event loop has found."""
        return SimulationRun(
            max((t.log[-1].ended for t in threads if t.log), default=0.0), self.ranks, threads,
            busy, level_bytes, [Usage(r, c) for r, c in zip(self.resources, carried)], messages)
