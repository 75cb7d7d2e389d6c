"""Wrappers that record native and interpreted calls in this rank's log."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic_ns
from typing import Any, NoReturn

from hpccoll.runtime.events.call_log import (
    ALARM,
    END,
    HASH,
    INSIDE,
    NUMBER,
    SOME_TIME,
    START,
    Log,
    place_of,
)
from hpccoll.runtime.execution.built import BUILT

if BUILT:
    from hpccoll.runtime.execution import _executor


def log_calls(method: Callable[..., Any], log: Log, call_hash: int,
              raise_failure: Callable[[], NoReturn],
              failed: Callable[[BaseException], bool],
              check: Callable[..., None] | None = None) -> Callable[..., Any]:
    """Return a wrapper of a native method that logs its calls while they run.

    Args:
        method: the native method.
        log: the log of this rank.
        call_hash: call hash of its calls; 0 if they may differ between ranks.
        raise_failure: raises an error after the failure of another rank.
        failed: raises a more specific error, or returns True if nothing was sent.
        check: called behind a call, with its arguments, if the log says so; only machine code does.
    """
    if BUILT:
        return _executor.Noted(method, log.address, log.address + 8 * ALARM, call_hash,
                               raise_failure, failed, check)
    words = log.words

    def call(*args: Any, **options: Any) -> Any:
        number = words[NUMBER] + 1
        place = place_of(number)
        words[place + HASH], words[place + START] = call_hash, monotonic_ns()
        words[place + END], words[INSIDE], words[NUMBER] = 0, number, number
        try:
            alarm = words[ALARM]
            if alarm and number >= alarm - 1:
                raise_failure()
            result = method(*args, **options)
            words[place + END] = monotonic_ns()
            return result
        except BaseException as error:
            if failed(error):
                words[NUMBER] = number - 1
            raise
        finally:
            words[INSIDE] = 0
    return call


def begins(log: Log, call_hash: int, on_alarm: Callable[[bool], None], asks: bool) -> Callable[[],
                                                                                               None]:
    """Return a callback that records the start of an interpreted call.

    Args:
        log: the log of this rank.
        call_hash: call hash of the call.
        on_alarm: raises an error after the failure of another rank; called when one is possible.
        asks: call it every time, because the log has no alarm.
    """
    if BUILT and not asks:
        return _executor.opening(log.address, call_hash, on_alarm, log)
    words = log.words

    def note() -> None:
        number = words[NUMBER] + 1
        place = place_of(number)
        words[place + HASH], words[place + START] = call_hash, monotonic_ns()
        words[place + END], words[NUMBER] = 0, number
        if asks or words[ALARM]:
            on_alarm(True)
    return note


def ends(log: Log) -> Callable[[], None]:
    """Return a callback that records the end of this rank's last call."""
    if BUILT:
        return _executor.closing(log.address, log)
    words = log.words

    def note() -> None:
        words[place_of(words[NUMBER]) + END] = SOME_TIME
    return note
