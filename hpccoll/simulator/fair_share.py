"""Max-min fair rates of messages on shared resources.

All rates grow together until a resource is full; its messages keep the rate they have reached, and
the others grow on. So no message can get more without reducing a slower or equal one: each is
*held* by a full resource on which no message is faster.
Source: Bertsekas and Gallager, "Data Networks", 1992, section 6.5.2 (progressive filling); the
sharing of SimGrid.

When messages begin and end, few rates change. So only messages on the affected resources get new
rates first; all other rates stay fixed. Further messages are added if they are no longer held, or
are faster than one that their resource holds. Once none is left, all are held: the unique solution.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

#: Tolerance of rounding: resources that fill up at rates within it fill up together, rates within
#: it are equal, and a resource with less left is full.
TOLERANCE = 1e-12


class SharedFlow(Protocol):
    """A message on shared resources: its rate, and the resource that holds it."""

    rate: float
    held_by: int

    @property
    def uses(self) -> Sequence[tuple[int, float]]: ...


Sharer = TypeVar("Sharer", bound=SharedFlow)


def new_rates(changed: Iterable[int], sharers: Sequence[Mapping[Sharer, float]],
              capacity: Sequence[float]) -> dict[Sharer, tuple[float, int]]:
    """Return the messages whose rates may change, with the new rates and the holding resources.

    Args:
        sharers: the messages on each resource, and their use of it per byte.
        capacity: of each resource per second.
    """
    found: dict[Sharer, tuple[float, int]] = {
        flow: (0.0, -1) for resource in changed for flow in sharers[resource]}
    while True:
        free: dict[int, float] = {}
        for flow in found:
            for resource, _ in flow.uses:
                if resource not in free:
                    taken = 0.0
                    for other, weight in sharers[resource].items():
                        if other not in found:
                            taken += weight * other.rate
                    free[resource] = max(capacity[resource] - taken, 0.0)
        found = dict(zip(found, fair_rates([flow.uses for flow in found], free)))
        slowest = dict.fromkeys(free, math.inf)
        for rate, resource in found.values():
            if resource in slowest:
                slowest[resource] = min(slowest[resource], rate)
        before = len(found)
        for resource in free:
            unheld = _unheld(resource, slowest[resource], sharers[resource], found,
                             capacity[resource])
            found.update((flow, (flow.rate, flow.held_by)) for flow in unheld)
        if len(found) == before:
            return found


def _unheld(resource: int, slowest: float, sharers: Mapping[Sharer, float],
            found: Mapping[Sharer, tuple[float, int]], capacity: float) -> list[Sharer]:
    """Return messages whose fixed rates violate fairness, given other rates on a resource."""
    load = fastest = 0.0
    for flow, weight in sharers.items():
        rate = found[flow][0] if flow in found else flow.rate
        load += weight * rate
        fastest = max(fastest, rate)
    full = load >= capacity * (1 - TOLERANCE)
    return [flow for flow in sharers if flow not in found and (
        flow.rate > slowest * (1 + TOLERANCE)
        or flow.held_by == resource and not (full and flow.rate >= fastest * (1 - TOLERANCE)))]


def fair_rates(uses: Sequence[Sequence[tuple[int, float]]],
               capacity: Mapping[int, float]) -> list[tuple[float, int]]:
    """Return the rate of every message, in bytes per second, and the resource that holds it.

    Args:
        uses: for each message, the resources it needs and its use of each per byte.
        capacity: of each resource per second.
    """
    rates, held_by = [math.inf] * len(uses), [-1] * len(uses)
    members: dict[int, list[int]] = {}
    load: dict[int, float] = {}
    for flow, needed in enumerate(uses):
        for resource, weight in needed:
            members.setdefault(resource, []).append(flow)
            load[resource] = load.get(resource, 0.0) + weight
    left = {resource: capacity[resource] for resource in load}
    growing = dict.fromkeys(load, 0)
    for resource, flows in members.items():
        growing[resource] = len(flows)
    while load:
        level = min(left[resource] / load[resource] for resource in load)
        full = [r for r in load if left[r] <= level * load[r] * (1 + TOLERANCE)]
        for resource in full:
            for flow in members[resource]:
                if rates[flow] < math.inf:
                    continue
                rates[flow], held_by[flow] = level, resource
                for other, weight in uses[flow]:
                    growing[other] -= 1
                    load[other] -= weight
                    left[other] = max(left[other] - weight * level, 0.0)
        # Counted, not subtracted to zero: rounding errors would remain as load.
        load = {resource: amount for resource, amount in load.items() if growing[resource]}
    return list(zip(rates, held_by))
