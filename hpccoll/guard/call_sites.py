"""Call sites: file and line of a call, computed only on a failure or a status request."""

from __future__ import annotations

import os
import sys
import threading
from functools import cache
from types import FrameType

#: Folder of the package.
_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def call_site(thread: int = 0) -> str:
    """Return file and line of the innermost frame outside hpccoll; empty if there is none.

    Args:
        thread: identifier of the thread; 0 for the calling one.
    """
    return _site(sys._current_frames().get(thread) if thread else sys._getframe(1))


def main_site() -> str:
    """Return file and line of the main thread, in the program rather than in a library."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    return _site(frame, _libraries()) or _site(frame)


@cache
def _libraries() -> tuple[str, ...]:
    """Return the folders of Python's library and of installed packages."""
    import sysconfig
    return tuple(sysconfig.get_paths()[name] + os.sep
                 for name in ("stdlib", "platstdlib", "purelib", "platlib"))


def _site(frame: FrameType | None, libraries: tuple[str, ...] = ()) -> str:
    while frame is not None:
        file = frame.f_code.co_filename
        if not (os.path.abspath(file).startswith((_OURS, *libraries)) or file[:1] == "<"
                or file == threading.__file__):
            return f"{file}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
