"""Report of a simulation: time, critical path, loads of links, bytes per level, idle, energy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from operator import mul
from typing import Any, NamedTuple

from hpccoll.ir.cost.network import BUS, KINDS, PORTS, SHAPE_LINK, NetworkPaths, Resource
from hpccoll.ir.schedule import Schedule
from hpccoll.simulator.conditions import USUAL, SimulatedConditions
from hpccoll.simulator.machine_model import Machine
from hpccoll.simulator.shapes import Link, Shape
from hpccoll.simulator.symmetry import Folding
from hpccoll.simulator.traffic import LoggedThread, SimulationRun
from hpccoll.units import rate_text, size_text, time_text

__all__ = ["Report"]

#: Maximum hops of the critical path in the JSON form.
LISTED = 200
#: A difference of times below this part of the later one is a rounding error.
ROUNDING = 1e-13


class Hop(NamedTuple):
    """One round on the critical path, from its last post to its end.

    Attributes:
        rank: rank of the round; for a class of ranks, its representative.
        peer: the other end of the message; -1 for local work alone.
        level: name of the message's level; empty for local work alone.
        nbytes: bytes of the message.
        posting, latency, transfer, sharing, local: seconds: of the processor for posting; alpha;
            the message alone; delay by sharing; reducing and copying, and waiting for it.
    """

    rank: int
    peer: int
    level: str
    nbytes: float
    posting: float
    latency: float
    transfer: float
    sharing: float
    local: float


class Cost(NamedTuple):
    """Sums over the hops of a critical path at one level."""

    level: str
    messages: int
    posting: float
    latency: float
    transfer: float
    sharing: float


class IdleTime(NamedTuple):
    """Seconds in which ranks neither move messages nor compute."""

    least: float
    mean: float
    most: float
    most_rank: int


@dataclass(frozen=True, repr=False)
class Report:
    """Result of :func:`hpccoll.simulate`.

    Attributes:
        schedule, machine, topology, nbytes, segments: input of the simulation.
        seconds: until the last rank is done.
        folding: classes of equivalent ranks.
        critical: costs on the critical path, by level; with ``local_seconds`` and
            ``late_seconds`` they add up to ``seconds``.
        local_seconds: reducing and copying on the critical path.
        hops: the critical path, first hop first.
        busiest: most used links, buses and ports.
        level_bytes: bytes sent at each level, all ranks together.
        messages: number of messages, all ranks together.
        idle: idle times over all ranks.
        idle_seconds: idle seconds of each representative.
        links: used links of the machine's shape, the busiest first.
        energy: joules by consumer, for all ranks; empty if the machine has no energy costs.
        late_seconds: delay of the rank at the start of the critical path.
        last_came: seconds until the last rank entered the call.
        conditions: conditions of the call, as text.
        repeats: seconds of all repeats, in order of length; this report is of the median one.
    """

    schedule: Schedule
    machine: Machine
    topology: str
    nbytes: float
    segments: int
    seconds: float
    folding: str
    critical: tuple[Cost, ...]
    local_seconds: float
    hops: tuple[Hop, ...]
    busiest: tuple[Load, ...]
    level_bytes: dict[str, float]
    messages: int
    idle: IdleTime
    idle_seconds: dict[int, float]
    links: tuple[LinkUse, ...] = ()
    energy: dict[str, float] = field(default_factory=dict)
    late_seconds: float = 0.0
    last_came: float = 0.0
    conditions: str = ""
    repeats: tuple[float, ...] = ()

    def __str__(self) -> str:
        return "\n".join(summary(self)) + "\n"

    def __repr__(self) -> str:
        return (f"<Report of {self.schedule.title}, {size_text(self.nbytes)} on "
                f"{self.machine.name}: {time_text(self.seconds)}>")

    def as_text(self) -> str:
        """Return the report as text of about twenty lines."""
        return "\n".join(lines(self)) + "\n"

    def as_json(self) -> dict[str, Any]:
        """Return plain data, unchanged by a round trip through :mod:`json`."""
        s = self.schedule
        return {
            "format": 1, "title": s.title, "collective": s.collective.name,
            "algorithm": s.algorithm, "size": s.size, "params": dict(s.params),
            "machine": self.machine.name, "topology": self.topology, "nbytes": self.nbytes,
            "segments": self.segments, "seconds": self.seconds, "folding": self.folding,
            "critical": [cost._asdict() for cost in self.critical],
            "local_seconds": self.local_seconds, "path_rounds": len(self.hops),
            "path": [hop._asdict() for hop in self.hops[:LISTED]],
            "busiest": [load._asdict() for load in self.busiest],
            "level_bytes": self.level_bytes, "messages": self.messages,
            "idle": self.idle._asdict(),
            "idle_seconds": {str(rank): idle for rank, idle in self.idle_seconds.items()},
            "links": [{**use._asdict(), "link": list(use.link)} for use in self.links],
            "energy_joules": self.energy, "late_seconds": self.late_seconds,
            "last_came": self.last_came, "conditions": self.conditions,
            "repeats": list(self.repeats),
        }


def report(schedule: Schedule, machine: Machine, layout: NetworkPaths, folding: Folding,
           nbytes: float, segments: int, run: SimulationRun,
           conditions: SimulatedConditions = USUAL) -> Report:
    """Return the report of a run."""
    path, late = critical_path(run, machine)
    hops = tuple(reversed(path))
    idle = [run.seconds - busy for busy in run.busy]
    images = [folding.symmetry.images(rank) if folding.symmetry else 1 for rank in run.ranks]
    most = max(range(len(idle)), key=idle.__getitem__)
    return Report(
        schedule, machine, str(layout.topology), nbytes, segments, run.seconds,
        folding.describe(layout.size), tuple(_costs(hops)), sum(hop.local for hop in hops), hops,
        tuple(loads(run, folding)), _by_level(run, machine), run.messages,
        IdleTime(min(idle), sum(map(mul, idle, images)) / sum(images), idle[most], run.ranks[most]),
        dict(zip(run.ranks, idle)), tuple(link_uses(run, folding)),
        energy(run, machine, layout.size, folding), late, run.last, conditions.describe())


def critical_path(run: SimulationRun, machine: Machine) -> tuple[list[Hop], float]:
    """Follow the critical path back from the end of the simulation.

    Each step goes to the message that a round waited for last, and to the end of that message that
    was posted last.

    Returns:
        The rounds, the last one first, and the delay of the rank of the first one.
    """
    hops: list[Hop] = []
    last = max((t for t in run.threads if t.log), key=lambda t: t.log[-1].ended, default=None)
    if last is None:
        return hops, 0.0
    thread, number, start = last, len(last.log) - 1, 0.0
    while number >= 0:
        done = thread.log[number]
        local, start = done.ended - done.arrived, done.began
        if done.waited is None:
            hops.append(Hop(run.ranks[thread.rank], -1, "", 0.0, 0.0, 0.0, 0.0, 0.0, local))
            thread, number = _last_awaited(run, thread, number)
            continue
        w = done.waited
        poster = run.threads[w.by]
        start = poster.log[w.at].began
        moving = done.arrived - w.matched - w.alpha
        sharing = _unless_rounding(moving - w.alone, done.arrived)
        hops.append(Hop(
            run.ranks[thread.rank], run.ranks[w.peer], machine.level(w.depth).name, w.nbytes,
            w.matched - start, w.alpha, _unless_rounding(moving - sharing, done.arrived), sharing,
            local))
        thread, number = _last_awaited(run, poster, w.at)
    return hops, start


def _last_awaited(run: SimulationRun, thread: LoggedThread, number: int) -> tuple[LoggedThread,
                                                                                  int]:
    """Return the round that a round waited for last; number -1 if there is none."""
    before = thread.log[number].before
    return (thread, number - 1) if before is None else (run.threads[before[0]], before[1])


def median(reports: Sequence[Report]) -> Report:
    """Return the report of the median of repeats; the lower one of an even number."""
    ordered = sorted(reports, key=lambda found: found.seconds)
    return replace(ordered[(len(ordered) - 1) // 2],
                   repeats=tuple(found.seconds for found in ordered))


def _unless_rounding(difference: float, time: float) -> float:
    return difference if difference >= ROUNDING * time else 0.0


def _costs(hops: tuple[Hop, ...]) -> Iterator[Cost]:
    levels = dict.fromkeys(hop.level for hop in hops if hop.level)
    for level in levels:
        mine = [hop for hop in hops if hop.level == level]
        yield Cost(level, len(mine), sum(h.posting for h in mine), sum(h.latency for h in mine),
                   sum(h.transfer for h in mine), sum(h.sharing for h in mine))


def _by_level(run: SimulationRun, machine: Machine) -> dict[str, float]:
    carried = {level.name: 0.0 for level in machine.levels}
    for depth, nbytes in sorted(run.level_bytes.items()):
        carried[machine.level(depth).name] += nbytes
    return carried


def parts(result: Report) -> dict[str, float]:
    """Return the seconds of the critical path by activity."""
    spent = {what: sum(getattr(cost, what) for cost in result.critical)
             for what in ("posting", "latency", "transfer", "sharing")}
    return {**spent, "local work": result.local_seconds, "coming late": result.late_seconds}


def summary(result: Report) -> Iterator[str]:
    """Yield the report in a few lines."""
    yield result.schedule.title
    yield (f"  {size_text(result.nbytes)} per rank on {result.machine.name}, layout "
           f"{result.topology}: {time_text(result.seconds)}" + (
               f", {rate_text(result.nbytes / result.seconds)}"
               if result.nbytes and result.seconds else ""))
    spent = ", ".join(f"{what} {time_text(seconds)}"
                      for what, seconds in parts(result).items() if seconds)
    yield f"  critical path of {len(result.hops):,} rounds: {spent or 'no time'}"
    if result.busiest:
        yield (f"  busiest: {result.busiest[0].name}, "
               f"{100 * result.busiest[0].utilisation:.0f} % of the time")
    yield "  see .as_text() or .as_json() for all"


def lines(result: Report) -> Iterator[str]:
    """Yield the full report as lines."""
    yield result.schedule.title
    yield (f"  {size_text(result.nbytes)} per rank on {result.machine.name}, layout "
           f"{result.topology}" + (f", {result.segments} segments" if result.segments > 1 else ""))
    if result.machine.shape:
        yield f"  shape: {result.machine.shape.describe()}"
    yield f"  folded: {result.folding}"
    if result.conditions:
        yield f"  conditions: {result.conditions}"
    yield f"  time           {time_text(result.seconds)}, simulated" + (
        f": the median of {len(result.repeats):,} repeats, {time_text(result.repeats[0])} to "
        f"{time_text(result.repeats[-1])}" if result.repeats else "")
    if result.last_came:
        yield (f"  late           the last rank starts after {time_text(result.last_came)}, and "
               f"all end {time_text(result.seconds - result.last_came)} later")
    if result.nbytes and result.seconds:
        yield f"  nbytes / time  {rate_text(result.nbytes / result.seconds, 4)}"
    yield f"  critical path  {len(result.hops):,} rounds"
    for cost in result.critical:
        parts = [f"{what} {time_text(value)}" for what, value in (
            ("posting", cost.posting), ("latency", cost.latency), ("transfer", cost.transfer),
            ("sharing", cost.sharing)) if value]
        yield f"    {cost.level:12} {cost.messages:,} messages: {', '.join(parts) or 'no time'}"
    if result.local_seconds:
        yield f"    {'local work':12} {time_text(result.local_seconds)}"
    if result.late_seconds:
        yield f"    {'coming late':12} {time_text(result.late_seconds)}"
    yield "  busiest"
    for load in result.busiest:
        alike = f" and {load.alike - 1:,} others" if load.alike > 1 else ""
        volume = f", {size_text(load.nbytes)}" if load.nbytes else ""
        yield f"    {100 * load.utilisation:5.1f} %  {load.name}{alike}{volume}"
    if result.machine.shape:
        yield f"  {links_text(result.machine.shape, result.links)}"
    yield f"  sent by all    {result.messages:,} messages"
    for level, nbytes in result.level_bytes.items():
        yield f"    {level:12} {size_text(nbytes)}"
    yield (f"  idle per rank  least {time_text(result.idle.least)}, mean "
           f"{time_text(result.idle.mean)}, most {time_text(result.idle.most)} "
           f"(rank {result.idle.most_rank})")
    if result.energy:
        total = sum(result.energy.values())
        spent = ", ".join(f"{what} {joules:.3g} J" for what, joules in result.energy.items())
        yield f"  energy         {total:.4g} J: {spent}"


class Load(NamedTuple):
    """Utilisation of a link, bus or port, and its bytes."""

    name: str
    kind: str
    level: str
    nbytes: float
    utilisation: float
    alike: int


class LinkUse(NamedTuple):
    """Utilisation of a link of the shape.

    Attributes:
        link: of the shape; ``name`` is its text.
        nbytes: transferred bytes; of each link, if it stands for several.
        utilisation: transfer time at full rate divided by the total time.
        alike: number of links that it stands for.
    """

    link: Link
    name: str
    nbytes: float
    utilisation: float
    alike: int


def loads(run: SimulationRun, folding: Folding) -> Iterator[Load]:
    """Yield the most used resource of every kind and level, the most used one first."""
    best: dict[tuple[str, str], tuple[float, Resource, float, int]] = {}
    for resource, carried in run.usage:
        used = carried / resource.capacity / run.seconds if run.seconds else 0.0
        images = _copies(resource, folding)
        key = resource.kind, resource.level
        if key not in best or used > best[key][0] * (1 + 1e-12):
            best[key] = used, resource, carried, images
        elif used >= best[key][0] * (1 - 1e-12):
            best[key] = (*best[key][:3], best[key][3] + images)
    for used, resource, carried, images in sorted(
            best.values(), key=lambda b: (-b[0], KINDS.index(b[1].kind))):
        port = resource.kind in PORTS
        yield Load(_name(resource, run.shape), "port" if port else
                   "bus" if resource.kind == BUS else f"{resource.level} link", resource.level,
                   0.0 if port else carried, used, images)


def _copies(resource: Resource, folding: Folding) -> int:
    return folding.symmetry.copies(resource) if folding.symmetry else 1


def _name(resource: Resource, shape: Shape | None) -> str:
    if resource.kind == SHAPE_LINK and shape:
        return f"{resource.level} {shape.name(resource.path)}"
    where = ".".join(map(str, resource.path))
    return {"send": f"send port of rank {where}", "recv": f"receive port of rank {where}",
            "port": f"port of rank {where}",
            "out": f"{resource.level} link out of group {where}",
            "in": f"{resource.level} link into group {where}",
            "link": f"{resource.level} link of group {where}",
            "bus": f"{resource.level} bus" + (f" in group {where}" if where else "")
            }[resource.kind]


def link_uses(run: SimulationRun, folding: Folding) -> list[LinkUse]:
    """Return the used links of the machine's shape, the busiest first."""
    shape, uses = run.shape, []
    for resource, carried in run.usage:
        if resource.kind == SHAPE_LINK and carried and shape:
            bundle = shape.bundle(resource.path)
            uses.append(LinkUse(resource.path, shape.name(resource.path), carried / bundle,
                                carried / resource.capacity / run.seconds if run.seconds else 0.0,
                                bundle * _copies(resource, folding)))
    return sorted(uses, key=lambda use: -use.utilisation)


def links_text(shape: Shape, uses: Sequence[LinkUse]) -> str:
    """Return a line on the balance of the links of a shape."""
    used = sum(use.alike for use in uses)
    total = sum(use.utilisation * use.alike for use in uses)
    return (f"links          {used:,} of {shape.links:,} used, "
            f"{100 * total / max(shape.links, 1):.1f} % of the time on average")


def energy(run: SimulationRun, machine: Machine, size: int, folding: Folding) -> dict[str, float]:
    """Return joules by consumer, for all ranks; empty if the machine has no energy costs."""
    if not machine.counts_energy:
        return {}
    spent = {f"idle of {size:,} ranks": machine.idle * size * run.seconds,
             "reducing": machine.reduce_energy * run.reduced}
    for depth, nbytes in run.level_bytes.items():
        level = machine.level(depth)
        spent[level.name] = spent.get(level.name, 0.0) + level.energy * nbytes
    if machine.shape:
        spent[f"{machine.shape.kind} links"] = machine.shape.joules_per_byte * sum(
            use.nbytes * use.alike for use in link_uses(run, folding))
    return {what: joules for what, joules in spent.items() if joules}
