"""What the network does with messages of several ranks: copies of one, and reduction on the way.

The peer of a step is a rank, or an :class:`InNetwork`: the ranks whose messages the network takes,
and those to which it gives the result. Its n-th operation takes the n-th message of each source,
reduces them if they are several, and gives the result to the n-th receive of each sink. Nothing is
buffered: it may wait until all ends are posted. But who has the result knows only that the sources
have given, not that the other sinks are there. So one noun says all of

    multicast                       one source, several sinks
    in-network reduction            several sources, one sink
    in-network allreduce            several sources, several sinks

The network combines in an order of its own, so operators must commute; what it gives to all sinks
of one operation has the same bits. Few transports can do it: :data:`ABILITIES`.

Such operations are those of InfiniBand switches (Graham et al., "Scalable Hierarchical Aggregation
Protocol (SHArP)", COMHPC 2016) and of NVSwitches (Klenk et al., "An In-Network Architecture for
Accelerating Shared-Memory Multiprocessor Collectives", ISCA 2020).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain
from operator import index
from typing import Any, NamedTuple, TypeAlias

#: What a network can do: give copies of a message to several ranks, and reduce messages of several.
MULTICAST, REDUCTION = ABILITIES = "multicast", "in-network reduction"
#: Ranks, as runs of neighbours from left to right.
Runs: TypeAlias = tuple[range, ...]


class InNetwork(NamedTuple):
    """Ranks whose messages the network takes, and ranks to which it gives the result.

    Made by :func:`in_network` and :func:`multicast`; equal ones are one operation after the other.
    """

    sources: Runs
    sinks: Runs

    @property
    def senders(self) -> Iterator[int]:
        """The sources, in order."""
        return chain.from_iterable(self.sources)

    @property
    def receivers(self) -> Iterator[int]:
        """The sinks, in order."""
        return chain.from_iterable(self.sinks)

    @property
    def ends(self) -> int:
        """Messages of an operation, sent and received."""
        return sum(map(len, (*self.sources, *self.sinks)))

    @property
    def reduces(self) -> bool:
        """Whether there is more than one source."""
        return sum(map(len, self.sources)) > 1

    @property
    def needs(self) -> tuple[str, ...]:
        """Which of the :data:`ABILITIES` it takes."""
        copies = sum(map(len, self.sinks)) > 1 or not self.reduces
        return (MULTICAST,) * copies + (REDUCTION,) * self.reduces

    def has(self, rank: int, sends: bool) -> bool:
        """Whether a rank is a source (``sends``), or a sink."""
        return any(rank in run for run in (self.sources if sends else self.sinks))

    def others(self, rank: int) -> list[int]:
        """All its ranks but one."""
        return sorted({*self.senders, *self.receivers} - {rank})

    @property
    def backwards(self) -> InNetwork:
        """Sources for sinks: of a multicast, the reduction."""
        return InNetwork(self.sinks, self.sources)

    def __str__(self) -> str:
        sources, sinks = (",".join(
            str(run.start) if len(run) == 1 else f"{run.start}-{run.stop - 1}" for run in runs)
            for runs in self)
        return f"[{sources} > {sinks}]"


#: What a message goes to or comes from.
Peer: TypeAlias = int | InNetwork


def in_network(sources: Iterable[int], sinks: Iterable[int]) -> InNetwork:
    """Name an operation of the network by its ranks, in any order.

    >>> print(in_network(range(4), [0]), in_network([2], [3, 0, 1]))
    [0-3 > 0] [2 > 0-1,3]
    """
    return InNetwork(_runs(sources), _runs(sinks))


@lru_cache(1024)
def multicast(root: int, ranks: range) -> InNetwork:
    """One message of a rank for all others of a range; costs the same for any number of them."""
    if ranks.step != 1:
        return in_network([root], (rank for rank in ranks if rank != root))
    return InNetwork((range(root, root + 1),), tuple(run for run in (
        range(ranks.start, min(root, ranks.stop)), range(max(root + 1, ranks.start), ranks.stop))
        if run))


def played(peer: Peer, ranks: Sequence[int]) -> Peer:
    """The same peer in terms of the ranks that play those of a sub-program."""
    if isinstance(peer, InNetwork):
        return in_network(map(ranks.__getitem__, peer.senders),
                          map(ranks.__getitem__, peer.receivers))
    return ranks[peer]


def fault_of(peer: Any, rank: int, sends: bool, size: int) -> str:
    """What is wrong with an operation as the peer of a rank's step; empty if nothing is."""
    for runs in peer:
        stop = -1
        for run in runs if isinstance(runs, tuple) and runs else (None,):
            if not isinstance(run, range) or run.step != 1 or not stop < run.start < run.stop:
                return f"{tuple.__repr__(peer)} has no ranks: create it with in_network(...)"
            stop = run.stop
        if stop > size:
            return f"{peer} has ranks outside of 0..{size - 1}"
    if not peer.has(rank, sends):
        return f"{peer} does not have this rank among its {'sources' if sends else 'sinks'}"
    if peer.ends == 2 and peer.sources == peer.sinks:
        return f"{peer} has no other rank"
    return ""


def _runs(ranks: Iterable[int]) -> Runs:
    if isinstance(ranks, range) and ranks.step == 1:
        return (ranks,) if ranks else ()
    ordered = sorted(set(map(index, ranks)))
    starts = [at for at, rank in enumerate(ordered) if not at or ordered[at - 1] != rank - 1]
    return tuple(range(ordered[start], ordered[stop - 1] + 1)
                 for start, stop in zip(starts, [*starts[1:], len(ordered)]))
