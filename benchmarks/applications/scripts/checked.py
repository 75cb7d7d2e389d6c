"""Run a script that checks its own answer, and report that it ended well.

    python -m mpi4py checked.py SCRIPT
"""

from __future__ import annotations

import runpy
import sys


def main(path: str) -> None:
    """Run a script as ``__main__``; a wrong answer leaves by SystemExit."""
    from applications.results import report

    sys.argv = [path]
    runpy.run_path(path, run_name="__main__")
    report({"the answer": True})


if __name__ == "__main__":
    main(sys.argv[1])
