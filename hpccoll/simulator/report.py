"""What a simulation found: time, critical path, busiest link, bytes per level, idle times."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from operator import mul
from typing import Any, NamedTuple

from hpccoll.ir.schedule import Schedule
from hpccoll.simulator.machine_model import Machine
from hpccoll.simulator.network import (
    BUS,
    LINK_IN,
    LINK_OUT,
    RECV_PORT,
    SEND_PORT,
    NetworkPaths,
    Resource,
)
from hpccoll.simulator.symmetry import Folding
from hpccoll.simulator.traffic import SimulationRun
from hpccoll.units import size_text, time_text

#: Hops of the critical path that the JSON form lists one by one.
LISTED = 200
#: A difference of times below this part of the later one comes from rounding.
ROUNDING = 1e-13


class Hop(NamedTuple):
    """One round on the critical path, from the post that came last to the end of the round.

    Attributes:
        rank: whose round it is (of a class: its representative).
        peer: the other end of the message; -1 for local work alone.
        level: name of the message's level; empty for local work alone.
        nbytes: bytes of the message.
        posting, latency, transfer, sharing, local: seconds: of the processor for posting; alpha;
            the message alone; what sharing added; reducing and copying, and waiting for it.
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
    """Sums over the hops of a critical path that belong to one level."""

    level: str
    messages: int
    posting: float
    latency: float
    transfer: float
    sharing: float


class Load(NamedTuple):
    """How much of the time a link, bus or port was used, and by how many bytes."""

    name: str
    kind: str
    level: str
    nbytes: float
    utilisation: float
    alike: int


class Idle(NamedTuple):
    """Seconds in which ranks neither move messages nor compute."""

    least: float
    mean: float
    most: float
    most_rank: int


@dataclass(frozen=True, repr=False)
class Report:
    """The outcome of :func:`hpccoll.simulate`.

    Attributes:
        schedule, machine, topology, nbytes, segments: what was simulated.
        seconds: until the last rank is done.
        folding: how ranks were folded.
        critical: costs on the critical path, by level; with ``local_seconds`` they add up to
            ``seconds``.
        local_seconds: reducing and copying on the critical path.
        hops: the critical path, first hop first.
        busiest: what was used most: links, buses and ports.
        level_bytes: bytes sent at each level, all ranks together.
        messages: number of messages, all ranks together.
        idle: over all ranks.
        idle_seconds: of each representative.
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
    idle: Idle
    idle_seconds: dict[int, float]

    def __str__(self) -> str:
        return "\n".join(summary(self)) + "\n"

    def __repr__(self) -> str:
        return (f"<Report of {self.schedule.title}, {size_text(self.nbytes)} on "
                f"{self.machine.name}: {time_text(self.seconds)}>")

    def as_text(self) -> str:
        """All that was found, in words: some twenty lines."""
        return "\n".join(lines(self)) + "\n"

    def _repr_html_(self) -> str:
        """A table for notebooks: where the time of the critical path went."""
        rows = "".join(
            f'<tr><td style="text-align:left">{escape(name)}</td><td>{time_text(seconds)}</td>'
            f"<td>{100 * seconds / self.seconds:.0f} %</td></tr>"
            for name, seconds in parts(self).items()) if self.seconds else ""
        first, *more = (escape(line.strip()) for line in summary(self))
        return (f"<b>{first}</b><br>{'<br>'.join(more[:-1])}<table><tr>"
                f'<th style="text-align:left">critical path</th><th>time</th><th>share</th></tr>'
                f"{rows}</table>")

    def as_json(self) -> dict[str, Any]:
        """Plain data: what :mod:`json` writes, it reads back unchanged."""
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
        }


def report(schedule: Schedule, machine: Machine, layout: NetworkPaths, folding: Folding,
           nbytes: float, segments: int, run: SimulationRun) -> Report:
    """Read a run."""
    hops = tuple(reversed(list(critical_path(run, machine))))
    idle = [run.seconds - busy for busy in run.busy]
    images = [folding.symmetry.images(rank) if folding.symmetry else 1 for rank in run.ranks]
    most = max(range(len(idle)), key=idle.__getitem__)
    return Report(
        schedule, machine, str(layout.topology), nbytes, segments, run.seconds,
        folding.describe(layout.size), tuple(_costs(hops)), sum(hop.local for hop in hops), hops,
        tuple(_loads(run, folding)), _by_level(run, machine), run.messages,
        Idle(min(idle), sum(map(mul, idle, images)) / sum(images), idle[most], run.ranks[most]),
        dict(zip(run.ranks, idle)))


def critical_path(run: SimulationRun, machine: Machine) -> Iterator[Hop]:
    """Go back from the end: through the message that came last, to the end posted last."""
    last = max((t for t in run.threads if t.log), key=lambda t: t.log[-1].ended, default=None)
    if last is None:
        return
    thread, number = last, len(last.log) - 1
    while number >= 0:
        done = thread.log[number]
        local = done.ended - done.arrived
        if done.waited is None:
            yield Hop(run.ranks[thread.rank], -1, "", 0.0, 0.0, 0.0, 0.0, 0.0, local)
            number -= 1
            continue
        w = done.waited
        poster = run.threads[w.by]
        began = (poster.log[w.at - 1].ended if w.at else 0.0)
        moving = done.arrived - w.matched - w.alpha
        sharing = _unless_rounding(moving - w.alone, done.arrived)
        yield Hop(run.ranks[thread.rank], run.ranks[w.peer], machine.level(w.depth).name,
                  w.nbytes, w.matched - began, w.alpha,
                  _unless_rounding(moving - sharing, done.arrived), sharing, local)
        thread, number = poster, w.at - 1


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


def _loads(run: SimulationRun, folding: Folding) -> Iterator[Load]:
    """The most used resource of every kind and level, the most used one first."""
    best: dict[tuple[str, str], tuple[float, Resource, float, int]] = {}
    for resource, carried in run.usage:
        used = carried / resource.capacity / run.seconds if run.seconds else 0.0
        images = 1
        if folding.symmetry:
            images = folding.symmetry.copies(resource)
        key = resource.kind, resource.level
        if key not in best or used > best[key][0] * (1 + 1e-12):
            best[key] = used, resource, carried, images
        elif used >= best[key][0] * (1 - 1e-12):
            best[key] = (*best[key][:3], best[key][3] + images)
    kinds = (SEND_PORT, RECV_PORT, LINK_OUT, LINK_IN, BUS)
    for used, resource, carried, images in sorted(
            best.values(), key=lambda b: (-b[0], kinds.index(b[1].kind))):
        port = resource.kind in ("send", "recv")
        yield Load(_name(resource), "port" if port else "bus" if resource.kind == "bus" else
                   f"{resource.level} link", resource.level, 0.0 if port else carried, used, images)


def _name(resource: Resource) -> str:
    where = ".".join(map(str, resource.path))
    return {"send": f"send port of rank {where}", "recv": f"receive port of rank {where}",
            "out": f"{resource.level} link out of group {where}",
            "in": f"{resource.level} link into group {where}",
            "bus": f"{resource.level} bus" + (f" in group {where}" if where else "")
            }[resource.kind]


def parts(result: Report) -> dict[str, float]:
    """Seconds of the critical path by what they were spent on, those that are not 0."""
    spent = {what: sum(getattr(cost, what) for cost in result.critical)
             for what in ("posting", "latency", "transfer", "sharing")}
    spent["local work"] = result.local_seconds
    return {what: seconds for what, seconds in spent.items() if seconds}


def summary(result: Report) -> Iterator[str]:
    """The report in a few lines."""
    yield result.schedule.title
    yield (f"  {size_text(result.nbytes)} per rank on {result.machine.name}, layout "
           f"{result.topology}: {time_text(result.seconds)}" + (
               f", {result.nbytes / result.seconds / 1e9:.3g} GB/s"
               if result.nbytes and result.seconds else ""))
    spent = ", ".join(f"{what} {time_text(seconds)}" for what, seconds in parts(result).items())
    yield f"  critical path of {len(result.hops):,} rounds: {spent or 'no time'}"
    if result.busiest:
        yield (f"  busiest: {result.busiest[0].name}, "
               f"{100 * result.busiest[0].utilisation:.0f} % of the time")
    yield "  .as_text() says all, .as_json() too"


def lines(result: Report) -> Iterator[str]:
    """The report for people."""
    yield result.schedule.title
    yield (f"  {size_text(result.nbytes)} per rank on {result.machine.name}, layout "
           f"{result.topology}" + (f", {result.segments} segments" if result.segments > 1 else ""))
    yield f"  folded: {result.folding}"
    yield f"  time           {time_text(result.seconds)}, simulated"
    if result.nbytes and result.seconds:
        yield f"  nbytes / time  {result.nbytes / result.seconds / 1e9:.4g} GB/s"
    yield f"  critical path  {len(result.hops):,} rounds"
    for cost in result.critical:
        parts = [f"{what} {time_text(value)}" for what, value in (
            ("posting", cost.posting), ("latency", cost.latency), ("transfer", cost.transfer),
            ("sharing", cost.sharing)) if value]
        yield f"    {cost.level:12} {cost.messages:,} messages: {', '.join(parts) or 'no time'}"
    if result.local_seconds:
        yield f"    {'local work':12} {time_text(result.local_seconds)}"
    yield "  busiest"
    for load in result.busiest:
        alike = f" and {load.alike - 1:,} others" if load.alike > 1 else ""
        volume = f", {size_text(load.nbytes)}" if load.nbytes else ""
        yield f"    {100 * load.utilisation:5.1f} %  {load.name}{alike}{volume}"
    yield f"  sent by all    {result.messages:,} messages"
    for level, nbytes in result.level_bytes.items():
        yield f"    {level:12} {size_text(nbytes)}"
    yield (f"  idle per rank  least {time_text(result.idle.least)}, mean "
           f"{time_text(result.idle.mean)}, most {time_text(result.idle.most)} "
           f"(rank {result.idle.most_rank})")
