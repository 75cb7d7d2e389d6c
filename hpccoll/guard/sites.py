"""Where in the program a call was made: looked for only when one has failed."""

from __future__ import annotations

import os
import sys
from types import FrameType

#: Where hpccoll's own files are.
_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def call_site() -> str:
    """File and line of the innermost frame that is not hpccoll's; empty in a thread of ours."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not os.path.abspath(file).startswith(_OURS):
            return "" if file.endswith("threading.py") else f"{file}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
