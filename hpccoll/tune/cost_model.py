"""Cost model of schedules, with constants fitted to measured times.

Source of the model: Hockney, with the overhead of LogP and with levels. The time of a call is the
sum of

* an overhead for each message that the busiest rank sends or receives;
* ``alpha`` for each of the longest chain of messages (the closed form of its rounds);
* ``beta`` for each byte that the busiest rank sends or receives;
* ``gamma`` for each byte that the busiest rank reduces;
* for every level of groups above the ranks, such as nodes, ``alpha`` for each round of a rank that
  leaves its group, and ``beta`` for each byte that the busiest group sends or receives.

The constants include all side costs: copies, shared cores, links between groups. So they are fitted
to times of whole collectives on this machine and layout, never taken from a data sheet, and do not
apply to another.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from math import ceil, inf
from operator import mul
from typing import Any, NamedTuple

from hpccoll.algorithms import ALGORITHMS, schedule
from hpccoll.config import NATIVE, QUEUED
from hpccoll.ir.cost.network import NetworkPaths
from hpccoll.ir.cost.workload import Workload
from hpccoll.ir.in_network import InNetwork
from hpccoll.ir.schedule import Schedule
from hpccoll.ir.topology import Topology
from hpccoll.tune.table import Candidate, Curves
from hpccoll.units import time_text

#: Minimum number of different calls for a fit.
FEWEST = 4
#: Rounds of the fit (coordinate descent); each optimizes every constant for fixed others.
SWEEPS = 400
#: Smallest constant in seconds; smaller values are artifacts of the fit.
NOTHING = 1e-15
#: Ranks of a group that are evaluated; inner ones represent the others.
LOOKED_AT = 6
#: Largest number of ranks with terms: beyond it, building programs would take seconds.
MOST_RANKS = 512

#: Multiples of each constant for a call: messages, rounds, bytes, reduced bytes; then for each
#: level of groups, outermost first, rounds and bytes that leave a group. Messages are first: if the
#: fit cannot separate them from rounds, it assigns the cost to messages, which is pessimistic for
#: algorithms with many concurrent messages.
Terms = tuple[float, ...]


class Model(NamedTuple):
    """Seconds per unit of each term, and the largest ratio of measured to predicted time."""

    costs: tuple[float, ...]
    miss: float = 1.0

    def seconds(self, terms: Terms) -> float:
        """Return the predicted time."""
        return float(sum(map(mul, self.costs, terms)))

    def __str__(self) -> str:
        names = ["a message", "a round", "a byte", "a reduced byte"]
        names += [f"a {what} that leaves a group of level {level + 1}"
                  for level in range((len(self.costs) - 4) // 2) for what in ("round", "byte")]
        return ", ".join(f"{time_text(cost, 3)} {name}" for cost, name in zip(self.costs, names))


def _params(candidate: Candidate) -> dict[str, Any]:
    return dict(candidate.params)


def closed_form(collective: str, candidate: Candidate, size: int, nbytes: int) -> Terms | None:
    """Return rounds and bytes sent by the busiest rank; ``None`` without a closed form."""
    built = schedule(collective, candidate.name, size, **_params(candidate))
    if built.rounds is None or built.sent is None and nbytes:
        return None
    return built.rounds, (built.sent or 0) * nbytes / _blocks(built)


def terms(collective: str, candidate: Candidate, size: int, nbytes: int,
          topology: Topology | None = None) -> Terms | None:
    """Return the terms of a candidate; ``None`` without a closed form of its rounds."""
    if candidate.name in (NATIVE, *QUEUED) or size > MOST_RANKS:
        return None
    topology = topology or Topology(size)
    built = schedule(collective, candidate.name, size, topology=topology, **dict(candidate.params))
    if built.rounds is None:
        return None
    part = nbytes / _blocks(built)
    return tuple(amount * part if number in (2, 3) or number > 4 and number % 2 else amount
                 for number, amount in enumerate(_amounts(built, topology)))


def calibrate(curves: Curves, collective: str, size: int,
              topology: Topology | None = None) -> Model | None:
    """Fit the constants of a collective to measured times; ``None`` if there are too few.

    The cost per byte differs between collectives, so every collective has its own constants. One
    without measurements uses a fit of all others.
    """
    samples = [(kind[0], known, seconds) for kind, curve in curves.items()
               for nbytes, times in curve for candidate, seconds in times.items()
               if (known := terms(kind[0], candidate, size, nbytes, topology)) is not None]
    return (fit((known, seconds) for name, known, seconds in samples if name == collective)
            or fit((known, seconds) for _, known, seconds in samples))


def fit(samples: Iterable[tuple[Terms, float]]) -> Model | None:
    """Fit nonnegative constants to samples.

    Times span orders of magnitude, so the fit minimizes squares of relative errors. It uses only
    the four basic operations, which all processors round in the same way.

    >>> fit(((r, b), 2e-6 * r + 1e-9 * b) for r, b in ((1, 0), (2, 1e6), (3, 8), (9, 1e4)))
    Model(costs=(2e-06, 1e-09), miss=1.0)
    """
    samples = list(samples)
    if len({known for known, _ in samples}) < FEWEST:
        return None
    rows = [[amount / seconds for amount in known] for known, seconds in samples]
    columns = list(zip(*rows))
    products = [[sum(map(mul, one, other)) for other in columns] for one in columns]
    wanted = list(map(sum, columns))
    costs = [0.0] * len(columns)
    for _ in range(SWEEPS):
        for i, product in enumerate(products):
            if product[i] > 0:
                others = sum(map(mul, product, costs)) - product[i] * costs[i]
                costs[i] = max((wanted[i] - others) / product[i], 0.0)
    model = Model(tuple(float(f"{cost:.6g}") if cost > NOTHING else 0.0 for cost in costs))
    expected = [(model.seconds(known), seconds) for known, seconds in samples]
    # A table may have valid but absurd times.
    if not all(0 < said < inf for said, _ in expected):
        return None
    return model._replace(miss=float(f"{max(took / said for said, took in expected):.4g}"))


# -- terms of a schedule -----------------------------------------------------------------------
def _blocks(built: Schedule) -> int:
    """Return the number of blocks of a call's bytes."""
    return max(built.nblocks if built.collective.payload == "vector" else built.size, 1)


@lru_cache(maxsize=1024)
def _amounts(built: Schedule, topology: Topology) -> Terms:
    work, layout = Workload(built, _blocks(built)), NetworkPaths(topology)
    levels = topology.depth - 1
    ends = [list(_ends(topology, level)) for level in range(max(levels, 1))]
    ranks = {rank for groups in ends for group in groups for rank, _ in group}
    footprints = {rank: _footprint(work, layout, rank, levels) for rank in ranks}
    outer: list[float] = []
    for level in range(levels):
        outer.append(max(footprint.crossings[level] for footprint in footprints.values()))
        outer.append(max(sum(weight * footprints[rank].across[level][way] for rank, weight in group)
                         for group in ends[level] for way in (0, 1)))
    return (max(max(footprint.messages) for footprint in footprints.values()), built.rounds or 0,
            max(max(footprint.moved) for footprint in footprints.values()),
            max(footprint.reduced for footprint in footprints.values()), *outer)


class _Footprint(NamedTuple):
    """Work of one rank: messages and blocks received and sent, blocks reduced.

    For each level also blocks into and out of its group, and rounds with such blocks.
    """

    messages: list[int]
    moved: list[float]
    reduced: float
    across: list[list[float]]
    crossings: list[int]


def _footprint(work: Workload, layout: NetworkPaths, rank: int, levels: int) -> _Footprint:
    path = layout.path(rank)
    count, moved, reduced = [0, 0], [0.0, 0.0], 0.0
    across, crossings = [[0.0, 0.0] for _ in range(levels)], [0] * levels
    for messages, more, *_ in work.rounds(rank):
        reduced += more
        outermost = levels
        for sends, peer, blocks in messages:
            count[sends] += 1
            moved[sends] += blocks
            others = peer.others(rank) if isinstance(peer, InNetwork) else (peer,)
            parting = min(next((d for d in range(levels) if path[d] != other[d]), levels)
                          for other in map(layout.path, others))
            outermost = min(outermost, parting)
            # A message that leaves a group leaves all groups inside it.
            for level in range(parting, levels):
                across[level][sends] += blocks
        for level in range(outermost, levels):
            crossings[level] += 1
    return _Footprint(count, moved, reduced, across, crossings)


def _ends(topology: Topology, level: int) -> Iterator[list[tuple[int, float]]]:
    """Yield ranks of the first and the last group of a level, with their weights."""
    ranges = [range(topology.size)]
    if topology.depth > 1:
        ranges = _groups(topology.plain, level, 0)
    for positions in dict.fromkeys((ranges[0], ranges[-1])):
        yield [(topology.ranks[position], weight) for position, weight in _looked_at(positions)]


def _groups(topology: Topology, level: int, start: int) -> list[range]:
    """Return positions of the groups of a level; a group without subgroups is one itself."""
    groups: list[range] = []
    for child in topology.children or (topology,):
        if level and child.children:
            groups += _groups(child, level - 1, start)
        else:
            groups.append(range(start, start + child.size))
        start += child.size
    return groups


def _looked_at(positions: Sequence[int]) -> Iterator[tuple[int, float]]:
    """Yield the first, the last, and some inner positions, with their weights."""
    inner = positions[1:-1]
    chosen = inner[::ceil(len(inner) / (LOOKED_AT - 2))] if inner else ()
    for position in dict.fromkeys((positions[0], positions[-1])):
        yield position, 1.0
    for position in chosen:
        yield position, len(inner) / len(chosen)


#: Generic constants: they only exclude candidates that cannot win anywhere, such as a chain over a
#: thousand ranks for eight bytes, from measurements that would take minutes.
ROUGHLY = Model((2e-6, 2e-10))
#: Cost relative to the cheapest candidate above which one is not tried.
HOPELESS = 6.0


def plausible_algorithms(collective: str, size: int, nbytes: int,
                         hierarchical: bool = False) -> list[str]:
    """Return algorithms worth trying, cheapest first; those with unknown costs are last.

    Among equal ones those for nodes are first, if ``hierarchical``.

    >>> "ring" in plausible_algorithms("allreduce", 1024, 8)
    False
    >>> "ring" in plausible_algorithms("allreduce", 64, 64 << 20)
    True

    Args:
        hierarchical: True to include algorithms for nodes.
    """
    costs: dict[str, float] = {}
    for name, entry in ALGORITHMS[collective].items():
        if hierarchical or not entry.hierarchical:
            known = closed_form(collective, Candidate(name), size, nbytes)
            costs[name] = inf if known is None else ROUGHLY.seconds(known)
    limit = HOPELESS * min(costs.values())
    return sorted((name for name, cost in costs.items() if cost <= limit or cost == inf),
                  key=lambda name: (costs[name], not ALGORITHMS[collective][name].hierarchical))
