"""Costs by what a schedule does, with constants fitted to measured times.

Source of the model: Hockney, with the overhead of LogP and with levels. The time of a call is the
sum of

* an overhead for each message that the busiest rank sends or receives;
* ``alpha`` for each of the longest chain of messages (the closed form of its rounds);
* ``beta`` for each byte that the busiest rank sends or receives;
* ``gamma`` for each byte that the busiest rank reduces;
* for every level of groups above the ranks, such as nodes, ``alpha`` for each round of a rank that
  leaves its group, and ``beta`` for each byte that the busiest group sends or receives.

The constants come with everything that goes along: copies, the processor shared with others, the
links between groups. So they are fitted to the times of whole collectives on the machine and
layout at hand, never taken from a data sheet, and say nothing about another.
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

#: Fewest different calls whose times constants are fitted to.
FEWEST = 4
#: Rounds of the fit, in each of which every constant is set to the best value beside the others.
SWEEPS = 400
#: Seconds for which nothing can be done: what is below is left over from the fit.
NOTHING = 1e-15
#: Ranks of a group that are looked at; those between the first and the last stand for the others.
LOOKED_AT = 6
#: Up to so many ranks terms are found: beyond, making the programs would take seconds.
MOST_RANKS = 512

#: How often each constant counts for a call: messages, rounds, bytes, reduced bytes; then for each
#: level of groups, outermost first, rounds and bytes that leave a group. Messages come first: where
#: the fit cannot tell them from rounds, it takes the cost for theirs, and so expects less of those
#: algorithms that send many at once.
Terms = tuple[float, ...]


class Model(NamedTuple):
    """Seconds of one of each of the terms, and how many times longer than expected any of the
    calls took that they were fitted to."""

    costs: tuple[float, ...]
    miss: float = 1.0

    def seconds(self, terms: Terms) -> float:
        """The expected time."""
        return float(sum(map(mul, self.costs, terms)))

    def __str__(self) -> str:
        names = ["a message", "a round", "a byte", "a reduced byte"]
        names += [f"a {what} that leaves a group of level {level + 1}"
                  for level in range((len(self.costs) - 4) // 2) for what in ("round", "byte")]
        return ", ".join(f"{time_text(cost, 3)} {name}" for cost, name in zip(self.costs, names))


def _params(candidate: Candidate) -> dict[str, Any]:
    return dict(candidate.params)


def closed_form(collective: str, candidate: Candidate, size: int, nbytes: int) -> Terms | None:
    """Rounds, and bytes sent by the busiest rank; ``None`` where there is no closed form."""
    built = schedule(collective, candidate.name, size, **_params(candidate))
    if built.rounds is None or built.sent is None and nbytes:
        return None
    return built.rounds, (built.sent or 0) * nbytes / _blocks(built)


def terms(collective: str, candidate: Candidate, size: int, nbytes: int,
          topology: Topology | None = None) -> Terms | None:
    """The terms of a candidate; ``None`` where there is no closed form of its rounds."""
    if candidate.name in (NATIVE, *QUEUED) or size > MOST_RANKS:
        return None
    topology = topology or Topology(size)
    built = schedule(collective, candidate.name, size, topology=topology, **dict(candidate.params))
    if built.rounds is None:
        return None
    part = nbytes / _blocks(built)
    return tuple(amount * part if number in (2, 3) or number > 4 and number % 2 else amount
                 for number, amount in enumerate(_amounts(built, topology)))


def calibrated(curves: Curves, collective: str, size: int,
               topology: Topology | None = None) -> Model | None:
    """Fit the constants of a collective to measured times; ``None`` where there are too few.

    A byte of one collective is not worth what one of another is, so every collective has its own
    constants; one that was not measured has those of all others together.
    """
    samples = [(kind[0], known, seconds) for kind, curve in curves.items()
               for nbytes, times in curve for candidate, seconds in times.items()
               if (known := terms(kind[0], candidate, size, nbytes, topology)) is not None]
    return (fit((known, seconds) for name, known, seconds in samples if name == collective)
            or fit((known, seconds) for _, known, seconds in samples))


def fit(samples: Iterable[tuple[Terms, float]]) -> Model | None:
    """The constants, none of them negative, that explain the samples best.

    Times span orders of magnitude, so it is the relative errors whose squares are smallest. Only
    the four basic operations, which every processor rounds alike.

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
    # A table may hold times that are possible but absurd.
    if not all(0 < said < inf for said, _ in expected):
        return None
    return model._replace(miss=float(f"{max(took / said for said, took in expected):.4g}"))


# -- what a schedule does ----------------------------------------------------------------------
def _blocks(built: Schedule) -> int:
    """Blocks that the bytes of a call are cut into."""
    return max(built.nblocks if built.collective.payload == "vector" else built.size, 1)


@lru_cache(maxsize=1024)
def _amounts(built: Schedule, topology: Topology) -> Terms:
    """The terms, in blocks."""
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
    """What one rank does: messages and blocks received and sent, blocks reduced; for each level,
    blocks into and out of its group, and rounds in which there are any."""

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
            # Who leaves a group leaves all groups inside it.
            for level in range(parting, levels):
                across[level][sends] += blocks
        for level in range(outermost, levels):
            crossings[level] += 1
    return _Footprint(count, moved, reduced, across, crossings)


def _ends(topology: Topology, level: int) -> Iterator[list[tuple[int, float]]]:
    """Ranks of the first and of the last group of a level; how many each of them stands for."""
    ranges = [range(topology.size)]
    if topology.depth > 1:
        ranges = _groups(topology.plain, level, 0)
    for positions in dict.fromkeys((ranges[0], ranges[-1])):
        yield [(topology.ranks[position], weight) for position, weight in _looked_at(positions)]


def _groups(topology: Topology, level: int, start: int) -> list[range]:
    """Positions of the groups of a level; a group without groups is one itself."""
    groups: list[range] = []
    for child in topology.children or (topology,):
        if level and child.children:
            groups += _groups(child, level - 1, start)
        else:
            groups.append(range(start, start + child.size))
        start += child.size
    return groups


def _looked_at(positions: Sequence[int]) -> Iterator[tuple[int, float]]:
    """The first, the last, and some of those between them, which stand for all between."""
    inner = positions[1:-1]
    chosen = inner[::ceil(len(inner) / (LOOKED_AT - 2))] if inner else ()
    for position in dict.fromkeys((positions[0], positions[-1])):
        yield position, 1.0
    for position in chosen:
        yield position, len(inner) / len(chosen)


#: Constants of no machine: they only keep what cannot win anywhere, such as a chain over a thousand
#: ranks for eight bytes, out of measurements that would take minutes.
ROUGHLY = Model((2e-6, 2e-10))
#: What costs this much more than the cheapest is not tried.
HOPELESS = 6.0


def plausible(collective: str, size: int, nbytes: int, hierarchical: bool = False) -> list[str]:
    """Algorithms worth trying for so many ranks and bytes, cheapest first; unknown costs come last.

    Of equal ones those for nodes come first, where these are of use.

    >>> "ring" in plausible("allreduce", 1024, 8), "ring" in plausible("allreduce", 64, 64 << 20)
    (False, True)

    Args:
        collective, size, nbytes: the call.
        hierarchical: whether algorithms for nodes are of use.
    """
    costs: dict[str, float] = {}
    for name, entry in ALGORITHMS[collective].items():
        if hierarchical or not entry.hierarchical:
            known = closed_form(collective, Candidate(name), size, nbytes)
            costs[name] = inf if known is None else ROUGHLY.seconds(known)
    limit = HOPELESS * min(costs.values())
    return sorted((name for name, cost in costs.items() if cost <= limit or cost == inf),
                  key=lambda name: (costs[name], not ALGORITHMS[collective][name].hierarchical))
