"""Extents: element ranges of buffers, and the parts of a lowered program.

The types of lowering - :class:`Extent`, :class:`Message`, :class:`Local`, :class:`Phase`,
:class:`LoweredProgram`, :class:`Segment`, :class:`SlotLayout` - and pure functions on extents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

from hpccoll.ir.collectives import IN, OUT, TMP
from hpccoll.ir.in_network import Peer

Part = TypeVar("Part", bound="Joinable")


class Extent(NamedTuple):
    """``count`` elements from ``offset`` of one buffer."""

    buffer: str
    offset: int
    count: int  # type: ignore[assignment]  # MPI's word; tuple.count is not used

    @property
    def empty(self) -> bool:
        """Return True if it has no element."""
        return not self.count

    def join(self, other: Extent) -> Extent | None:
        """Return both as one, if the other starts at the end of this one."""
        if self.buffer != other.buffer or self.offset + self.count != other.offset:
            return None
        return Extent(self.buffer, self.offset, self.count + other.count)

    def __str__(self) -> str:
        return f"{self.buffer}<{self.offset}+{self.count}>"


class Message(NamedTuple):
    """A contiguous message to (``SEND``) or from (``RECV``) a peer."""

    kind: str
    peer: Peer
    extent: Extent

    def __str__(self) -> str:
        return f"{self.kind} {self.peer} {self.extent}"


class Local(NamedTuple):
    """``into = left`` (a copy), or ``into = left op right``; all three of equal count."""

    into: Extent
    left: Extent
    right: Extent | None = None

    @property
    def operands(self) -> tuple[Extent, ...]:
        """Return the extents that it reads, from left to right."""
        return (self.left, self.right) if self.right else (self.left,)

    @property
    def empty(self) -> bool:
        """Return True if it has no element."""
        return self.into.empty

    def join(self, other: Local) -> Local | None:
        """Return both as one, if the other one continues this one in all operands."""
        into, left = self.into.join(other.into), self.left.join(other.left)
        if into is None or left is None:
            return None
        if self.right is None or other.right is None:
            return Local(into, left) if self.right is other.right else None
        right = self.right.join(other.right)
        return Local(into, left, right) if right else None

    def __str__(self) -> str:
        return f"{self.into} <- {self.left}" + (f" op {self.right}" if self.right else "")


class Phase(NamedTuple):
    """One round: local work, then all messages concurrently, then local work."""

    before: tuple[Local, ...]
    messages: tuple[Message, ...]
    after: tuple[Local, ...]


class LoweredProgram(NamedTuple):
    """One rank's phases, and the elements of scratch they need.

    Scratch from ``landing`` on is landing space for received and packed messages: its contents
    are used in the same phase only. ``single_block`` has the numbers of the phases whose
    steps reduce one block each: there the local steps are the same for every layout of the blocks.
    ``rounds`` has the number of the program's round that each phase was made of, and ``waits``, for
    programs with lanes, the phases that each waits for (:func:`hpccoll.ir.order.waits`). Phases
    that may run concurrently have separate landing space.
    """

    phases: tuple[Phase, ...]
    scratch: int
    landing: int
    single_block: frozenset[int] = frozenset()
    rounds: tuple[int, ...] = ()
    waits: tuple[tuple[int, ...], ...] = ()

    def round_of(self, phase: int) -> int:
        """Return the number of the program's round that a phase was made of."""
        return self.rounds[phase] if phase < len(self.rounds) else phase


class Segment(NamedTuple):
    """One segment of a plan: a lowered program, and the shifts of ``in`` and ``out``."""

    program: LoweredProgram
    shift: int


class SlotLayout(NamedTuple):
    """Extents of the slots of ``in`` and ``out``, and sizes of scratch blocks.

    ``places[buffer][slot]`` is the slot's extent; with ``MPI.IN_PLACE`` the places of one
    buffer name extents of the other, so that aliasing is visible to lowering and proof.
    """

    places: Mapping[str, Sequence[Extent]]
    scratch: Callable[[int], int]


def pack_extents(buffer: str, counts: Sequence[int], displs: Sequence[int] | None = None,
                 base: int = 0) -> list[Extent]:
    """Place slots of the given counts one after the other, or at the given displacements."""
    if displs is not None:
        return [Extent(buffer, base + d, c) for d, c in zip(displs, counts)]
    places, offset = [], base
    for count in counts:
        places.append(Extent(buffer, offset, count))
        offset += count
    return places


def alias(kind: str, places: dict[str, list[Extent]], rank: int, root: int) -> None:
    """Make the places of ``in`` and ``out`` share memory as for ``MPI.IN_PLACE``."""
    if kind == "same" and OUT in places and IN in places:
        places[IN] = places[OUT]
    elif kind == "own" and OUT in places:
        places[IN] = [places[OUT][rank]]
    elif kind == "front":
        places[IN] = [Extent(OUT, e.offset, e.count) for e in places[IN]]
    elif kind == "root" and rank == root:
        places[OUT] = [places[IN][root]]


class Joinable(Protocol):
    """Something that may continue another of its kind."""

    @property
    def empty(self) -> bool: ...

    def join(self: Part, other: Part) -> Part | None: ...


def merge_parts(parts: Iterable[Part]) -> list[Part]:
    """Merge each part with those that continue it; drop empty ones."""
    merged: list[Part] = []
    for part in parts:
        if part.empty:
            continue
        whole = merged[-1].join(part) if merged else None
        if whole is None:
            merged.append(part)
        else:
            merged[-1] = whole
    return merged


def slices(pack: Extent, extents: Sequence[Extent]) -> list[Extent]:
    """Cut a contiguous extent into pieces of the given extents' counts."""
    return pack_extents(pack.buffer, [e.count for e in extents], base=pack.offset)


def clip(extent: Extent, start: int, length: int | None) -> Extent:
    """Return at most ``length`` elements of a block from ``start`` on; all if it is ``None``."""
    count = max(extent.count - start, 0)
    return Extent(extent.buffer, extent.offset + start,
                  count if length is None else min(count, length))


def shift_scratch(extent: Extent, shift: int) -> Extent:
    """Return the extent in the memory of another segment: scratch is the segment's own."""
    if not shift or extent.buffer == TMP:
        return extent
    return Extent(extent.buffer, extent.offset + shift, extent.count)


def overlap(one: Extent, other: Extent) -> bool:
    """Return True if two extents share an element."""
    return (one.buffer == other.buffer and one.offset < other.offset + other.count
            and other.offset < one.offset + one.count)


def is_within(inner: Extent, outer: Extent) -> bool:
    """Return True if an extent is inside another one."""
    return (inner.buffer == outer.buffer and outer.offset <= inner.offset
            and inner.offset + inner.count <= outer.offset + outer.count)
