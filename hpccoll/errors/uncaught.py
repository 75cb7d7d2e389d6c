"""Uncaught errors without frames of hpccoll, and warnings at the line of the program.

The message of an error says what is wrong and where: frames inside hpccoll and errors that it was
made of would hide it. An ``except`` clause gets the complete traceback.
"""

from __future__ import annotations

import os
import sys
import traceback
from contextlib import suppress
from types import TracebackType
from typing import Any

from hpccoll.errors import HpccollError

#: Folder of hpccoll.
PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def stack_level() -> int:
    """Return the ``stacklevel`` of a warning of the caller that points at the program's line."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(PACKAGE):
        frame, level = frame.f_back, level + 1
    return level


def show(previous: Any, kind: type[BaseException], error: BaseException,
         trace: TracebackType | None) -> None:
    """Show an uncaught error as an ``excepthook``.

    Args:
        previous: the hook that shows it; Python's is replaced by one write, because other ranks
            write at the same time.
    """
    if isinstance(error, HpccollError):
        _end_in_program(trace)
        error.with_traceback(trace)
        if not _is_of_program(error.__cause__ or error.__context__):
            error.__cause__, error.__suppress_context__ = None, True
        if previous is sys.__excepthook__ and sys.stderr is not None:
            with suppress(OSError, ValueError):
                sys.stderr.write("".join(traceback.format_exception(error)))
                sys.stderr.flush()
            return
    previous(kind, error, trace)


def _end_in_program(trace: TracebackType | None) -> None:
    """Cut a traceback behind its last frame that is not hpccoll's."""
    last = None
    while trace is not None:
        if not trace.tb_frame.f_code.co_filename.startswith(PACKAGE):
            last = trace
        trace = trace.tb_next
    if last is not None:
        last.tb_next = None


def _is_of_program(error: BaseException | None) -> bool:
    """Return True for an error that the program's own code raised, such as a user's builder."""
    trace = error.__traceback__ if error is not None else None
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    path = trace.tb_frame.f_code.co_filename if trace is not None else ""
    return (os.path.exists(path) and not path.startswith(PACKAGE)
            and "site-packages" not in path and "dist-packages" not in path)
