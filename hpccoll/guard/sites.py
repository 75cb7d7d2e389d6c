"""Where in the program a call was made: looked for only when one has failed."""

from __future__ import annotations

import os
import sys

import hpccoll

_OURS = os.path.dirname(hpccoll.__file__) + os.sep


def call_site() -> str:
    """File and line of the innermost frame that is not hpccoll's; empty in a thread of ours."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(_OURS):
            ours_only = file.endswith("threading.py")
            return "" if ours_only else f"{file}:{frame.f_lineno}"
        if frame.f_back is None:
            break
        frame = frame.f_back
    return ""
