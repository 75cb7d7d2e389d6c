"""Keeping times: what a job has measured joins a table to which other jobs add as well.

Adding is reading, changing and replacing the file. Of two jobs that did so at once, the one that
read first would take away what the other one wrote in between: an advisory lock on a file beside
the table, which is never removed, makes them take turns. Nothing depends on it but that: where
the file system knows no locks, or whoever has it does not go on, the table is written without.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep

from hpccoll.tune.table import (
    Candidate,
    Curves,
    Disagreement,
    Fingerprint,
    Table,
    disagreements,
    merged,
    read,
    write,
)

#: Seconds to wait for another job, which needs a few milliseconds, and between two looks.
PATIENCE, PAUSE = 5.0, 0.01


def before(path: str | os.PathLike[str]) -> Table:
    """The table that is there already; empty if none is.

    Raises:
        TuningError: it cannot be used.
    """
    return read(path) if os.path.lexists(path) else {}


def add(path: str | os.PathLike[str], machine: Fingerprint, curves: Curves,
        wrong: Collection[tuple[str, Candidate]] = (), replace: bool = False
        ) -> tuple[Curves, list[Disagreement]]:
    """Add curves of one machine to a table, or begin one.

    Args:
        path, machine, curves: the table, and what to add to it.
        wrong: collectives, and candidates whose results were wrong: their old times go.
        replace: old times of the same kinds of calls go.

    Returns:
        What the table has of these kinds of calls now, and old times that differ too much from the
        new ones, and so stay.

    Raises:
        TuningError: what is there cannot be used, or the table cannot be written.
    """
    with locked(path):
        old = before(path)
        if replace and machine in old:
            old = {**old, machine: {k: c for k, c in old[machine].items() if k not in curves}}
        new = merged(old, machine, curves, wrong)
        write(path, new)
    kept = [] if machine.probe else disagreements(old.get(machine, {}), curves)
    return ({kind: new[machine][kind] for kind in curves},
            [each for each in kept if (each.collective, each.candidate) not in wrong])


@contextmanager
def locked(path: str | os.PathLike[str]) -> Iterator[bool]:
    """Keep others that do so, too, away from a table; tell whether that was possible."""
    target = Path(os.path.realpath(path))
    descriptor = _opened(target.with_name(f".{target.name}.lock"))
    try:
        yield descriptor is not None and _taken(descriptor)
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _opened(path: Path) -> int | None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            # NFS locks only what may be written, and a pipe would make this wait for a reader.
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK, 0o666)
        except PermissionError:  # another user's
            return os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None


def _taken(descriptor: int) -> bool:
    """Wait for the lock; tell whether this process has it."""
    end = monotonic() + PATIENCE
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if monotonic() > end:
                return False
            sleep(PAUSE)
        except OSError:
            return False
