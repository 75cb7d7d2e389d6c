"""The communicator of a thread, and those made from it."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy
from mpi4py import MPI

from hpccoll.calls.call import collective_of
from hpccoll.config import check_choice
from hpccoll.errors import CommunicatorError
from hpccoll.ir.topology import Topology
from hpccoll.runtime.planning.choice import Choice
from hpccoll.transport.loopback import Loopback
from support.threads.collectives import CountedEndpoint, Planning
from support.threads.messages import Mailbox, Messages
from support.threads.objects import ObjectCollectives
from support.threads.world import ThreadRank


class Circle:
    """What the ranks of one communicator share."""

    def __init__(self, key: Hashable, layout: Topology):
        self.key, self.layout = key, layout
        self.loopback = Loopback(layout.size)
        self.mail = [Mailbox() for _ in range(layout.size)]


class ThreadComm(ObjectCollectives, Messages):
    """A communicator whose ranks are threads, with the methods of ``hpccoll.Comm``."""

    def __init__(self, circle: Circle, here: ThreadRank, rank: int, determinism: str):
        self.circle, self.here, self.rank = circle, here, rank
        self.size, self.layout, self.mail = circle.layout.size, circle.layout, circle.mail
        self.determinism = determinism
        self.planning = Planning(self, CountedEndpoint(circle.loopback.endpoint(rank), here),
                                 circle.layout)
        self.name, self.freed = "", False
        self._preferences: dict[str, Choice] = {}
        self._calls = self._made = 0
        self._groups: dict[Hashable, int] = {}

    @property
    def sent_bytes(self) -> int:
        """Bytes that this rank has sent to others, in all its communicators."""
        return self.here.sent_bytes

    def Get_rank(self) -> int:
        """The number of this rank."""
        return self.rank

    def Get_size(self) -> int:
        """How many ranks there are."""
        return self.size

    def Get_name(self) -> str:
        """The name."""
        return self.name

    def Set_name(self, name: str) -> None:
        """Give it a name."""
        self.name = name

    def empty(self, shape: int | Sequence[int], dtype: Any = float, *, xp: Any = numpy) -> Any:
        """Make an array."""
        return xp.empty(shape, dtype)

    def zeros(self, shape: int | Sequence[int], dtype: Any = float, *, xp: Any = numpy) -> Any:
        """Make an array of zeros."""
        return xp.zeros(shape, dtype)

    @contextmanager
    def using(self, *, segment_bytes: int = 0, **algorithms: Any) -> Iterator[ThreadComm]:
        """Choose algorithms inside a ``with`` block, as ``hpccoll.Comm.using`` does."""
        before, preferences = self._preferences, dict(self._preferences)
        for method, choice in algorithms.items():
            name, params = choice if isinstance(choice, tuple) else (choice, {})
            collective = collective_of(method)
            if isinstance(name, str):
                check_choice(collective, name)
            preferences[method] = Choice(name, params, segment_bytes, "using")
        self._preferences = preferences
        try:
            yield self
        finally:
            self._preferences = before

    # -- communicators from this one ---------------------------------------------------------
    def Dup(self) -> ThreadComm:
        """Make another communicator of the same ranks."""
        return self._make(self._next(), range(self.size))

    def Split(self, color: int = 0, key: int = 0) -> Any:
        """Split into one communicator per color; null where it is ``MPI.UNDEFINED``."""
        number = self._next()
        wanted = sorted((key, rank) for rank, (one, key) in enumerate(self.allgather((color, key)))
                        if one == color)
        if color == MPI.UNDEFINED:
            return MPI.COMM_NULL
        return self._make((number, color), [rank for _, rank in wanted])

    def Split_type(self, split_type: int = MPI.COMM_TYPE_SHARED, key: int = 0,
                   info: Any = MPI.INFO_NULL) -> ThreadComm:
        """Split into the nodes of the layout; a flat layout is one node."""
        groups = self.layout.groups() if self.layout.depth > 1 else [range(self.size)]
        color = next(number for number, group in enumerate(groups) if self.rank in group)
        made: ThreadComm = self.Split(color, key)
        return made

    def Create_group(self, ranks: Sequence[int], tag: int = 0) -> ThreadComm:
        """Make a communicator of some ranks, listed instead of an ``MPI.Group``."""
        key = tag, *ranks
        self._groups[key] = self._groups.get(key, 0) + 1
        return self._make((key, self._groups[key]), ranks)

    def Free(self) -> None:
        """Free it: whatever is called next is an error."""
        self.check_alive()
        self.freed = True

    def check_alive(self) -> None:
        """Raise a ``CommunicatorError`` if the communicator was freed."""
        if self.freed:
            raise CommunicatorError("the communicator was freed")

    def _next(self) -> int:
        """The number of the communicator that all ranks make next."""
        self._made += 1
        return self._made

    def _make(self, key: Hashable, ranks: Sequence[int]) -> ThreadComm:
        circle = self.here.world.share(
            (self.circle.key, key), lambda: Circle((self.circle.key, key),
                                                   part(self.layout, ranks)))
        return ThreadComm(circle, self.here, list(ranks).index(self.rank), self.determinism)


def part(layout: Topology, ranks: Sequence[int]) -> Topology:
    """The layout of some ranks, numbered anew in the order in which they are listed.

    >>> str(part(Topology.parse("2x2"), [0, 1, 2])), str(part(Topology.parse("2x2"), [3, 2]))
    ('2,1', '2')
    """
    if layout.depth == 1:
        return Topology(len(ranks))
    groups = [[number for number, rank in enumerate(ranks) if rank in group]
              for group in layout.groups()]
    groups = [group for group in groups if group]
    if len(groups) == 1:
        return Topology(len(ranks))
    return Topology(tuple(map(len, groups)), tuple(number for group in groups for number in group))
