"""Ways: how the data of device arrays gets from rank to rank, and why not otherwise.

Every rank tells what it found out about each way (:class:`Told`); from what all ranks told follows,
on each of them alike, which way serves a pair of ranks, and what keeps the others from it
(:func:`between`). A new way is a line of :data:`WAYS`, and what a rank finds out about it is an
entry of ``Told.found``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from hpccoll.units import count_text, ranks_text


class Answer(NamedTuple):
    """What a rank found out about a way.

    Attributes:
        can: whether it can take that way.
        why: the evidence, or what is missing, in words.
    """

    can: bool
    why: str


class Told(NamedTuple):
    """What a rank tells the others.

    Attributes:
        host: the smallest rank that shares memory with it.
        device: address of the first device that it sees, whichever it uses; empty where it sees
            none.
        found: name of a way -> what it found out about it.
    """

    host: int
    device: str
    found: Mapping[str, Answer]


class DeviceWay(NamedTuple):
    """A way for the data of device arrays.

    Attributes:
        name: what it is called in output, and in ``Told.found``.
        what: what moves the data.
        obstacle: what keeps two ranks from it that could each take it; empty if nothing does. Which
            nodes they are on does not matter, only whether it is the same one.
    """

    name: str
    what: str
    obstacle: Callable[[Told, Told], str] = lambda one, other: ""


def _elsewhere(one: Told, other: Told) -> str:
    return "" if one.host == other.host else "the ranks do not share a node"


NCCL = DeviceWay("nccl", "NCCL")
IPC = DeviceWay("ipc", "reads of the peer's device memory, with CUDA IPC", _elsewhere)
AWARE = DeviceWay("mpi", "the MPI library, on device memory")
STAGED = DeviceWay("staged", "the MPI library and shared memory, on copies in pinned host memory")
#: Best first: the first that serves a pair is its way.
WAYS = NCCL, IPC, AWARE, STAGED


def between(one: Told, other: Told) -> dict[str, Answer]:
    """Name of each way, best first, -> whether it serves a pair of ranks, and why or why not.

    >>> found = {"mpi": Answer(False, "not CUDA-aware"), "staged": Answer(True, "always")}
    >>> told = Told(0, "0000:01:00.0", found)
    >>> {name: can for name, (can, _) in between(told, told).items()}
    {'nccl': False, 'ipc': False, 'mpi': False, 'staged': True}
    """
    served = {}
    for way in WAYS:
        # The same whichever rank comes first: a reason against it, if there is one.
        found = min(told.found.get(way.name, Answer(False, "not tested"))
                    for told in (one, other))
        obstacle = way.obstacle(one, other) if found.can else ""
        served[way.name] = Answer(False, obstacle) if obstacle else found
    return served


def way_of(one: Told, other: Told) -> str:
    """The name of the way that serves a pair of ranks; empty where none does."""
    return next((name for name, found in between(one, other).items() if found.can), "")


class Share(NamedTuple):
    """Pairs of ranks for which a way has one answer.

    Attributes:
        way: its name.
        can, why: the answer.
        pairs: how many pairs, and the lowest of them.
    """

    way: str
    can: bool
    why: str
    pairs: int
    first: tuple[int, int]


def shares(told: Sequence[Told]) -> list[Share]:
    """The answers of each way, for all pairs of ranks, those of most pairs first.

    Ranks that found out the same have the same answers, as far as they are as near to each other;
    so one pair of each kind is asked, and the others are counted.
    """
    kinds: dict[tuple[tuple[str, Answer], ...], list[int]] = {}
    for rank, one in enumerate(told):
        kinds.setdefault(tuple(sorted(one.found.items())), []).append(rank)
    groups = list(kinds.values())
    counted: dict[tuple[str, bool, str], tuple[int, tuple[int, int]]] = {}
    for index, mine in enumerate(groups):
        for theirs in groups[index:]:
            for pairs, first in _by_nearness(told, mine, theirs):
                for name, (can, why) in between(told[first[0]], told[first[1]]).items():
                    before, lowest = counted.get((name, can, why), (0, first))
                    counted[name, can, why] = before + pairs, min(lowest, first)
    order = [way.name for way in WAYS]
    return sorted((Share(*key, *value) for key, value in counted.items()),
                  key=lambda share: (order.index(share.way), -share.pairs, share.first))


def _by_nearness(told: Sequence[Told], mine: Sequence[int], theirs: Sequence[int]
                 ) -> Iterator[tuple[int, tuple[int, int]]]:
    """How many pairs of two groups, or of one, share a node, and how many do not; one of each."""
    near: defaultdict[int, list[int]] = defaultdict(list)
    for rank in theirs:
        near[told[rank].host].append(rank)
    once = mine is theirs
    pairs, first = 0, (0, 0)
    for rank in mine:
        for other in near.get(told[rank].host, ()):
            if rank != other and not (once and other < rank):
                first = first if pairs else (min(rank, other), max(rank, other))
                pairs += 1
    if pairs:
        yield pairs, first
    everybody = len(mine) * (len(mine) - 1) // 2 if once else len(mine) * len(theirs)
    apart = everybody - pairs
    if apart:
        yield apart, next((min(one, other), max(one, other))
                          for one, rest in ((mine[0], theirs), (theirs[0], mine))
                          for other in rest if told[other].host != told[one].host)


def describe_ways(told: Sequence[Told]) -> list[str]:
    """What to show: of each way, for how many pairs it is there, and why, or why not."""
    if len(told) == 1:
        return [f"{way.name:6} {_answer(told[0].found[way.name])}" for way in WAYS]
    everybody = len(told) * (len(told) - 1) // 2
    return [f"{share.way:6} {_answer(Answer(share.can, share.why))}"
            + (f" ({count_text(share.pairs, 'pair')} of ranks, {ranks_text(share.first)} for one)"
               if share.pairs < everybody else "")
            for share in shares(told)]


def _answer(found: Answer) -> str:
    return f"{'yes' if found.can else 'no'}: {found.why}"
