"""Messages of long and failed waits.

Errors, reports and the watchdog's texts have one form (:func:`format_wait`): the missing ranks and
the reason, a line per rank, and the remedy.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from copy import copy
from typing import NamedTuple

#: Ranks, or faults of one rank, that a message lists.
MOST_NAMED = 8


def rank_list(ranks: Sequence[int]) -> str:
    """Name ranks, eight at most.

    >>> rank_list([3]), rank_list([0, 3]), rank_list(range(10)), rank_list([])
    ('rank 3', 'ranks 0, 3', 'ranks 0, 1, 2, 3, 4, 5, 6, 7 and 2 more', 'no rank')
    """
    if not ranks:
        return "no rank"
    more = f" and {len(ranks) - MOST_NAMED} more" * (len(ranks) > MOST_NAMED)
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks[:MOST_NAMED]))}{more}"


class RankStates(NamedTuple):
    """Status of the ranks of a communicator, as known to one of them.

    Attributes:
        missing: the missing ranks and the reason, such as ``"rank 1 is stopped"``.
        lines: one line per rank, in ascending order.
        stopped: the ranks that a signal has stopped.
    """

    missing: str
    lines: tuple[str, ...] = ()
    stopped: tuple[int, ...] = ()


def format_wait(states: RankStates, problem: str, remedy: str = "") -> str:
    """Format a long or failed wait: missing ranks, a line per rank, remedy.

    >>> states = RankStates("rank 1 is stopped", ("rank 0 waits for rank 1",))
    >>> print(format_wait(states, "bcast timed out on rank 0", "send it SIGCONT"))
    hpccoll: rank 1 is stopped: bcast timed out on rank 0
      rank 0 waits for rank 1
      send it SIGCONT
    """
    lines = (*states.lines, *filter(None, [remedy]))
    return "\n  ".join((f"hpccoll: {states.missing}: {problem}", *lines))


def summary(error: BaseException) -> str:
    """Return the type of an error and the first line of its message.

    >>> summary(TimeoutError("hpccoll: rank 1 is stopped: bcast timed out\\n  rank 0 waits"))
    'TimeoutError: rank 1 is stopped: bcast timed out'
    """
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0].removeprefix('hpccoll: ')}"


def raisable(error: BaseException) -> BaseException:
    """Return a copy of a stored error to raise, with the traceback of the first place.

    Each raise of one object adds frames to its traceback, which keep their arrays alive.
    """
    try:
        again = copy(error)
    except Exception:  # its class takes other arguments
        return error.with_traceback(None)
    again.__cause__ = error.__cause__
    return again.with_traceback(error.__traceback__)


def report_text(error: BaseException) -> str:
    """Format an error as a report; includes its type unless the message starts with a rank."""
    text = str(error)
    return text if text.startswith("hpccoll: ") else f"hpccoll: {type(error).__name__}: {text}"


def print_report(text: str) -> None:
    """Print a report to standard error in one write, because other ranks print concurrently.

    Without standard error, or if its reader is gone, the report is lost, and the wait goes on.
    """
    if sys.stderr is not None:
        with suppress(OSError, ValueError):
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()


class Reports:
    """Reports of one long wait.

    The wait ends if a signal has stopped a rank and the rank is still stopped at the next report.
    A rank in a debugger has no time limit.

    Args:
        interval: seconds between two reports.
    """

    def __init__(self, interval: float):
        self.interval = self.due = interval
        self.count, self.stopped = 0, frozenset[int]()

    def add(self, elapsed: float, states: RankStates, wait: str) -> bool:
        """Print a report, the first with a line per rank; return False if a rank stays stopped."""
        before, self.stopped = self.stopped, frozenset(states.stopped)
        if before & self.stopped:
            return False
        self.due, self.count = elapsed + self.interval, self.count + 1
        print_report(format_wait(states if self.count == 1 else RankStates(states.missing),
                                 f"{wait} has waited {elapsed:.0f} s"))
        return True
