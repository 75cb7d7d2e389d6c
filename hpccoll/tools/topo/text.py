"""Text of a machine: the tree of its levels down to ranks, and the costs of links."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from textwrap import wrap

from rich.text import Text
from rich.tree import Tree

from hpccoll.explain.columns import WIDTH, FittedTable, Header
from hpccoll.ir.topology import Topology
from hpccoll.machine.levels import NODE, SWITCH
from hpccoll.tools.topo.job_map import JobMap
from hpccoll.tools.topo.links import Links
from hpccoll.units import ranks_text, rate_text, time_text

#: Maximum number of ranks listed individually; more are a range.
FEW = 16
#: Factor between pairs of one level above which they differ.
UNEVEN = 3.0


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
    return ["", *shown.lines(), *(f"# {part}" for note in notes for part in wrap(
        note, width - 2, subsequent_indent="  "))]


def _format_range(text: Callable[[float, int], str], values: Sequence[float]) -> str:
    low, high = text(min(values), 3), text(max(values), 3)
    return "-" if low == high else f"{low} - {high}"
