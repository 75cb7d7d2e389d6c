"""When a job measures candidates while it runs.

The rules of :mod:`hpccoll.tune.rules` were measured in some places: two ranks on a node, and up to
:data:`~hpccoll.tune.rules.MOST_MEASURED` that share its cores. In other places, the MPI library
runs the calls that neither a rule nor a table covers. There, all ranks measure a few candidates for
a call, after the call whose number is the next check: a number that all ranks have in common. Rank
0 decides whether the job has run long enough, so that measurements take at most :data:`SHARE` of
its time. The times hold for sizes between two powers of two. Rank 0 adds them to the table, for the
next job.

Measured times decide about calls whose results they cannot change. Sums of floats stay with the
rules, so that their last bits do not depend on a clock. ``HPCCOLL_TUNING=online`` measures all
calls, each kind at its first call, and uses neither table nor rules for them.
"""

from __future__ import annotations

from time import perf_counter

from hpccoll.calls.facts import CallFacts

#: Part of a job's time for measurements, and the seconds of one.
SHARE, SECONDS = 0.02, 0.25
#: Number of the first call that may be followed by a measurement, and the largest distance between
#: two: a prime, so that no pattern of calls avoids it.
FIRST, DISTANCE = 64, 4099
#: Maximum candidates in addition to native, and maximum bytes of a measured call.
MOST, LARGEST = 3, 64 << 20
#: Seconds per rank for communicators and schedules; calls in a measurement, however short its time;
#: and bytes per second of one that is slow.
PREPARATION, CALLS, SLOW = 1e-3, 40, 1e9


def next_check(number: int) -> int:
    """Return the number of the next call that may be followed by a measurement.

    >>> next_check(0), next_check(64), next_check(1_000_000)
    (64, 97, 1004099)
    """
    return max(FIRST, number + min(number // 2 + 1, DISTANCE))


def size_class(nbytes: int) -> int:
    """Return the class of a size: one for each power of two; below 16 bytes there is one class.

    >>> size_class(0), size_class(15), size_class(16), size_class(31), size_class(1 << 20)
    (4, 4, 5, 5, 21)
    """
    return max(nbytes, 8).bit_length()


def may_be_measured(facts: CallFacts, sums: bool) -> bool:
    """Return True if times may decide about a call; ``sums``: also if its result is rounded."""
    return (facts.nbytes is not None and facts.nbytes <= LARGEST and facts.uniform
            and (sums or facts.exact))


class Allowance:
    """Time that the measurements of one communicator may take; on rank 0."""

    def __init__(self) -> None:
        self.start, self.spent = perf_counter(), 0.0

    def permits(self, nbytes: int, size: int) -> bool:
        """Return True if the time so far permits to measure calls of some size."""
        seconds = SECONDS + size * (PREPARATION + CALLS * nbytes / SLOW)
        return self.spent + seconds <= SHARE * (perf_counter() - self.start)
