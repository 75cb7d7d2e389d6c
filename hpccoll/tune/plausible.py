"""Which algorithms are worth trying at all, by their closed forms.

The costs of an algorithm are rounds * latency + bytes * transfer time. Its constants are those
of no machine: they only keep what cannot win anywhere, such as a chain over a thousand ranks
for eight bytes, out of measurements that would take minutes.
"""

from __future__ import annotations

from hpccoll.algorithms import ALGORITHMS, schedule

#: Seconds of a message, and of a byte.
LATENCY, TRANSFER = 2e-6, 2e-10
#: What costs this much more than the cheapest is not tried.
HOPELESS = 6.0


def plausible(collective: str, size: int, nbytes: int, hierarchical: bool = False) -> list[str]:
    """Algorithms for so many ranks and bytes, cheapest first; unknown costs come last.

    >>> "ring" in plausible("allreduce", 1024, 8), "ring" in plausible("allreduce", 64, 64 << 20)
    (False, True)

    Args:
        collective, size, nbytes: the call.
        hierarchical: whether algorithms for nodes are of use.
    """
    costs: dict[str, float] = {}
    for name, entry in ALGORITHMS[collective].items():
        if hierarchical or not entry.hierarchical:
            costs[name] = _cost(collective, name, size, nbytes)
    known = [cost for cost in costs.values() if cost < float("inf")]
    limit = HOPELESS * min(known, default=0.0)
    return sorted((name for name, cost in costs.items()
                   if cost <= limit or cost == float("inf")), key=costs.__getitem__)


def _cost(collective: str, name: str, size: int, nbytes: int) -> float:
    made = schedule(collective, name, size)
    if made.rounds is None or made.sent is None and nbytes:
        return float("inf")
    blocks = made.nblocks if made.collective.payload == "vector" else size
    return made.rounds * LATENCY + (made.sent or 0) * nbytes / max(blocks, 1) * TRANSFER
