"""Does what a rank writes end on a terminal? Launchers stand between.

MPICH's launcher gives its ranks pipes and Open MPI's a pseudo-terminal, whatever their own
output is, so the question goes up to the launcher that the user started.
"""

from __future__ import annotations

import os
import re

LAUNCHERS = ("mpiexec", "mpirun", "hydra_pmi_proxy", "prterun", "prted", "orterun", "orted")


def on_terminal(descriptor: int) -> bool:
    """Tell whether standard output (1) or standard error (2) ends on a terminal."""
    answer, pid = os.isatty(descriptor), os.getppid()
    while pid > 1 and (found := _process(pid)) and found[0].split(".")[0] in LAUNCHERS:
        try:
            target = os.readlink(f"/proc/{pid}/fd/{descriptor}")
        except OSError:
            return False
        answer, pid = target.startswith(("/dev/pts/", "/dev/tty")), found[1]
    return answer


def _process(pid: int) -> tuple[str, int] | None:
    """Name and parent of a process; ``None`` where that cannot be told."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            match = re.match(r"\d+ \((.*)\) \S (\d+)", file.read())
    except OSError:
        return None
    return (match[1], int(match[2])) if match else None
