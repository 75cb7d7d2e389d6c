"""The terminal, if what a rank writes ends on one: colours and a progress bar.

Launchers stand between. MPICH's gives its ranks pipes and Open MPI's a pseudo-terminal,
whatever their own output is, so this looks up to the launcher that the user started.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from time import monotonic

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from hpccoll.explain.columns import NARROWEST, WIDTH

LAUNCHERS = ("mpiexec", "mpirun", "hydra_pmi_proxy", "prterun", "prted", "orterun", "orted")
#: How the names of terminals begin.
TERMINALS = ("/dev/pts/", "/dev/tty")
#: Seconds between two looks of the progress bar.
REFRESH = 0.2


def line_console() -> Console:
    """The console for the output of one process: as wide as its terminal, or as ``COLUMNS`` says.

    What is read from a file, or by another program, gets lines of the usual width.
    """
    return Console(file=sys.stdout, highlight=False, width=columns())


def columns(descriptor: int = 1) -> int:
    """Characters of a line of standard output (1) or standard error (2)."""
    if os.environ.get("COLUMNS", "").isdecimal():
        return max(int(os.environ["COLUMNS"]), NARROWEST)
    for path in terminals(descriptor):
        try:
            with open(path, "rb", buffering=0) as terminal:
                return max(os.get_terminal_size(terminal.fileno()).columns or WIDTH, NARROWEST)
        except OSError:
            continue
    return WIDTH


def screen(table: bool) -> tuple[Console, Progress]:
    """The console for the output, and a progress bar that shows on terminals only.

    Where output and errors share a terminal they share the console too, so that the bar gives
    way to the lines of the ``table``; lines of other forms know no console, and get no bar.
    """
    output, errors = on_terminal(1), on_terminal(2)
    forced = output or os.environ.get("FORCE_COLOR", "") != ""
    console = Console(file=sys.stdout, force_terminal=forced, highlight=False, width=columns())
    beside = console if output else Console(stderr=True, force_terminal=errors)
    # Refreshed between repetitions, never by a thread, which would disturb the measurement.
    bar = Progress(TextColumn("measuring"), BarColumn(), TaskProgressColumn(),
                   TimeElapsedColumn(), TextColumn("{task.description}"), console=beside,
                   transient=True, auto_refresh=False, redirect_stdout=False,
                   redirect_stderr=False, disable=not errors or output and not table)
    return console, bar


def progress_callback(bar: Progress) -> Callable[[str, float], None]:
    """A function that shows on a bar what is measured and which part of everything is done."""
    task, last = bar.add_task("", total=1.0), 0.0

    def show(name: str, part: float) -> None:
        nonlocal last
        if not bar.disable and monotonic() - last > REFRESH:
            last = monotonic()
            bar.update(task, completed=part, description=name)
            bar.refresh()

    return show


def on_terminal(descriptor: int) -> bool:
    """Return True if standard output (1) or standard error (2) ends on a terminal."""
    answer, pid = os.isatty(descriptor), os.getppid()
    while pid > 1 and (process := _process(pid)) and process[0].split(".")[0] in LAUNCHERS:
        try:
            target = os.readlink(f"/proc/{pid}/fd/{descriptor}")
        except OSError:
            return False
        answer, pid = target.startswith(TERMINALS), process[1]
    return answer


def terminals(descriptor: int) -> list[str]:
    """Return terminals that a descriptor may end on, the launcher's first.

    Ranks of Open MPI have their own, without a size.
    """
    found, pid = [f"/proc/self/fd/{descriptor}"] if os.isatty(descriptor) else [], os.getppid()
    while pid > 1 and (process := _process(pid)) and process[0].split(".")[0] in LAUNCHERS:
        try:
            target = os.readlink(f"/proc/{pid}/fd/{descriptor}")
        except OSError:
            break
        found[:0] = [target] if target.startswith(TERMINALS) else []
        pid = process[1]
    return found


def _process(pid: int) -> tuple[str, int] | None:
    """Return name and parent of a process; ``None`` if unknown."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            match = re.match(r"\d+ \((.*)\) \S (\d+)", file.read())
    except OSError:
        return None
    return (match[1], int(match[2])) if match else None
