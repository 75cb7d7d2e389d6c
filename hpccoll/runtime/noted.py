"""Calls of the MPI library's that are noted in this rank's log: begin and end, in nanoseconds."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic_ns
from typing import Any, NoReturn

from hpccoll.runtime.compiled import BUILT
from hpccoll.runtime.log import ALARM, ENDS, INSIDE, LAST, NUMBER, STAMPS, STARTS, Log

if BUILT:
    from hpccoll.runtime import _tape


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
