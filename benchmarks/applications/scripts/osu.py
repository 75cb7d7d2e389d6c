"""Run mpi4py's demos after the OSU benchmarks in each rank, and report their times by size.

    python -m mpi4py osu.py FOLDER COLLECTIVE...

``FOLDER`` is ``demo`` of mpi4py's source release.
"""

from __future__ import annotations

import io
import runpy
import sys
from contextlib import redirect_stdout
from pathlib import Path


def times_of(output: str) -> dict[int, float]:
    """Return bytes -> seconds of the lines of a demo's output."""
    rows = (line.split() for line in output.splitlines() if line and not line.startswith("#"))
    return {int(nbytes): float(microseconds) / 1e6 for nbytes, microseconds in rows}


def main(folder: str, names: list[str]) -> None:
    """Run the demos, and write the report of this rank; only rank 0 has times."""
    from applications.results import report

    times: dict[str, float] = {}
    for name in names:
        output = io.StringIO()
        with redirect_stdout(output):
            runpy.run_path(str(Path(folder, f"osu_{name}.py")), run_name="__main__")
        times |= {f"{name} {nbytes}": seconds
                  for nbytes, seconds in times_of(output.getvalue()).items() if nbytes}
    report({name: True for name in names}, times=times)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
