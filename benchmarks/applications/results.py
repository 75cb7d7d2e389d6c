"""What a rank of a program reports: passes and numbers, as a file that the driver reads.

Programs import it; it needs the standard library only, and starts no MPI.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

#: The folder of the files; set by the driver.
FOLDER = "APPLICATIONS_RESULTS"
RANKS = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK")


def rank() -> int:
    """Return the rank of this process, from its launcher's variables."""
    return next((int(os.environ[name]) for name in RANKS if name in os.environ), 0)


class Found(NamedTuple):
    """What the ranks of a job reported.

    Attributes:
        passes: name of a test -> True if it passed on every rank.
        numbers: results of the program, in a fixed order.
        times: seconds by name, of the rank that measured them.
    """

    passes: dict[str, bool]
    numbers: list[float]
    times: dict[str, float]


def report(passes: Mapping[str, bool] | None = None, numbers: Sequence[float] | None = None,
           times: Mapping[str, float] | None = None) -> None:
    """Write what this rank found; see :class:`Found`."""
    folder = os.environ.get(FOLDER)
    if folder:
        text = json.dumps({"passes": {name: bool(each) for name, each in (passes or {}).items()},
                           "numbers": [float(number) for number in numbers or ()],
                           "times": dict(times or {})})
        Path(folder, f"rank-{rank()}.json").write_text(text, encoding="utf-8")


def read(folder: Path) -> Found:
    """Return what all ranks reported."""
    all_ranks = Found({}, [], {})
    for path in sorted(folder.glob("rank-*.json")):
        found = json.loads(path.read_text(encoding="utf-8"))
        for name, passed in found["passes"].items():
            all_ranks.passes[name] = all_ranks.passes.get(name, True) and passed
        all_ranks.numbers.extend(found["numbers"])
        all_ranks.times.update(found.get("times", {}))
    return all_ranks
