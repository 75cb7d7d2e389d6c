"""Levels of a machine: the switches above a node, and sockets, NUMA and L3 groups inside it.

Every rank finds out by itself where it is, from Slurm's variables or a file about the network,
and from ``/sys`` for the processors that it may run on. What all ranks say together gives nested
groups: a level counts where it says anything new.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from hpccoll.errors import ArgumentError
from hpccoll.ir.topology import Group, Topology

#: Levels by name, from the outside in. There may be several levels of switches.
SWITCH, NODE, SOCKET, NUMA, L3 = LEVELS = ("switch", "node", "socket", "numa", "l3")
SYSTEM = Path("/sys/devices/system")

_HOSTS = re.compile(r"([^,\[]*)(?:\[([^\]]*)\])?([^,\[]*)(?:,|$)")


class Position(NamedTuple):
    """Where a rank is.

    Attributes:
        host: its node's name.
        switches: names of the switches above the node, outermost first; the same number
            on every rank, or the level does not count.
        socket, numa, l3: numbers on the node, -1 where the rank may run on several.
    """

    host: str
    switches: tuple[str, ...] = ()
    socket: int = -1
    numa: int = -1
    l3: int = -1


class Grouping(NamedTuple):
    """Nested groups of ranks, and which level of the machine each nesting is.

    Attributes:
        topology: the groups.
        names: a name for each level of groups, outermost first.
    """

    topology: Topology
    names: tuple[str, ...] = ()


def position(processors: Iterable[int], environ: Mapping[str, str] = os.environ,
             network: Mapping[str, tuple[str, ...]] | None = None) -> Position:
    """Find out where this rank is.

    Args:
        processors: those it may run on.
        network: switches above every host, where there is a file about it.

    Raises:
        ArgumentError: the network does not have this host.
    """
    host = environ.get("SLURMD_NODENAME") or os.uname().nodename.partition(".")[0]
    if network is None:
        switches = slurm_switches(environ)
    elif host in network:
        switches = network[host]
    else:
        raise ArgumentError("HPCCOLL_NETWORK", f"has no node {host!r}",
                            "name every node of the job, as in Slurm's topology.conf")
    return Position(host, switches, *inside(tuple(processors)))


def slurm_switches(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The switches above this node, as Slurm's topology plug-in says.

    >>> slurm_switches({"SLURM_TOPOLOGY_ADDR": "top.s0.n1",
    ...                 "SLURM_TOPOLOGY_ADDR_PATTERN": "switch.switch.node"})
    ('top', 's0')
    """
    names = environ.get("SLURM_TOPOLOGY_ADDR", "").split(".")
    kinds = environ.get("SLURM_TOPOLOGY_ADDR_PATTERN", "").split(".")
    if len(names) != len(kinds):
        return ()
    return tuple(name for name, kind in zip(names, kinds) if name and kind not in ("", "node"))


@lru_cache(maxsize=16)
def inside(mine: tuple[int, ...], system: Path = SYSTEM) -> tuple[int, int, int]:
    """Socket, NUMA group and L3 cache of a rank's processors; -1 for what it has several of."""
    sockets = {_number(system / f"cpu/cpu{cpu}/topology/physical_package_id") for cpu in mine}
    # Caches have no numbers of their own everywhere; the first processor on one stands for it.
    caches = {_first(system / f"cpu/cpu{cpu}/cache/index3/shared_cpu_list") for cpu in mine}
    # A processor's directory names its NUMA group by an entry like node3.
    groups = {_number(entry, entry.name.removeprefix("node")) for cpu in mine
              for entry in (system / f"cpu/cpu{cpu}").glob("node[0-9]*")}
    return tuple(found.pop() if len(found) == 1 else -1
                 for found in (sockets, groups, caches))  # type: ignore[return-value]


def _number(path: Path, text: str | None = None) -> int:
    try:
        return int(path.read_text() if text is None else text)
    except (OSError, ValueError):
        return -1


def _first(path: Path) -> int:
    try:
        return int(re.split("[-,]", path.read_text())[0])
    except (OSError, ValueError):
        return -1


def layout(nodes: Sequence[int], positions: Sequence[Position],
           wanted: Sequence[str] = LEVELS) -> Grouping:
    """Nest the ranks.

    Where ranks are not numbered group by group, the topology has an order of ranks of its own:
    groups as their smallest ranks come, and ranks as they come in the smallest groups. A level
    that does not nest is left out.

    Args:
        nodes: for every rank, something that stands for its node.
        positions: of every rank.
        wanted: names of the levels to use.

    >>> here = [Position("a", (), n // 2 % 2) for n in range(8)]
    >>> found = layout([0, 0, 0, 0, 4, 4, 4, 4], here)
    >>> print(found.topology, found.names)
    2x2x2 ('node', 'socket')
    >>> print(layout([0, 1, 0, 1], here[:4], ("node",)).topology)
    2x2@0,2,1,3
    """
    size = len(nodes)
    levels = [(name, _firsts(labels)) for name, labels in _partitions(nodes, positions)
              if name in wanted]
    ranks = sorted(range(size), key=lambda rank: (*(firsts[rank] for _, firsts in levels), rank))
    kept: list[tuple[str, list[int]]] = []
    for name, firsts in levels:
        starts = [n for n in range(size) if n == 0 or firsts[ranks[n]] != firsts[ranks[n - 1]]]
        if len(starts) == 1 or len(starts) == size and name != NODE:
            continue
        if not kept or starts != kept[-1][1]:
            kept.append((name, starts))
        elif name == NODE:  # a switch of its own for every node says nothing
            kept[-1] = name, starts
    if not kept:
        return Grouping(Topology(size))
    groups: list[tuple[int, Group]] = [
        (start, stop - start)
        for start, stop in zip(kept[-1][1], [*kept[-1][1][1:], size])]
    for _, starts in reversed(kept[:-1]):
        parts = [list(part) for _, part in groupby(
            groups, key=lambda group: bisect_right(starts, group[0]))]
        groups = [(part[0][0], tuple(tree for _, tree in part)) for part in parts]
    return Grouping(Topology(tuple(tree for _, tree in groups), tuple(ranks)),
                  tuple(name for name, _ in kept))


def _firsts(labels: Sequence) -> list[int]:
    """For every rank, the smallest rank of its group, which stands for the group."""
    first: dict = {}
    return [first.setdefault(label, rank) for rank, label in enumerate(labels)]


def _partitions(nodes: Sequence[int], positions: Sequence[Position]
                ) -> Iterator[tuple[str, list]]:
    """Levels from the outside in: for every rank, which group of the level it is in."""
    depths = {len(each.switches) for each in positions}
    for depth in range(1, depths.pop() + 1) if len(depths) == 1 else ():
        switches = [each.switches[:depth] for each in positions]
        # A switch that parts the ranks of a node is no group of nodes. Where all ranks count as
        # one node, as some launchers have it, switches still say more than nothing.
        if len(set(nodes)) in (1, len(set(zip(nodes, switches)))):
            yield SWITCH, switches
    within = [(each,) for each in nodes]
    yield NODE, within
    for name in (SOCKET, NUMA, L3):
        numbers = [getattr(each, name) for each in positions]
        if min(numbers) >= 0:
            within = [(*outer, number) for outer, number in zip(within, numbers)]
            yield name, within


# -- files about the network ------------------------------------------------------------------
def parse_network(text: str) -> dict[str, tuple[str, ...]]:
    """Read switches as Slurm's ``topology.conf`` has them: for every host, those above it.

    >>> parse_network("SwitchName=s0 Nodes=n[0-1]\\nSwitchName=top Switches=s0")
    {'n0': ('top', 's0'), 'n1': ('top', 's0')}

    Raises:
        ArgumentError: malformed text, a host or a switch in two places, or a ring of switches.
    """
    above: dict[str, str] = {}
    hosts: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        given = {key.lower(): value for key, _, value in (word.partition("=") for word in words)}
        switch = given.get("switchname")
        if not switch or not ("nodes" in given or "switches" in given):
            raise ArgumentError("HPCCOLL_NETWORK", f"cannot read line {number}: {line.strip()!r}",
                                "write SwitchName=NAME Nodes=n[0-15] or Switches=s[0-3]")
        for key in ("nodes", "switches"):
            for name in expand(given.get(key, "")):
                if name in above:
                    raise ArgumentError("HPCCOLL_NETWORK", f"line {number}: {name} is below "
                                                           f"{above[name]} and {switch}")
                above[name] = switch
                hosts += [name] * (key == "nodes")
    return {host: _path(host, above) for host in hosts}


def _path(host: str, above: Mapping[str, str]) -> tuple[str, ...]:
    path: list[str] = []
    while host in above:
        host = above[host]
        if host in path:
            raise ArgumentError("HPCCOLL_NETWORK", f"switch {host} is below itself")
        path.insert(0, host)
    return tuple(path)


def expand(text: str) -> list[str]:
    """Expand a list of hosts as Slurm writes it.

    >>> expand("n[08-10,12],login")
    ['n08', 'n09', 'n10', 'n12', 'login']
    """
    found = []
    for match in _HOSTS.finditer(text):
        prefix, ranges, suffix = match.groups()
        for part in ranges.split(",") if ranges else [""] if prefix + suffix else []:
            first, _, last = part.partition("-")
            if part and not (first.isdigit() and (last or first).isdigit()):
                raise ArgumentError("HPCCOLL_NETWORK", f"cannot read {part!r} in {text!r}",
                                    "write lists of hosts like n[0-15,20]")
            found += ([f"{prefix}{number:0{len(first)}}{suffix}"
                       for number in range(int(first), int(last or first) + 1)]
                      if part else [prefix + suffix])
    return found
