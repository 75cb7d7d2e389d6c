"""Storage of measured times: adds those of a job to a table that jobs share.

An addition reads, changes and replaces the file. Two concurrent jobs could lose the times of one of
them. So an advisory lock serializes them, on a separate file that is never removed. If the file
system has no locks, or the holder does not release the lock, the table is written without it.
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
    merge,
    read,
    write,
)

#: Timeout in seconds for another job, which needs a few milliseconds, and poll interval.
PATIENCE, PAUSE = 5.0, 0.01


def load_existing(path: str | os.PathLike[str]) -> Table:
    """Return the existing table, or an empty one if there is no file."""
    return read(path) if os.path.lexists(path) else {}


def add(path: str | os.PathLike[str], machine: Fingerprint, curves: Curves,
        wrong: Collection[tuple[str, Candidate]] = (), replace: bool = False
        ) -> tuple[Curves, list[Disagreement]]:
    """Add curves of one machine to a table, or create one.

    Args:
        replace: remove old times of the same kinds of calls.

    Returns:
        The times of these kinds of calls in the new table, and old times that were kept because
        they differ too much from the new ones.
    """
    with lock_table(path):
        old = load_existing(path)
        if replace and machine in old:
            old = {**old, machine: {k: c for k, c in old[machine].items() if k not in curves}}
        new = merge(old, machine, curves, wrong)
        write(path, new)
    kept = [] if machine.is_rough else disagreements(old.get(machine, {}), curves)
    return ({kind: new[machine][kind] for kind in curves},
            [each for each in kept if (each.collective, each.candidate) not in wrong])


@contextmanager
def lock_table(path: str | os.PathLike[str]) -> Iterator[bool]:
    """Lock a table against other jobs; yield True if that was possible."""
    target = Path(os.path.realpath(path))
    descriptor = _open(target.with_name(f".{target.name}.lock"))
    try:
        yield descriptor is not None and _wait_for_lock(descriptor)
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _open(path: Path) -> int | None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            # NFS locks only writable files, and opening a pipe would block until it has a reader.
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK, 0o666)
        except PermissionError:  # owned by another user
            return os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None


def _wait_for_lock(descriptor: int) -> bool:
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
