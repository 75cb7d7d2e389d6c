"""Folding: equivalent ranks are simulated once.

A rank's path through a regular layout is a number with one digit per level. A *symmetry* changes
some digits of all ranks at once: it adds a constant to them, modulo the level's size ("+"), or xors
them with one ("^", levels of a power of two). It maps groups to groups, so the machine
is unchanged. If it also maps the program of every rank to that of its image, then ranks that differ
only in those digits do the same at the same time, and one of each class is enough: rings and
circulant algorithms are symmetric under "+", recursive doubling and halving under "^", compositions
over levels under a choice for each.

Symmetries are verified, not declared: the programs of other ranks are compared with those of their
representatives, message by message. If all programs together are short, all ranks are compared;
otherwise a sample, which includes the ranks at the corners of every level. The event loop also
requires that every message of the folded schedule matches its counterpart of the same size.

Messages of a round to different ranks may have any order, unless posting takes processor time:
otherwise all of them are posted at the same time.
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
from hpccoll.simulator.effort import (
    ESTIMATE,
    LOOKED,
    PROGRAMS,
    ProgressCallback,
    effort,
    ignore_progress,
)
from hpccoll.simulator.effort import check as effort_check
from hpccoll.simulator.packed import PackedPrograms
from hpccoll.units import time_text

#: Maximum messages and blocks for a comparison of all ranks; larger programs are sampled, with a
#: small sample if all of the larger one's steps would name more memory spans than this.
ALL, SAMPLE, FEW, LONG = 200_000, 24, 8, 2_000_000
#: Approximate number of long programs that are made: for the comparison, and for the classes; and
#: the factor of the total time to the time of making them.
USUAL, WIRED = 20, 1.25
#: Number of ranks from which the effort of separate ones is estimated first.
MANY = 256
#: Minimum seconds of a comparison for progress reports.
WORTH = 1.0
#: Maximum messages of cached programs for the comparison with another symmetry.
KEPT = 1_000_000

Path = tuple


class Symmetry(NamedTuple):
    """Operations on the digits of a rank, level by level: "+", "^", or "=" for none."""

    radices: tuple[int, ...]
    modes: tuple[str, ...]

    @property
    def order(self) -> int:
        """Return the number of ranks in a class."""
        return self.fixing_count(())

    def fixing_count(self, path: Sequence[int]) -> int:
        """Return the number of symmetries that keep a group, given by its path."""
        number = 1
        for radix, mode in list(zip(self.radices, self.modes))[len(path):]:
            number *= radix if mode != "=" else 1
        return number

    def representative_path(self, path: Path) -> Path:
        """Return the path of the representative of a rank or group."""
        return tuple(digit if mode == "=" else 0 for digit, mode in zip(path, self.modes))

    def image_of(self, path: Path, by: Path) -> Path:
        """Return the image of a rank if the image of the representative is the rank ``by``."""
        return tuple((digit + d) % radix if mode == "+" else digit ^ d if mode == "^" else digit
                     for digit, d, radix, mode in zip(path, by, self.radices, self.modes))

    def digit_difference(self, path: Path, other: Path) -> Path:
        """Return the difference of two ranks' digits; the same for all images of the pair."""
        return tuple((b - a) % radix if mode == "+" else a ^ b if mode == "^" else 0
                     for a, b, radix, mode in zip(path, other, self.radices, self.modes))

    def images(self, rank: int) -> int:
        """Return the number of ranks in the class of a rank."""
        return self.order

    def link(self, sends: bool, rank: int, peer: int) -> Hashable:
        """Return a key that messages between two ranks share only with their images."""
        sender, receiver = map(self.path, (rank, peer) if sends else (peer, rank))
        return (self.representative_path(sender), self.representative_path(receiver),
                self.digit_difference(sender, receiver))

    def images_on(self, resource: Resource, sender: Path, receiver: Path) -> int:
        """Return the number of images of a message on one resource other than a port."""
        return self.fixing_count(resource.path)

    def copies(self, resource: Resource) -> int:
        """Return the number of resources that a representative's stands for."""
        return self.order // self.fixing_count(resource.path)

    def representatives(self) -> Iterator[int]:
        """Yield the rank with zeros in all digits that change, for every class."""
        free = [range(radix) if mode == "=" else (0,)
                for radix, mode in zip(self.radices, self.modes)]
        for path in product(*free):
            yield self.rank(path)

    def rank(self, path: Path) -> int:
        number = 0
        for digit, radix in zip(path, self.radices):
            number = number * radix + digit
        return number

    def path(self, rank: int) -> Path:
        digits = []
        for radix in reversed(self.radices):
            rank, digit = divmod(rank, radix)
            digits.append(digit)
        return tuple(reversed(digits))

    def __str__(self) -> str:
        return "x".join(f"{radix}{'' if mode == '=' else mode}"
                        for radix, mode in zip(self.radices, self.modes))


class Folding(NamedTuple):
    """Classes of equivalent ranks.

    Attributes:
        symmetry: ``None`` if every rank is simulated.
        checked: number of ranks on which the symmetry was checked.
        packed: programs of all ranks, if they were made.
    """

    symmetry: Symmetry | None
    checked: int = 0
    programs: ComparedPrograms | None = None
    packed: PackedPrograms | None = None

    def describe(self, size: int) -> str:
        """Return a one-line description."""
        if self.symmetry is None:
            return f"{size:,} ranks, each timed on its own"
        how = "all ranks" if self.checked >= size else f"{self.checked} ranks"
        classes = size // self.symmetry.order
        return (f"{size:,} ranks in {classes:,} class{'es' * (classes != 1)} "
                f"(symmetry {self.symmetry}, checked on {how})")


def find_symmetry(work: Workload, layout: NetworkPaths,
                  progress: ProgressCallback = ignore_progress,
                  in_order: bool = True) -> Folding:
    """Find the symmetry with the fewest classes; without one, every rank is simulated.

    Args:
        in_order: True if the order of messages to different ranks in a round matters.
    """
    radices = layout.radices()
    if layout.size == 1:
        return Folding(None)
    programs = ComparedPrograms(work, progress)
    if radices is not None:
        for symmetry in sorted(symmetries(radices), key=lambda s: -s.order):
            checked = check(symmetry, programs, layout, in_order)
            if checked:
                classes = layout.size // symmetry.order
                if classes > 2 * LOOKED:  # an estimate would take longer than the programs
                    expected = effort(work, classes)
                    progress(ESTIMATE, expected.seconds, str(expected))
                return Folding(symmetry, checked, programs)
    return simulate_all_ranks(work, layout, progress)


def simulate_all_ranks(work: Workload, layout: NetworkPaths,
                       progress: ProgressCallback = ignore_progress,
                       settled: bool = True,
                       repeat: int = 1) -> Folding:
    """Simulate every rank; ``settled`` and ``repeat`` are those of the effort."""
    if layout.size >= MANY or not settled or repeat > 1:
        announce(work, layout, progress, settled, repeat)
    return Folding(None)


def announce(work: Workload, layout: NetworkPaths, progress: ProgressCallback, settled: bool = True,
             repeat: int = 1) -> None:
    """Report the estimated effort of the programs of all ranks."""
    expected = effort(work, layout.size, settled, repeat)
    effort_check(expected, work.schedule.title)
    progress(ESTIMATE, expected.seconds, str(expected))


def symmetries(radices: tuple[int, ...]) -> Iterator[Symmetry]:
    """Yield every symmetry of a layout that changes some digit."""
    choices = [("=",) if radix == 1 else ("+", "^", "=") if radix > 2 and not radix & (radix - 1)
               else ("+", "=") for radix in radices]
    for modes in product(*choices):
        if set(modes) != {"="}:
            yield Symmetry(radices, modes)


def check(symmetry: Symmetry, programs: ComparedPrograms, layout: NetworkPaths,
          in_order: bool = True) -> int:
    """Compare programs; return the number of ranks on which the symmetry holds, 0 if it fails."""
    size = layout.size
    # A program of few messages may still need to visit every block.
    if (programs.messages(0) + programs.work.nblocks) * size <= ALL:
        ranks: Sequence[int] = range(size)
    else:
        ranks = sample(symmetry, programs, layout)
    for rank in ranks:
        path = layout.path(rank)
        first = symmetry.rank(symmetry.representative_path(path))
        if rank != first and not _maps_program(symmetry, programs, layout, first, rank, in_order):
            return 0
    return len(ranks)


def sample(symmetry: Symmetry, programs: ComparedPrograms, layout: NetworkPaths) -> list[int]:
    """Choose ranks to compare: ends and middles of all levels, and some more."""
    most = (SAMPLE if programs.messages(0) * SAMPLE <= ALL and programs.spans * SAMPLE <= LONG
            else FEW)
    free = [sorted({0, 1, radix // 2, radix - 1} & set(range(radix)))
            for radix in symmetry.radices]
    # The ranks after and before the first come first: most failures occur there.
    corners = [symmetry.rank(path) for path in product(*free)]
    draw = Random(layout.size)
    chosen = [1, layout.size - 1, layout.size // 2, programs.work.schedule.root]
    chosen += draw.sample(corners, min(most // 2, len(corners)))
    chosen += [draw.randrange(layout.size) for _ in range(most)]
    return list(dict.fromkeys(chosen))[:max(most, 4)]


class ComparedPrograms:
    """Programs by rank; the latest ones are cached.

    The shorter time of the second and the third one predicts the time of the comparison, which is
    reported then: the first fills caches, and a single one may contain a pause.
    """

    def __init__(self, work: Workload, progress: ProgressCallback = ignore_progress):
        self.work, self.progress = work, progress
        self.made, self.seconds, self.shortest = 0, 0.0, inf
        self.kept: OrderedDict[int, list[list[Round]]] = OrderedDict()
        self.held = 0

    def of(self, rank: int) -> list[list[Round]]:
        """Return the rounds of every kind of segment."""
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
                    self.progress(ESTIMATE, self.seconds,
                                  "checking that ranks behave alike: about "
                                  f"{time_text(self.seconds, 2)}")
            if self.seconds > WORTH:
                self.progress(PROGRAMS, min(self.made / USUAL, 0.99), "")
            while self.held > KEPT and len(self.kept) > 2:
                oldest = next(iter(self.kept))
                self.held -= self.messages(oldest)
                del self.kept[oldest]
        self.kept.move_to_end(rank)
        return self.kept[rank]

    @cached_property
    def spans(self) -> int:
        """Return the number of memory spans in the steps of the first rank, which cost time."""
        return sum(len(step.spans) + len(step.source)
                   for steps in self.work.schedule.program(0).rounds for step in steps)

    def messages(self, rank: int) -> int:
        return sum(len(r.messages) for rounds in self.of(rank) for r in rounds)


def _maps_program(symmetry: Symmetry, programs: ComparedPrograms, layout: NetworkPaths, first: int,
                  rank: int, in_order: bool) -> bool:
    """Return True if the symmetry that maps one rank to the other also maps its program."""
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
                    return False  # its ranks belong to several classes
                if peer not in images:
                    images[peer] = symmetry.rank(symmetry.image_of(layout.path(peer), by))
                moved.append((sends, images[peer], nbytes))
            held = [tuple(message) for message in other.messages]
            if moved != held and (in_order or _sort_messages(moved) != _sort_messages(held)):
                return False
    return True


def _sort_messages(messages: list[tuple]) -> list[tuple]:
    """Return messages sorted by peer; those of one peer keep their order."""
    return sorted(messages, key=lambda message: (message[0], message[1]))
