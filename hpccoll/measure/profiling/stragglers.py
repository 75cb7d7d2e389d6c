"""Stragglers: the last ranks to enter calls, how often, how late, and the wait they cause."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy

from hpccoll.ir.methods import METHODS
from hpccoll.measure.profiling.merge import JoinedRecords
from hpccoll.units import count_text, time_text

#: Maximum number of reported communicators, those with the longest waits first.
MOST_TOLD = 3


class Straggler(NamedTuple):
    """Arrival statistics of a rank in the blocking calls of a communicator.

    Attributes:
        rank: of ``COMM_WORLD``.
        last: number of calls that this rank entered last.
        late: mean seconds after the first rank.
        latest: maximum seconds after the first rank.
        waits: seconds that others waited for this one as the last rank, summed over them.
        first: lowest rank of the communicator: parts of a split may share a name.
    """

    name: str
    rank: int
    calls: int
    last: int
    late: float
    latest: float
    waits: float
    first: int = 0

    def __str__(self) -> str:
        return (f"On {self.name}, rank {self.rank} was last in {self.last / self.calls:.0%} of "
                f"{count_text(self.calls, 'call')}, on average {time_text(self.late, 3)} after the "
                f"first rank, at most {time_text(self.latest, 3)}; others waited "
                f"{time_text(self.waits, 3)} for it in total.")


def stragglers(joined: JoinedRecords) -> list[Straggler]:
    """Return the statistics of all ranks with complete records, the longest waits first."""
    found = []
    for one in joined.matched:
        blocking = numpy.array([kind.title.removesuffix(" of objects") in METHODS
                                for kind in one.kinds], bool)[one.calls]
        starts, waits = one.starts[:, blocking], one.waits[:, blocking]
        if len(one.ranks) < 2 or not starts.size:
            continue
        last, late = starts.argmax(0), starts - starts.min(0)
        for row, rank in enumerate(one.ranks):
            found.append(Straggler(
                one.name, rank, starts.shape[1], int((last == row).sum()), float(late[row].mean()),
                float(late[row].max()), float(waits[:, last == row].sum()),
                min(one.ranks)))
    return sorted(found, key=lambda one: (-one.waits, one.name, one.rank))


def describe_stragglers(found: Sequence[Straggler]) -> list[str]:
    """Return sentences about the rank of each communicator that caused the longest wait."""
    worst: dict[tuple[str, int], Straggler] = {}
    for one in found:
        if one.waits > 0:
            worst.setdefault((one.name, one.first), one)
    return list(map(str, worst.values()))[:MOST_TOLD]
