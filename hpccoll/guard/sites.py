"""Where in the program a call was made: looked for only when one has failed, or somebody asks."""

from __future__ import annotations

import os
import sys
import sysconfig
import threading
from types import FrameType

#: Where hpccoll's own files are.
_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
#: Where Python's library and installed packages are.
_LIBRARIES = tuple(sysconfig.get_paths()[name] + os.sep
                   for name in ("stdlib", "platstdlib", "purelib", "platlib"))


def call_site(thread: int = 0) -> str:
    """File and line of the innermost frame that is not hpccoll's; empty in a thread of ours.

    Args:
        thread: whose call, by its identifier; 0 for the caller's.
    """
    return _site(sys._current_frames().get(thread) if thread else sys._getframe(1))


def main_site() -> str:
    """Where the main thread is in the program, not in a library's; asked by another thread."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    return _site(frame, _LIBRARIES) or _site(frame)


def _site(frame: FrameType | None, libraries: tuple[str, ...] = ()) -> str:
    while frame is not None:
        file = frame.f_code.co_filename
        if not (os.path.abspath(file).startswith((_OURS, *libraries)) or file[:1] == "<"
                or file == threading.__file__):
            return f"{file}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
