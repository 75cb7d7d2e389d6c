"""Cost of a message between two ranks: latency and bandwidth, measured pair by pair.

One pair measures at a time, so that links are not shared; the other ranks sleep meanwhile, because
a polling rank would take a processor from those that measure.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy
from mpi4py import MPI
from rich.text import Text
from rich.tree import Tree

from hpccoll.explain.columns import WIDTH, FittedTable, Header, wrap_comment
from hpccoll.ir.topology import Topology
from hpccoll.machine.backoff import wait_until
from hpccoll.machine.levels import NODE, SWITCH
from hpccoll.tools.topo.job_map import JobMap
from hpccoll.units import ranks_text, rate_text, time_text

#: Bytes of the latency message, and of the bandwidth message.
SMALL, LARGE = 8, 1 << 20
#: Round trips: warm-up, measured small ones, measured large ones.
WARMUP, SHORT, LONG = 5, 50, 5
#: Maximum number of ranks of which all pairs are measured.
MOST = 32
TAG = 7
#: Maximum number of ranks listed individually; more are a range.
FEW = 16
#: Factor between pairs of one level above which they differ.
UNEVEN = 3.0


class Links(NamedTuple):
    """Measured links, on rank 0.

    Attributes:
        ranks: the measured ranks, in order.
        latency: seconds of a small message one way, by pair of ranks, the smaller one first.
        bandwidth: bytes per second of a large message, by pair of ranks.
        missing: number of pairs that were not measured, after an interruption.
    """

    ranks: tuple[int, ...]
    latency: Mapping[tuple[int, int], float]
    bandwidth: Mapping[tuple[int, int], float]
    missing: int = 0

    def levels(self, machine: JobMap) -> dict[str, tuple[float, float, int]]:
        """Return median latency, median bandwidth and number of pairs by level."""
        pairs: dict[str, list[tuple[int, int]]] = {}
        for pair in self.latency:
            pairs.setdefault(machine.meet(*pair), []).append(pair)
        return {level: (statistics.median(self.latency[pair] for pair in measured),
                        statistics.median(self.bandwidth[pair] for pair in measured), len(measured))
                for level, measured in pairs.items()}


def choose_ranks(size: int, most: int = MOST) -> tuple[int, ...]:
    """Select the ranks to measure: all, or some neighbours and some distant ones.

    >>> choose_ranks(4), choose_ranks(100, 6)
    ((0, 1, 2, 3), (0, 1, 2, 32, 65, 99))
    """
    if size <= most:
        return tuple(range(size))
    near = most // 2
    far = most - near
    return tuple(sorted({*range(near), *(size * n // far - 1 for n in range(1, far + 1))}))


def measure(comm: MPI.Intracomm, ranks: Sequence[int],
            progress: Callable[[str, float], None] = lambda name, part: None,
            stopped: Callable[[], bool] = lambda: False) -> Links | None:
    """Measure all pairs of ranks; collective over ``comm``, ``None`` on all ranks but 0.

    If ``stopped`` returns True on any rank, the remaining pairs are not measured.
    """
    mine, me = {}, comm.Get_rank()
    pairs = [(a, b) for i, a in enumerate(ranks) for b in ranks[i + 1:]]
    for number, (a, b) in enumerate(pairs):
        if me in (a, b):
            times = _pair(comm, b if me == a else a, first=me == a)
            if me == a:
                mine[a, b] = times
        progress(f"ranks {a} and {b}", (number + 1) / len(pairs))
        if wait_for_all(comm, stopped()):
            break
    answers = comm.gather(mine)
    if answers is None:
        return None
    times_of = {pair: times for part in answers for pair, times in part.items()}
    done = [pair for pair in pairs if pair in times_of]
    return Links(tuple(ranks), {pair: times_of[pair][0] for pair in done},
                 {pair: LARGE / times_of[pair][1] for pair in done}, len(pairs) - len(done))


def wait_for_all(comm: MPI.Intracomm, stop: bool = False) -> bool:
    """Wait for all ranks, with sleeps that leave processors to working ranks.

    Returns:
        True if any rank requests a stop.
    """
    mine, found = numpy.array([stop], "i4"), numpy.empty(1, "i4")
    request = comm.Iallreduce(mine, found, MPI.MAX)
    wait_until(request.Test)
    return bool(found[0])


def _pair(comm: MPI.Intracomm, peer: int, first: bool) -> tuple[float, float]:
    """Measure the seconds of a small and of a large message, one way: half a round trip.

    Uses the shortest time of small messages, because disturbances only add time, and the median of
    large messages, because an idle link may buffer the first bytes.
    """
    halves = []
    for nbytes, trips, middle in ((SMALL, SHORT, min), (LARGE, LONG, statistics.median)):
        out, into = numpy.zeros(nbytes, "u1"), numpy.zeros(nbytes, "u1")
        seconds = []
        for trip in range(WARMUP + trips):
            start = time.perf_counter()
            if first:
                comm.Send(out, peer, TAG)
                comm.Recv(into, peer, TAG)
            else:
                comm.Recv(into, peer, TAG)
                comm.Send(out, peer, TAG)
            if trip >= WARMUP:
                seconds.append(time.perf_counter() - start)
        halves.append(middle(seconds) / 2)
    return halves[0], halves[1]


def tree(machine: JobMap) -> Tree:
    """Return the levels as a tree; its leaves are ranks and their processors."""
    layout = machine.layout
    size = layout.topology.size
    levels = " / ".join((*layout.names, "rank"))
    root = Tree(Text.assemble((f"{size} rank{'s' * (size != 1)}", "bold"),
                              f", layout {layout.topology} ({levels})",
                              "" if machine.used == str(layout.topology) else
                              f"; hpccoll uses {machine.used}"))
    _grow(root, machine, layout.topology.plain, layout.topology.ranks, layout.names)
    return root


def _grow(branch: Tree, machine: JobMap, topology: Topology, ranks: Sequence[int],
          names: tuple[str, ...]) -> None:
    if not topology.children:
        for line in _leaves(machine, ranks):
            branch.add(line)
        return
    switches = names.count(SWITCH)
    for group, child in zip(topology.groups(), topology.children):
        inside = ranks[group[0]:group[-1] + 1]
        label = Text.assemble((name_of(machine, inside[0], names[0], switches), "bold"),
                              f"  {ranks_text(inside)}")
        _grow(branch.add(label), machine, child, inside, names[1:])


def name_of(machine: JobMap, rank: int, level: str, switches: int) -> str:
    """Return the name of a group by its first rank; ``switches`` levels of switches remain."""
    here = machine.positions[rank]
    if level == SWITCH:
        return f"switch {here.switches[len(here.switches) - switches]}"
    return f"node {here.host}" if level == NODE else f"{level} {getattr(here, level)}"


def _leaves(machine: JobMap, ranks: Sequence[int]) -> Iterator[str]:
    """Yield one line per rank, or one line for many equal ranks."""
    masks = [machine.processors[rank] for rank in ranks]
    if len(ranks) > FEW and len(set(masks)) == 1:
        yield f"{ranks_text(ranks)} on {_processors(masks[0])}"
        return
    for rank, mask in zip(ranks, masks):
        yield f"rank {rank} on {_processors(mask)}"


def _processors(mask: tuple[int, ...]) -> str:
    return ranks_text(mask).replace("ranks", "processors").replace("rank", "processor")


def table(machine: JobMap, links: Links, width: int = WIDTH) -> list[str]:
    """Return latency and bandwidth of every level, the nearest first, with their ranges."""
    pairs: dict[str, list[tuple[int, int]]] = {}
    for pair in links.latency:
        pairs.setdefault(machine.meet(*pair), []).append(pair)
    rows = []
    levels = sorted(links.levels(machine).items(), key=lambda item: item[1][0])
    for level, (latency, bandwidth, count) in levels:
        mine = pairs[level]
        rows.append([f"same {level}" if level != "network" else level, str(count),
                     time_text(latency, 3),
                     _format_range(time_text, [links.latency[pair] for pair in mine]),
                     rate_text(bandwidth),
                     _format_range(rate_text, [links.bandwidth[pair] for pair in mine])])
    shown = FittedTable(
        [Header("level", right=False), Header("pairs"), Header("latency"),
         Header("from-to", spare=1), Header("bandwidth"), Header("from-to", spare=1)], rows, width)
    notes = ["medians over pairs of ranks, of 8 B round trip, and of 1 MiB one way"]
    if any(max(links.latency[pair] for pair in mine) > UNEVEN * min(
            links.latency[pair] for pair in mine) for mine in pairs.values()):
        notes.append(f"pairs of the same level differ by more than {UNEVEN:g}x: their links "
                     "differ, or other processes used these cores")
    return ["", *shown.lines(), *(part for note in notes for part in wrap_comment(note, width))]


def _format_range(text: Callable[[float, int], str], values: Sequence[float]) -> str:
    low, high = text(min(values), 3), text(max(values), 3)
    return "-" if low == high else f"{low} - {high}"
