"""How messages that share a resource share it: max-min fairness.

All rates grow together until a resource is full; its messages keep the rate they have reached,
and the others grow on. So no message can have more without taking from one that has no more.
Source: Bertsekas and Gallager, "Data Networks", 1992, section 6.5.2 (progressive filling); the
sharing of SimGrid.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

#: Resources that fill up at the same rate, but for rounding, fill up together.
TOLERANCE = 1e-12


def fair_rates(uses: Sequence[Sequence[tuple[int, float]]],
               capacity: Sequence[float]) -> list[float]:
    """Give every message its rate, in bytes per second.

    Args:
        uses: for each message, the resources it needs and how much of each a byte takes.
        capacity: what each resource has per second.
    """
    rates = [math.inf] * len(uses)
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
                rates[flow] = level
                for other, weight in uses[flow]:
                    growing[other] -= 1
                    load[other] -= weight
                    left[other] = max(left[other] - weight * level, 0.0)
        # Counted, not subtracted to zero: rounding would leave ghosts of loads behind.
        load = {resource: amount for resource, amount in load.items() if growing[resource]}
    return rates
