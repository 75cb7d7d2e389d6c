"""Data paths of device arrays between ranks, and why others are unavailable.

Every rank reports its tests of each path (:class:`RankReport`). From all reports each rank derives
the same path of every pair of ranks, and the obstacles of the other paths (:func:`paths_between`).
A new path needs a line of :data:`WAYS` and an entry of ``RankReport.found``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from hpccoll.errors.agreement import ranks_by_value
from hpccoll.units import count_text, ranks_text


class Answer(NamedTuple):
    """Result of a rank's test of a path.

    Attributes:
        can: True if the rank can use the path.
        why: the evidence or the obstacle, as text.
    """

    can: bool
    why: str


class RankReport(NamedTuple):
    """Report of a rank to the others.

    Attributes:
        host: the smallest rank that shares memory with it.
        device: address of the first visible device; empty without devices.
        found: name of a path -> the result of its test.
    """

    host: int
    device: str
    found: Mapping[str, Answer]


class DeviceWay(NamedTuple):
    """Data path of device arrays.

    Attributes:
        name: its name in output and in ``RankReport.found``.
        what: the mechanism that moves the data.
        obstacle: returns why two ranks that support it cannot use it together; empty if they can.
            It depends on their nodes only by whether these are the same.
    """

    name: str
    what: str
    obstacle: Callable[[RankReport, RankReport], str] = lambda one, other: ""


def _elsewhere(one: RankReport, other: RankReport) -> str:
    return "" if one.host == other.host else "the ranks do not share a node"


NCCL = DeviceWay("nccl", "NCCL")
IPC = DeviceWay("ipc", "reads of the peer's device memory, with CUDA IPC", _elsewhere)
AWARE = DeviceWay("mpi", "the MPI library, on device memory")
STAGED = DeviceWay("staged", "the MPI library and shared memory, on copies in pinned host memory")
#: Best first: a pair uses the first path that both support.
WAYS = NCCL, IPC, AWARE, STAGED


def paths_between(one: RankReport, other: RankReport) -> dict[str, Answer]:
    """Return name of each path, best first, -> its availability for a pair of ranks, and why.

    >>> found = {"mpi": Answer(False, "not CUDA-aware"), "staged": Answer(True, "always")}
    >>> report = RankReport(0, "0000:01:00.0", found)
    >>> {name: can for name, (can, _) in paths_between(report, report).items()}
    {'nccl': False, 'ipc': False, 'mpi': False, 'staged': True}
    """
    served = {}
    for way in WAYS:
        # Symmetric in the two ranks: an obstacle, if there is one.
        found = min(report.found.get(way.name, Answer(False, "not tested"))
                    for report in (one, other))
        obstacle = way.obstacle(one, other) if found.can else ""
        served[way.name] = Answer(False, obstacle) if obstacle else found
    return served


def way_of(one: RankReport, other: RankReport) -> str:
    """Return the name of the path of a pair of ranks; empty without one."""
    return next((name for name, found in paths_between(one, other).items() if found.can), "")


class Share(NamedTuple):
    """Pairs of ranks with the same result for a path.

    Attributes:
        way: the name of the path.
        can, why: the result.
        pairs: the number of pairs, and the lowest of them.
    """

    way: str
    can: bool
    why: str
    pairs: int
    first: tuple[int, int]


def shares(reports: Sequence[RankReport]) -> list[Share]:
    """Return the results of each path for all pairs of ranks, most frequent first.

    Pairs with equal reports have equal results if both or neither are on one node. So one pair of
    each kind is evaluated, and the others are counted.
    """
    groups = list(ranks_by_value(tuple(sorted(one.found.items())) for one in reports).values())
    counted: dict[tuple[str, bool, str], tuple[int, tuple[int, int]]] = {}
    for index, mine in enumerate(groups):
        for theirs in groups[index:]:
            for pairs, first in _by_nearness(reports, mine, theirs):
                for name, (can, why) in paths_between(reports[first[0]], reports[first[1]]).items():
                    before, lowest = counted.get((name, can, why), (0, first))
                    counted[name, can, why] = before + pairs, min(lowest, first)
    order = [way.name for way in WAYS]
    return sorted((Share(*key, *value) for key, value in counted.items()),
                  key=lambda share: (order.index(share.way), -share.pairs, share.first))


def _by_nearness(reports: Sequence[RankReport], mine: Sequence[int], theirs: Sequence[int]
                 ) -> Iterator[tuple[int, tuple[int, int]]]:
    """Count the pairs of two groups, or of one, on the same and on different nodes.

    Returns also one pair of each kind.
    """
    near: defaultdict[int, list[int]] = defaultdict(list)
    for rank in theirs:
        near[reports[rank].host].append(rank)
    once = mine is theirs
    pairs, first = 0, (0, 0)
    for rank in mine:
        for other in near.get(reports[rank].host, ()):
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
                          for other in rest if reports[other].host != reports[one].host)


def describe_ways(reports: Sequence[RankReport]) -> list[str]:
    """Return lines with the number of pairs of each path, and the evidence or obstacle."""
    if len(reports) == 1:
        return [f"{way.name:6} {_answer(reports[0].found[way.name])}" for way in WAYS]
    everybody = len(reports) * (len(reports) - 1) // 2
    return [f"{share.way:6} {_answer(Answer(share.can, share.why))}"
            + (f" ({count_text(share.pairs, 'pair')} of ranks, {ranks_text(share.first)} for one)"
               if share.pairs < everybody else "")
            for share in shares(reports)]


def _answer(found: Answer) -> str:
    return f"{'yes' if found.can else 'no'}: {found.why}"
