"""Storage of vectors: in memory, in memory-mapped files, or in a pool of reusable memory.

The kernel pages a mapped vector in on use and writes it back under memory pressure. A step reads it
once and sequentially, which suits read-ahead. Its file is unlinked after mapping: the kernel
keeps the data until the last mapping is removed, so a killed job leaves no files.
Source: Rajbhandari et al., "ZeRO-Infinity", SC 2021, for state outside memory.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import numpy

from hpccoll.errors import ArgumentError

#: Default capacity of a pool.
MOST_SPARE = 2


class InMemory:
    """Vectors in the memory of the process."""

    def zeros(self, count: int, dtype: Any) -> numpy.ndarray:
        """Return a vector of zeros."""
        return numpy.zeros(count, dtype)


class MappedFiles:
    """Vectors in files of a folder, which should be on a local disk.

    Args:
        folder: the folder; created if it does not exist.
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
        """Return a vector of zeros."""
        if not count:
            return numpy.zeros(0, dtype)  # an empty file cannot be mapped
        nbytes = count * numpy.dtype(dtype).itemsize
        with tempfile.TemporaryFile(dir=self.folder) as file:
            # Reserve blocks: without them, the first write to a full disk would raise SIGBUS.
            os.posix_fallocate(file.fileno(), 0, nbytes)
            return numpy.memmap(file, dtype, "r+", shape=(count,))


class VectorPool:
    """Pool of temporary vectors; reused pages are cheaper than new ones.

    Args:
        most: capacity of the pool; 0 if references to returned vectors may exist, which then keep
            the memory alive.
    """

    def __init__(self, most: int = MOST_SPARE) -> None:
        self._most = most
        self._spare: list[numpy.ndarray] = []

    def get(self, count: int, dtype: Any) -> numpy.ndarray:
        """Return a vector with undefined contents."""
        nbytes = count * numpy.dtype(dtype).itemsize
        fitting = [spare for spare in self._spare if nbytes <= spare.nbytes <= 2 * nbytes]
        if fitting:
            memory = min(fitting, key=lambda spare: spare.nbytes)
            self._spare = [spare for spare in self._spare if spare is not memory]
        else:
            memory = numpy.empty(nbytes, "u1")
        return memory[:nbytes].view(dtype)

    def put(self, vector: numpy.ndarray) -> None:
        """Return an unused vector to the pool."""
        memory = vector if vector.base is None else vector.base
        self._spare = [*self._spare, memory][-self._most:] if self._most else []

    def clear(self) -> None:
        """Free all pooled memory."""
        self._spare.clear()
