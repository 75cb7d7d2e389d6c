"""In-network operations: copies of a message to several ranks, and reductions of several.

The peer of a step is a rank, or an :class:`InNetwork`: the source ranks of an operation, and the
sink ranks of its result. Its n-th operation takes the n-th message of each source, reduces them if
there are several, and delivers the result to the n-th receive of each sink. Messages are not
buffered: the operation may wait until all ends are posted. A rank with the result knows that all
sources have sent, but not that the other sinks have received. One type describes all of

    multicast                       one source, several sinks
    in-network reduction            several sources, one sink
    in-network allreduce            several sources, several sinks

The network combines in an unspecified order, so operators must commute; all sinks of one operation
get the same bits. Few transports support it: :data:`ABILITIES`.

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

#: Abilities of a network: copy a message to several ranks, and reduce messages of several.
MULTICAST, REDUCTION = ABILITIES = "multicast", "in-network reduction"
#: Ranks, as ascending runs of consecutive numbers.
Runs: TypeAlias = tuple[range, ...]


class InNetwork(NamedTuple):
    """Source ranks of a network operation, and the sink ranks of its result.

    Made by :func:`in_network` and :func:`multicast`; equal ones are consecutive operations.
    """

    sources: Runs
    sinks: Runs

    @property
    def senders(self) -> Iterator[int]:
        """Yield the sources, in order."""
        return chain.from_iterable(self.sources)

    @property
    def receivers(self) -> Iterator[int]:
        """Yield the sinks, in order."""
        return chain.from_iterable(self.sinks)

    @property
    def ends(self) -> int:
        """Return the number of messages of an operation, sent and received."""
        return sum(map(len, (*self.sources, *self.sinks)))

    @property
    def reduces(self) -> bool:
        """Return True if there is more than one source."""
        return sum(map(len, self.sources)) > 1

    @property
    def needs(self) -> tuple[str, ...]:
        """Return the required :data:`ABILITIES`."""
        copies = sum(map(len, self.sinks)) > 1 or not self.reduces
        return (MULTICAST,) * copies + (REDUCTION,) * self.reduces

    def has(self, rank: int, sends: bool) -> bool:
        """Return True if a rank is a source (with ``sends``), or a sink."""
        return any(rank in run for run in (self.sources if sends else self.sinks))

    def others(self, rank: int) -> list[int]:
        return sorted({*self.senders, *self.receivers} - {rank})

    @property
    def backwards(self) -> InNetwork:
        """Exchange sources and sinks: a multicast becomes a reduction."""
        return InNetwork(self.sinks, self.sources)

    def __str__(self) -> str:
        sources, sinks = (",".join(
            str(run.start) if len(run) == 1 else f"{run.start}-{run.stop - 1}" for run in runs)
            for runs in self)
        return f"[{sources} > {sinks}]"


#: Destination or source of a message.
Peer: TypeAlias = int | InNetwork


def in_network(sources: Iterable[int], sinks: Iterable[int]) -> InNetwork:
    """Return a network operation from its ranks, in any order.

    >>> print(in_network(range(4), [0]), in_network([2], [3, 0, 1]))
    [0-3 > 0] [2 > 0-1,3]
    """
    return InNetwork(_runs(sources), _runs(sinks))


@lru_cache(1024)
def multicast(root: int, ranks: range) -> InNetwork:
    """Return a multicast of a rank to all others of a range; costs the same for any range."""
    if ranks.step != 1:
        return in_network([root], (rank for rank in ranks if rank != root))
    return InNetwork((range(root, root + 1),), tuple(run for run in (
        range(ranks.start, min(root, ranks.stop)), range(max(root + 1, ranks.start), ranks.stop))
        if run))


def playing_ranks(peer: Peer, ranks: Sequence[int]) -> Peer:
    """Map a peer to the ranks that play those of a sub-program."""
    if isinstance(peer, InNetwork):
        return in_network(map(ranks.__getitem__, peer.senders),
                          map(ranks.__getitem__, peer.receivers))
    return ranks[peer]


def fault_of(peer: Any, rank: int, sends: bool, size: int) -> str:
    """Return the error of an operation as the peer of a rank's step; empty if it is valid."""
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
