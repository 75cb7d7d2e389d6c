"""Processor time of a process that makes no collective call, with and without hpccoll.

Each process is a job of its own with one rank, so it waits for no other rank.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from statistics import median
from typing import NamedTuple

#: Processes of each kind, in turns; the first of each is not counted.
STARTS = 6
#: Program of a process: what hpccoll itself imports as well.
PROGRAM = "import numpy\nfrom mpi4py import MPI\n"
#: Prefixes of variables by which launchers make a process a rank of their job.
OF_A_RANK = ("HYDI", "MPI_LOCAL", "OMPI_", "PALS_", "PMI", "PRTE_", "SLURM_")
#: Settings of Open MPI that a job of one rank needs as well.
KEPT = ("OMPI_ALLOW", "OMPI_MCA_", "PRTE_MCA_")


class Start(NamedTuple):
    """Processor seconds of a process from its start to its end.

    Attributes:
        seconds, plain_seconds: with ``hpccoll run``, and without; medians.
    """

    seconds: float
    plain_seconds: float


def measure_start(starts: int = STARTS) -> Start:
    """Measure processes of both kinds in turns, on this rank."""
    environment = {name: value for name, value in os.environ.items()
                   if not name.startswith(OF_A_RANK) or name.startswith(KEPT)}
    found: dict[bool, list[float]] = {False: [], True: []}
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "program.py")
        program.write_text(PROGRAM, encoding="utf-8")
        for number in range(starts):
            for ours in (False, True) if number % 2 else (True, False):
                words = ["-m", "hpccoll", "run"] if ours else []
                before = getrusage(RUSAGE_CHILDREN)
                subprocess.run([sys.executable, *words, str(program)], env=environment,
                               stdin=subprocess.DEVNULL, check=True)
                after = getrusage(RUSAGE_CHILDREN)
                found[ours].append(after.ru_utime + after.ru_stime - before.ru_utime
                                   - before.ru_stime)
    return Start(median(found[True][1:]), median(found[False][1:]))
