"""Files that are written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO


def writable(path: str | os.PathLike) -> bool:
    """Tell whether a file can be written, or made."""
    if os.path.exists(path) and (os.path.isdir(path) or not os.access(path, os.W_OK)):
        return False
    # A new file is made beside the old one.
    folder = os.path.dirname(os.path.realpath(path))
    return _is_no_file(path) or os.access(folder, os.W_OK | os.X_OK)


@contextmanager
def replacing(path: str | os.PathLike) -> Iterator[TextIO]:
    """A text file that takes the place of the one at a path when it is complete.

    After an error, or a crash, the old one is still there. What is no file, such as a terminal, is
    written to as it is.

    Raises:
        OSError: it cannot be written.
    """
    if _is_no_file(path):
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
    # The new name must survive a power failure too.
    directory = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _is_no_file(path: str | os.PathLike) -> bool:
    # By its name as given: /dev/stdout leads to a pipe whose own name leads nowhere.
    return os.path.exists(path) and not os.path.isfile(path)
