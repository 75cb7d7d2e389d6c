"""Colouring: classes of equivalent ranks in schedules without a symmetry.

With folded ranks next to others, trees, or groups of different sizes, no shift of all ranks maps a
schedule to itself, but most ranks still wait for the same things at the same times. Each rank gets
a colour by its own rounds. A colour is split if messages of the same position in the program go to
ranks of different colours, or have different positions in the peer's program, or if the surrounding
groups contain other colours; this is repeated until no colour splits. Then every message of a
colour has the same counterpart, and every link of a group carries the same number of each, so one
rank of each colour is enough.

Source: colour refinement, Paige and Tarjan, "Three partition refinement algorithms", SIAM J.
Comput. 1987: only ranks that are split off are processed again.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

from hpccoll.ir.cost.network import LINK_IN, NetworkPaths, Resource, divergence_depth
from hpccoll.simulator.packed import PackedPrograms

#: Minimum number of ranks, and maximum ratio of colours to ranks, for which colouring pays.
MANY, PART = 256, 0.5

Path = tuple[int, ...]


class RankColours:
    """Classes of ranks by colour, like :class:`~hpccoll.simulator.symmetry.Symmetry`.

    Args:
        programs: program of every rank.
        colours: colour of every rank.
    """

    def __init__(self, layout: NetworkPaths, paths: Sequence[Path], programs: PackedPrograms,
                 colours: Sequence[int]):
        self.layout, self.paths, self.programs, self.colours = layout, paths, programs, colours
        self.first: dict[int, int] = {}
        for rank, colour in enumerate(colours):
            self.first.setdefault(colour, rank)
        self.sizes = Counter(colours)
        self.numbers = {path: rank for rank, path in enumerate(paths)}
        self.groups: dict[Path, Counter[int]] = {}
        for colour, path in zip(colours, paths):
            for depth in range(len(path)):
                self.groups.setdefault(path[:depth], Counter())[colour] += 1
        self.kinds: dict[Hashable, Path] = {}
        self.kind_of: dict[Path, Path] = {}
        self.alike: Counter[Path] = Counter()
        for path, held in self.groups.items():
            kind = self.kinds.setdefault((len(path), frozenset(held.items())), path)
            self.kind_of[path] = kind
            self.alike[kind] += 1

    def representatives(self) -> Iterator[int]:
        """Yield the first rank of every colour."""
        return iter(self.first.values())

    def images(self, rank: int) -> int:
        """Return the number of ranks of a rank's colour."""
        return self.sizes[self.colours[rank]]

    def link(self, sends: bool, rank: int, peer: int) -> Hashable:
        """Return a key that messages between two ranks share only with their images."""
        here = self.colours[rank], self.programs.place(rank, 2 * peer + sends)
        there = self.colours[peer], self.programs.place(peer, 2 * rank + (not sends))
        return (here, there) if sends else (there, here)

    def images_on(self, resource: Resource, sender: Path, receiver: Path) -> int:
        """Return the number of images of a message on one resource other than a port."""
        if resource.path not in self.groups:
            return 1  # a rank's own link
        path = receiver if resource.kind == LINK_IN else sender
        return self.groups[resource.path][self.colours[self.numbers[path]]]

    def representative_path(self, path: Path) -> Path:
        """Return the path of the representative of a rank or group."""
        if path in self.kind_of:
            return self.kind_of[path]
        return self.paths[self.first[self.colours[self.numbers[path]]]]

    def copies(self, resource: Resource) -> int:
        """Return the number of resources that a representative's stands for."""
        if resource.path in self.alike:
            return self.alike[resource.path]
        return self.images(self.numbers[resource.path])

    def describe(self, size: int) -> str:
        """Return a one-line description."""
        classes = len(self.first)
        return (f"{size:,} ranks in {classes:,} class{'es' * (classes != 1)} "
                "(by colour, all ranks compared)")


def colour(programs: PackedPrograms, layout: NetworkPaths) -> RankColours | None:
    """Colour the ranks; ``None`` if few are equal, or messages do not match.

    Args:
        programs: programs of all ranks.
    """
    paths = [layout.path(rank) for rank in range(layout.size)]
    colours = _start(programs, paths)
    if colours is None:
        return None
    refined = _refine(colours, programs, paths)
    return None if refined is None else RankColours(layout, paths, programs, refined)


def _start(programs: PackedPrograms, paths: Sequence[Path]) -> list[int] | None:
    """Return colours by a rank's own rounds, and its messages' positions in its peers' programs."""
    own: dict[Hashable, int] = {}
    places: dict[Hashable, int] = {}
    colours = []
    for rank, path in enumerate(paths):
        shape = own.setdefault(programs.shape(rank), len(own))
        seen: dict[int, tuple[int, int, int, int]] = {}
        marks: list[Any] = [shape, len(path)]
        for index, code in enumerate(programs.codes_of(rank)):
            if code not in seen:
                peer, sends = code >> 1, code & 1
                if peer < 0:
                    return None  # in the network, messages of many ranks are combined
                try:
                    there = programs.place(peer, 2 * rank + (not sends))
                except (ValueError, LookupError):
                    return None
                seen[code] = index, there, sends, divergence_depth(path, paths[peer])
            marks.append(seen[code])
        colours.append(places.setdefault(tuple(marks), len(places)))
    return colours


def _refine(colours: list[int], programs: PackedPrograms, paths: Sequence[Path]
            ) -> list[int] | None:
    """Split colours until all ranks of one have peers of the same colours."""
    peers = [array("l", [code >> 1 for code in programs.codes_of(rank)])
             for rank in range(len(paths))]
    inside: dict[Path, list[int]] = {}
    for rank, path in enumerate(paths):
        for depth in range(1, len(path)):
            inside.setdefault(path[:depth], []).append(rank)
    members: dict[int, list[int]] = {}
    for rank, c in enumerate(colours):
        members.setdefault(c, []).append(rank)
    of = colours.__getitem__
    around: dict[Path, tuple[int, ...]] = {}
    count, limit = len(members), PART * len(colours)
    dirty = set(range(len(colours)))
    groups: set[Path] = set(inside)

    def colours_seen(rank: int) -> tuple:
        path = paths[rank]
        return (*[around[path[:depth]] for depth in range(1, len(path))], *map(of, peers[rank]))

    while dirty:
        if count > limit:
            return None
        for path in groups:
            around[path] = tuple(sorted(map(of, inside[path])))
        touched: dict[int, list[int]] = {}
        for rank in dirty:
            touched.setdefault(of(rank), []).append(rank)
        moved: list[tuple[list[int], int]] = []
        for c, ranks in touched.items():
            parts: dict[tuple, list[int]] = {}
            for rank in ranks:
                parts.setdefault(colours_seen(rank), []).append(rank)
            # Ranks with unchanged surroundings are all equal: one of them is enough.
            untouched = len(members[c]) - len(ranks)
            stays = None
            if untouched:
                stays = colours_seen(next(rank for rank in members[c] if rank not in dirty))
                parts.setdefault(stays, [])
            else:
                stays = max(parts, key=lambda key: len(parts[key]))
            del parts[stays]
            for part in parts.values():
                moved.append((part, count))
                count += 1
            if parts:
                gone = {rank for part in parts.values() for rank in part}
                members[c] = [rank for rank in members[c] if rank not in gone]
        dirty, groups = set(), set()
        for part, c in moved:
            members[c] = part
            for rank in part:
                colours[rank] = c
        for part, _ in moved:
            for rank in part:
                dirty.update(peers[rank])
                for depth in range(1, len(paths[rank])):
                    groups.add(paths[rank][:depth])
        for path in groups:
            dirty.update(inside[path])
    return colours
