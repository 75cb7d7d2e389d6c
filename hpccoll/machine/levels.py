"""Levels of a machine: switches above a node; inside it linked GPUs, sockets, NUMA, L3 groups.

Every rank determines its position: switches from Slurm's variables or a file about the network,
GPUs from NVIDIA's driver, and the other levels from ``/sys`` for its processors. The positions of
all ranks give nested groups. A level that adds no group is omitted.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Any, NamedTuple

from hpccoll.errors import ArgumentError
from hpccoll.ir.topology import Group, Topology
from hpccoll.machine.level_names import GPU, L3, LEVELS, NODE, NUMA, SOCKET, SWITCH
from hpccoll.machine.slurm import slurm_switches

SYSTEM = "/sys/devices/system"


class Position(NamedTuple):
    """Location of a rank.

    Attributes:
        switches: names of the switches above the node, outermost first; ignored unless all ranks
            have the same number.
        socket, numa, l3: numbers on the node; -1 if the rank may run on several.
        gpu: number on the node of the NVLink group of its GPU; -1 if unknown.
    """

    host: str
    switches: tuple[str, ...] = ()
    socket: int = -1
    numa: int = -1
    l3: int = -1
    gpu: int = -1


class GroupLevels(NamedTuple):
    """Nested groups of ranks and their levels of the machine.

    Attributes:
        names: name of each level, outermost first.
    """

    topology: Topology
    names: tuple[str, ...] = ()


def position(processors: Iterable[int], environ: Mapping[str, str] = os.environ,
             network: Mapping[str, tuple[str, ...]] | None = None,
             gpu: int = -1) -> Position:
    """Return the position of this rank.

    Args:
        environ: Slurm's variables, used without ``network``.
        network: the switches above every host, outermost first, from a file.
        gpu: number on the node of its NVLink group; -1 if unknown.
    """
    host = environ.get("SLURMD_NODENAME") or os.uname().nodename.partition(".")[0]
    if network is None:
        switches = slurm_switches(environ)
    elif host in network:
        switches = network[host]
    else:
        raise ArgumentError("HPCCOLL_NETWORK", f"node {host!r} is missing",
                            "name every node of the job, as in Slurm's topology.conf")
    return Position(host, switches, *inside(tuple(processors)), gpu)


@lru_cache(maxsize=16)
def inside(mine: tuple[int, ...], system: str | os.PathLike[str] = SYSTEM) -> tuple[int, int, int]:
    """Return socket, NUMA group and L3 cache of a rank's processors; -1 if they are on several."""
    folders = [os.path.join(system, f"cpu/cpu{cpu}") for cpu in mine]
    sockets = {_first(f"{folder}/topology/physical_package_id") for folder in folders}
    # Not every kernel numbers caches: the first processor of a cache identifies it.
    caches = {_first(f"{folder}/cache/index3/shared_cpu_list") for folder in folders}
    # A processor's directory names its NUMA group by an entry like node3.
    groups = {int(name[4:]) for folder in folders if os.path.isdir(folder)
              for name in os.listdir(folder) if name[:4] == "node" and name[4:].isdecimal()}
    socket, numa, l3 = (numbers.pop() if len(numbers) == 1 else -1
                        for numbers in (sockets, groups, caches))
    return socket, numa, l3


def _first(path: str) -> int:
    """Return the number at the start of a file; -1 without one."""
    try:
        with open(path, encoding="ascii") as file:
            return int(re.split("[-,]", file.read())[0])
    except (OSError, ValueError):
        return -1


def layout(nodes: Sequence[int], positions: Sequence[Position],
           wanted: Sequence[str] = LEVELS) -> GroupLevels:
    """Nest the ranks in groups.

    If ranks are not numbered group by group, the topology gets an order of ranks: groups are
    ordered by their smallest rank, ranks by their innermost group. A level that does not nest is
    omitted.

    Args:
        nodes: label of every rank's node.
        positions: position of every rank.

    >>> here = [Position("a", (), n // 2 % 2) for n in range(8)]
    >>> print(*layout([0, 0, 0, 0, 4, 4, 4, 4], here))
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
        elif name == NODE:  # one switch per node adds no group
            kept[-1] = name, starts
    if not kept:
        return GroupLevels(Topology(size))
    groups: list[tuple[int, Group]] = [
        (start, stop - start)
        for start, stop in zip(kept[-1][1], [*kept[-1][1][1:], size])]
    for _, starts in reversed(kept[:-1]):
        parts = [list(part) for _, part in groupby(
            groups, key=lambda group: bisect_right(starts, group[0]))]
        groups = [(part[0][0], tuple(tree for _, tree in part)) for part in parts]
    return GroupLevels(Topology(tuple(tree for _, tree in groups), tuple(ranks)),
                       tuple(name for name, _ in kept))


def _firsts(labels: Sequence[Any]) -> list[int]:
    """Return the smallest rank of every rank's group, which identifies the group."""
    first: dict[Any, int] = {}
    return [first.setdefault(label, rank) for rank, label in enumerate(labels)]


def _partitions(nodes: Sequence[int], positions: Sequence[Position]
                ) -> Iterator[tuple[str, list[Any]]]:
    """Return the levels, outermost first: for every rank, a label of its group."""
    depths = {len(each.switches) for each in positions}
    for depth in range(1, depths.pop() + 1) if len(depths) == 1 else ():
        switches = [each.switches[:depth] for each in positions]
        # A switch that divides the ranks of a node is not a group of nodes, unless the launcher
        # reports one node for all ranks.
        if len(set(nodes)) in (1, len(set(zip(nodes, switches)))):
            yield SWITCH, switches
    within: list[tuple[int, ...]] = [(node,) for node in nodes]
    yield NODE, within
    for name in (GPU, SOCKET, NUMA, L3):
        numbers = [getattr(each, name) for each in positions]
        if min(numbers) >= 0:
            within = [(*outer, number) for outer, number in zip(within, numbers)]
            yield name, within
