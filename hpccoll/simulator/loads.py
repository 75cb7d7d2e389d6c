"""Utilisation of ports, links, buses and links of the shape; energy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from hpccoll.ir.cost.network import BUS, KINDS, PORTS, SHAPE_LINK, Resource
from hpccoll.simulator.machine_model import Machine
from hpccoll.simulator.shapes import Link, Shape
from hpccoll.simulator.symmetry import Folding
from hpccoll.simulator.traffic import SimulationRun


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
