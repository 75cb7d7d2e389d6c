"""Where vectors of state lie: in memory, or in files that are mapped where memory is short.

A mapped vector is paged in as it is used, and written back when memory is needed; a step walks
over it once, in order, which is what read-ahead expects. Its file is removed as soon as it is
mapped: the kernel keeps it until the last mapping is gone, so a job that is killed leaves nothing.
Source: Rajbhandari et al., "ZeRO-Infinity", SC 2021, for state outside memory.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import numpy

from hpccoll.errors import ArgumentError


class InMemory:
    """Vectors in the memory of the process."""

    def zeros(self, count: int, dtype: Any) -> numpy.ndarray:
        """Make a vector of zeros."""
        return numpy.zeros(count, dtype)


class Mapped:
    """Vectors in files of a folder, which should be on a disk of this node.

    Args:
        folder: made if it is not there.

    Raises:
        ArgumentError: nothing can be written there.
    """

    def __init__(self, folder: str | os.PathLike[str]):
        self.folder = Path(folder)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.folder):
                pass
        except OSError as error:
            raise ArgumentError("storage", f"cannot create a file in {self.folder}: {error}",
                                "name a folder on a disk of this node") from error

    def zeros(self, count: int, dtype: Any) -> numpy.ndarray:
        """Make a vector of zeros.

        Raises:
            OSError: the disk is full.
        """
        if not count:
            return numpy.zeros(0, dtype)  # no empty file can be mapped
        nbytes = count * numpy.dtype(dtype).itemsize
        with tempfile.TemporaryFile(dir=self.folder) as file:
            # Blocks that were never reserved would be a fault of the bus at the first write
            # to a full disk.
            os.posix_fallocate(file.fileno(), 0, nbytes)
            return numpy.memmap(file, dtype, "r+", shape=(count,))
