"""Atomic replacement of files: after a crash, the old file is unchanged."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO


def is_writable(path: str | os.PathLike[str]) -> bool:
    """Return True if a file can be written or created."""
    if os.path.exists(path) and (os.path.isdir(path) or not os.access(path, os.W_OK)):
        return False
    # The new file is written to the same folder.
    folder = os.path.dirname(os.path.realpath(path))
    return _is_special(path) or os.access(folder, os.W_OK | os.X_OK)


@contextmanager
def open_replacement(path: str | os.PathLike[str]) -> Iterator[TextIO]:
    """Open a text file that replaces the one at a path when the block ends.

    After an error or a crash the old file is unchanged. Terminals, pipes and devices are written
    directly.
    """
    from pathlib import Path
    if _is_special(path):
        with open(path, "w", encoding="utf-8") as file:
            yield file
        return
    target = Path(os.path.realpath(path))
    temporary = target.with_name(f".{target.name}.{os.uname().nodename}.{os.getpid()}")
    try:
        with open(temporary, "x", encoding="utf-8") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    # The new directory entry must survive a power failure, too.
    directory = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _is_special(path: str | os.PathLike[str]) -> bool:
    # Not resolved: /dev/stdout resolves to a pipe whose name does not exist.
    return os.path.exists(path) and not os.path.isfile(path)
