"""Folding: ranks that do the same in the same surroundings are timed once.

A rank's path through a regular layout is a number with one digit a level. A *symmetry* changes
some digits of all ranks at once: it adds a constant to them, round the level ("+"), or takes the
exclusive or with one ("^", levels of a power of two). It maps groups to groups, so the machine
looks the same afterwards. If it also maps the program of every rank to that of its image, then
ranks that differ only in those digits do the same at the same time, and one of each class is
enough: rings and circulant algorithms are symmetric under "+", recursive doubling and halving
under "^", compositions over levels under a choice for each.

Whether a symmetry holds is looked at, not declared: the programs of other ranks are compared
with those of their representatives, message by message. Where all programs together are short,
all ranks are; otherwise a sample, with the ranks at the corners of every level in it. The engine
then insists that every message of the folded schedule meets its counterpart of the same size.

Messages of a round to different ranks may stand in any order, unless posting them takes the
processor time: else all of them are posted at once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from functools import cached_property
from itertools import product
from math import inf
from random import Random
from time import perf_counter
from typing import NamedTuple

from hpccoll.ir.cost.network import NetworkPaths, Resource
from hpccoll.ir.cost.workload import Round, Workload
from hpccoll.ir.in_network import InNetwork, Peer
from hpccoll.simulator.colouring import MANY, Colouring, colour
from hpccoll.simulator.effort import ESTIMATE, LOOKED, PROGRAMS, Told, effort, silent
from hpccoll.simulator.effort import check as effort_check
from hpccoll.simulator.packed import PackedPrograms, pack
from hpccoll.units import time_text

#: Programs are compared for all ranks up to so many messages and blocks, beyond for a sample: a
#: small one where all of the larger one's steps would name more spans of memory than this.
ALL, SAMPLE, FEW, LONG = 200_000, 24, 8, 2_000_000
#: Programs that are made where they are long, about: to compare them, and to time those of the
#: classes; and how many times as long all takes as to make them.
USUAL, WIRED = 20, 1.25
#: Seconds of comparing from which on it is reported.
WORTH = 1.0
#: Messages of programs kept for comparison with another symmetry.
KEPT = 1_000_000

Path = tuple


class Symmetry(NamedTuple):
    """What may be done to the digits of a rank: "+", "^", or "=" for nothing, level by level."""

    radices: tuple[int, ...]
    modes: tuple[str, ...]

    @property
    def order(self) -> int:
        """Ranks in a class."""
        return self.fixing(())

    def fixing(self, path: Sequence[int]) -> int:
        """Number of symmetries that leave a group, given by its path, where it is."""
        number = 1
        for radix, mode in list(zip(self.radices, self.modes))[len(path):]:
            number *= radix if mode != "=" else 1
        return number

    def classed(self, path: Path) -> Path:
        """The path of the representative of a rank or group."""
        return tuple(digit if mode == "=" else 0 for digit, mode in zip(path, self.modes))

    def moved(self, path: Path, by: Path) -> Path:
        """The image of a rank, if the image of the representative is the rank ``by``."""
        return tuple((digit + d) % radix if mode == "+" else digit ^ d if mode == "^" else digit
                     for digit, d, radix, mode in zip(path, by, self.radices, self.modes))

    def apart(self, path: Path, other: Path) -> Path:
        """What takes one rank's digits to another's; the same for all images of the pair."""
        return tuple((b - a) % radix if mode == "+" else a ^ b if mode == "^" else 0
                     for a, b, radix, mode in zip(path, other, self.radices, self.modes))

    def images(self, rank: int) -> int:
        """Ranks in the class of a rank."""
        return self.order

    def link(self, sends: bool, rank: int, peer: int) -> Hashable:
        """What messages between two ranks have in common with those of their images alone."""
        sender, receiver = map(self.path, (rank, peer) if sends else (peer, rank))
        return self.classed(sender), self.classed(receiver), self.apart(sender, receiver)

    def sharing(self, resource: Resource, sender: Path, receiver: Path) -> int:
        """How many images of a message go over one resource that is no port."""
        return self.fixing(resource.path)

    def copies(self, resource: Resource) -> int:
        """How many resources a representative's stands for."""
        return self.order // self.fixing(resource.path)

    def representatives(self) -> Iterator[int]:
        """The rank with zeros in all digits that change, for every class."""
        free = [range(radix) if mode == "=" else (0,)
                for radix, mode in zip(self.radices, self.modes)]
        for path in product(*free):
            yield self.rank(path)

    def rank(self, path: Path) -> int:
        """The rank at a path."""
        number = 0
        for digit, radix in zip(path, self.radices):
            number = number * radix + digit
        return number

    def path(self, rank: int) -> Path:
        """The path of a rank."""
        digits = []
        for radix in reversed(self.radices):
            rank, digit = divmod(rank, radix)
            digits.append(digit)
        return tuple(reversed(digits))

    def __str__(self) -> str:
        return "x".join(f"{radix}{'' if mode == '=' else mode}"
                        for radix, mode in zip(self.radices, self.modes))


class Folding(NamedTuple):
    """What is alike.

    Attributes:
        symmetry: a symmetry, or colours; ``None`` where every rank stands alone.
        checked: on how many ranks the symmetry was checked.
        programs: those that were made for that.
        packed: those of all ranks, where they had to be made.
    """

    symmetry: Symmetry | Colouring | None
    checked: int = 0
    programs: ComparedPrograms | None = None
    packed: PackedPrograms | None = None

    def describe(self, size: int) -> str:
        """One line for people."""
        if self.symmetry is None:
            return f"{size:,} ranks, each timed on its own"
        if isinstance(self.symmetry, Colouring):
            return self.symmetry.describe(size)
        how = "all ranks" if self.checked >= size else f"{self.checked} ranks"
        classes = size // self.symmetry.order
        return (f"{size:,} ranks in {classes:,} class{'es' * (classes != 1)} "
                f"(symmetry {self.symmetry}, checked on {how})")


def find_symmetry(work: Workload, layout: NetworkPaths, told: Told = silent,
                  in_order: bool = True) -> Folding:
    """Find the symmetry with the fewest classes; without one, ranks of one colour where they are
    many, and else every rank stands alone.

    Args:
        in_order: the order of messages to different ranks in a round counts.

    Raises:
        ArgumentError: every rank would stand alone, and they are too many.
    """
    radices = layout.radices()
    if layout.size == 1:
        return Folding(None)
    programs = ComparedPrograms(work, told)
    if radices is not None:
        for symmetry in sorted(symmetries(radices), key=lambda s: -s.order):
            checked = check(symmetry, programs, layout, in_order)
            if checked:
                classes = layout.size // symmetry.order
                if classes > 2 * LOOKED:  # an estimate would take longer than the programs
                    expected = effort(work, classes)
                    told(ESTIMATE, expected.seconds, str(expected))
                return Folding(symmetry, checked, programs)
    if layout.size < MANY:
        return Folding(None)
    announce(work, layout, told)
    packed = pack(work, range(layout.size), progress=lambda part: told(PROGRAMS, part, ""))
    return Folding(colour(packed, layout), packed=packed)


def unfolded(work: Workload, layout: NetworkPaths, told: Told = silent, settled: bool = True,
             repeat: int = 1) -> Folding:
    """Let every rank stand alone; ``settled`` and ``repeat`` are those of the effort.

    Raises:
        ArgumentError: they are too many.
    """
    if layout.size >= MANY or not settled or repeat > 1:
        announce(work, layout, told, settled, repeat)
    return Folding(None)


def announce(work: Workload, layout: NetworkPaths, told: Told, settled: bool = True,
             repeat: int = 1) -> None:
    """Say what the programs of all ranks will take.

    Raises:
        ArgumentError: they are too many.
    """
    expected = effort(work, layout.size, settled, repeat)
    effort_check(expected, work.schedule.title)
    told(ESTIMATE, expected.seconds, str(expected))


def symmetries(radices: tuple[int, ...]) -> Iterator[Symmetry]:
    """List every symmetry of a layout that changes some digit."""
    choices = [("=",) if radix == 1 else ("+", "^", "=") if radix > 2 and not radix & (radix - 1)
               else ("+", "=") for radix in radices]
    for modes in product(*choices):
        if set(modes) != {"="}:
            yield Symmetry(radices, modes)


def check(symmetry: Symmetry, programs: ComparedPrograms, layout: NetworkPaths,
          in_order: bool = True) -> int:
    """Compare programs; return on how many ranks the symmetry holds, 0 if it fails on one."""
    size = layout.size
    # A program of few messages may still take a look at every block to make.
    if (programs.messages(0) + programs.work.nblocks) * size <= ALL:
        ranks: Sequence[int] = range(size)
    else:
        ranks = sample(symmetry, programs, layout)
    for rank in ranks:
        path = layout.path(rank)
        first = symmetry.rank(symmetry.classed(path))
        if rank != first and not _alike(symmetry, programs, layout, first, rank, in_order):
            return 0
    return len(ranks)


def sample(symmetry: Symmetry, programs: ComparedPrograms, layout: NetworkPaths) -> list[int]:
    """Choose ranks to compare: ends and middles of all levels, and some more."""
    most = (SAMPLE if programs.messages(0) * SAMPLE <= ALL and programs.spans * SAMPLE <= LONG
            else FEW)
    free = [sorted({0, 1, radix // 2, radix - 1} & set(range(radix)))
            for radix in symmetry.radices]
    # The ranks after and before the first come first: most symmetries that fail do so there.
    corners = [symmetry.rank(path) for path in product(*free)]
    draw = Random(layout.size)
    chosen = [1, layout.size - 1, layout.size // 2, programs.work.schedule.root]
    chosen += draw.sample(corners, min(most // 2, len(corners)))
    chosen += [draw.randrange(layout.size) for _ in range(most)]
    return list(dict.fromkeys(chosen))[:max(most, 4)]


class ComparedPrograms:
    """Programs by rank; the latest ones are kept.

    The shorter of the second and the third one shows how long all that are compared take, which is
    reported then: the first fills caches, and one alone may contain a pause.
    """

    def __init__(self, work: Workload, told: Told = silent):
        self.work, self.told = work, told
        self.made, self.seconds, self.shortest = 0, 0.0, inf
        self.kept: OrderedDict[int, list[list[Round]]] = OrderedDict()
        self.held = 0

    def of(self, rank: int) -> list[list[Round]]:
        """The rounds of every kind of segment."""
        if rank not in self.kept:
            start = perf_counter()
            self.kept[rank] = [self.work.rounds(rank, s) for s in self.work.kinds]
            self.held += self.messages(rank)
            self.made += 1
            if self.made > 1:
                self.shortest = min(self.shortest, perf_counter() - start)
            if self.made == 3:
                self.seconds = self.shortest * USUAL * WIRED
                if self.seconds > WORTH:
                    self.told(ESTIMATE, self.seconds, f"comparing the programs of about {USUAL} "
                                                      "ranks takes about "
                                                      f"{time_text(self.seconds, 2)}")
            if self.seconds > WORTH:
                self.told(PROGRAMS, min(self.made / USUAL, 0.99), "")
            while self.held > KEPT and len(self.kept) > 2:
                oldest = next(iter(self.kept))
                self.held -= self.messages(oldest)
                del self.kept[oldest]
        self.kept.move_to_end(rank)
        return self.kept[rank]

    @cached_property
    def spans(self) -> int:
        """Spans of memory that the steps of the first rank name, which take time to make."""
        return sum(len(step.spans) + len(step.source)
                   for steps in self.work.schedule.program(0).rounds for step in steps)

    def messages(self, rank: int) -> int:
        """Messages of a rank."""
        return sum(len(r.messages) for rounds in self.of(rank) for r in rounds)


def _alike(symmetry: Symmetry, programs: ComparedPrograms, layout: NetworkPaths, first: int,
           rank: int, in_order: bool) -> bool:
    """Tell whether the symmetry that takes one rank to the other takes its program along."""
    by = layout.path(rank)
    images: dict[Peer, int] = {}
    for ours, theirs in zip(programs.of(first), programs.of(rank)):
        if len(ours) != len(theirs):
            return False
        for mine, other in zip(ours, theirs):
            if mine[1:] != other[1:] or len(mine.messages) != len(other.messages):
                return False
            moved = []
            for sends, peer, nbytes in mine.messages:
                if isinstance(peer, InNetwork):
                    return False  # its ranks are of several classes
                if peer not in images:
                    images[peer] = symmetry.rank(symmetry.moved(layout.path(peer), by))
                moved.append((sends, images[peer], nbytes))
            held = [tuple(message) for message in other.messages]
            if moved != held and (in_order or _sorted(moved) != _sorted(held)):
                return False
    return True


def _sorted(messages: list[tuple]) -> list[tuple]:
    """By peer; those of one peer stay in their order."""
    return sorted(messages, key=lambda message: (message[0], message[1]))
