"""Calls that are noted in this rank's log: those of the MPI library's, and the interpreter's."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic_ns
from typing import Any, NoReturn

from hpccoll.runtime.events.log import (
    ALARM,
    ENDS,
    INSIDE,
    LAST,
    NUMBER,
    SOME_TIME,
    STAMPS,
    STARTS,
    Log,
)
from hpccoll.runtime.execution.compiled import BUILT

if BUILT:
    from hpccoll.runtime.execution import _tape


def noted(method: Callable[..., Any], log: Log, stamp: int, refuse: Callable[[], NoReturn],
          failed: Callable[[BaseException], bool]) -> Callable[..., Any]:
    """A method of the MPI library, whose calls are noted in this rank's log while they run.

    Args:
        method: the native method.
        log: this rank's.
        stamp: of its calls; 0 where they are not all alike.
        refuse: raises an error, where another rank has given up.
        failed: raises a better error than one that is raised, or tells whether nothing was sent.
    """
    if BUILT:
        return _tape.Noted(method, log.address, log.address + 8 * ALARM, stamp, refuse, failed)
    words = log.words

    def call(*args: Any, **options: Any) -> Any:
        number = words[NUMBER] + 1
        place = number & LAST
        words[STAMPS + place], words[STARTS + place] = stamp, monotonic_ns()
        words[ENDS + place], words[INSIDE], words[NUMBER] = 0, number, number
        try:
            alarm = words[ALARM]
            if alarm and number >= alarm - 1:
                refuse()
            result = method(*args, **options)
            words[ENDS + place] = monotonic_ns()
            return result
        except BaseException as error:
            if failed(error):
                words[NUMBER] = number - 1
            raise
        finally:
            words[INSIDE] = 0
    return call


def begins(log: Log, stamp: int, heard: Callable[[bool], None], asks: bool) -> Callable[[], None]:
    """What notes, whenever it is called, that a call begins which the interpreter runs.

    Args:
        log: this rank's.
        stamp: of the call.
        heard: raises an error where another rank has given up; asked where that may be.
        asks: ask it every time, because the log does not say.
    """
    if BUILT and not asks:
        return _tape.opening(log.address, stamp, heard, log)
    words = log.words

    def note() -> None:
        number = words[NUMBER] + 1
        place = number & LAST
        words[STAMPS + place], words[STARTS + place] = stamp, monotonic_ns()
        words[ENDS + place], words[NUMBER] = 0, number
        if asks or words[ALARM]:
            heard(True)
    return note


def ends(log: Log) -> Callable[[], None]:
    """What notes, whenever it is called, that this rank's last call has ended."""
    if BUILT:
        return _tape.closing(log.address, log)
    words = log.words

    def note() -> None:
        words[ENDS + (words[NUMBER] & LAST)] = SOME_TIME
    return note
