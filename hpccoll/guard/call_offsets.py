"""Ranks that have made one call more, or one fewer, than the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hpccoll.errors.waits import rank_list
from hpccoll.runtime.events.call_log import LogRecord

#: Numbers of calls as words.
WORDS = {1: "one call", 2: "two calls", 3: "three calls"}


def count_calls(number: int) -> str:
    """Return a number of calls as text.

    >>> count_calls(1), count_calls(12)
    ('one call', '12 calls')
    """
    return WORDS.get(number, f"{number} calls")


def describe_offset(records: Mapping[int, LogRecord], odd: Sequence[int]) -> str:
    """Return whether the ranks in the minority seem to have left out or repeated a call, or ''.

    If one side repeats the call before, and the other side goes on, then a loop has one turn more
    on one side.
    """
    calls = {rank: record.call_hashes for rank, record in records.items()}
    mine = next((calls[rank] for rank in odd if rank in calls), {})
    theirs = next((found for rank, found in sorted(calls.items()) if rank not in odd), {})
    number = min((each for each in mine.keys() & theirs.keys() if mine[each] != theirs[each]),
                 default=0)
    before = {found.get(number - 1, 0) for found in (mine, theirs)}
    if not odd or len(before) > 1 or not before.isdisjoint({0}):
        return ""
    if mine[number] in before:
        return (f"{rank_list(odd)} may be {count_calls(1)} ahead: call {number} repeats call "
                f"{number - 1} there")
    if theirs[number] in before:
        return (f"{rank_list(odd)} may be {count_calls(1)} behind: the other ranks repeat call "
                f"{number - 1}")
    return ""
