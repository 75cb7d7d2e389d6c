"""Owned part of a group: exact weights, optimizer state and its storage, and the optimizer step."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any, Protocol

import numpy

from hpccoll.errors import ArgumentError
from hpccoll.training.optimizers import ElementwiseOptimizer

#: Capacity of a pool.
MOST_SPARE = 2


class InMemory:
    """Vectors in the memory of the process."""

    def zeros(self, count: int, dtype: Any) -> numpy.ndarray:
        """Return a vector of zeros."""
        return numpy.zeros(count, dtype)


class MappedFiles:
    """Vectors in files of a folder, created if missing, which should be on a local disk.

    The kernel pages a mapped vector in on use and writes it back under memory pressure. A file is
    unlinked after mapping, so a killed job leaves none.
    Source: Rajbhandari et al., "ZeRO-Infinity", SC 2021, for state outside memory.
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
    """Pool of temporary vectors; reused pages are cheaper than new ones."""

    def __init__(self) -> None:
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
        self._spare = [*self._spare, memory][-MOST_SPARE:]

    def clear(self) -> None:
        """Free all pooled memory."""
        self._spare.clear()


#: Elements of one piece of a step: all its vectors together fit into the cache.
CHUNK = 1 << 15


class Storage(Protocol):
    """Allocator of vectors."""

    def zeros(self, count: int, dtype: Any) -> numpy.ndarray:
        """Return a vector of zeros."""


def exact_type(dtype: numpy.dtype) -> numpy.dtype:
    """Return the dtype of exact weights: 16-bit floats would lose small updates."""
    return numpy.dtype(numpy.float32) if dtype.itemsize == 2 else dtype


class ShardState:
    """Part of one group on its owner.

    Args:
        weights: the part that the model reads; each step writes it.
        exact: dtype of exact weights and of steps.

    Attributes:
        exact: the weights in that dtype; ``weights`` itself if the dtype is the same.
        state: vectors of the optimizer, by name.
    """

    def __init__(self, weights: numpy.ndarray, optimizer: ElementwiseOptimizer, storage: Storage,
                 exact: numpy.dtype):
        self.weights = self.exact = weights
        if exact != weights.dtype:
            self.exact = storage.zeros(weights.size, exact)
            self.exact[:] = weights
        self.state: dict[str, numpy.ndarray] = {}
        # In pieces: state in a file may not fit into memory.
        for start in range(0, max(weights.size, 1), CHUNK):
            count = min(CHUNK, weights.size - start)
            for name, values in optimizer.start(count, exact).items():
                if values.shape != (count,):
                    raise ArgumentError("optimizer", f"its state '{name}' has shape {values.shape} "
                                                     f"for {count} elements",
                                        "use an element-wise optimizer")
                if name not in self.state:
                    self.state[name] = storage.zeros(weights.size, values.dtype)
                self.state[name][start:start + count] = values

    def step(self, optimizer: ElementwiseOptimizer, gradient: numpy.ndarray, number: int,
             divisor: float, factor: float) -> None:
        """Run one optimizer step.

        Args:
            gradient: gradient of the part, in any dtype; not changed.
            number: number of the step, from 1.
            divisor, factor: the gradient is divided by ``divisor``, then multiplied by ``factor``.
        """
        for start in range(0, self.exact.size, CHUNK):
            piece = slice(start, start + CHUNK)
            values = gradient[piece].astype(self.exact.dtype)
            if divisor != 1:
                values /= values.dtype.type(divisor)
            if factor != 1:
                values *= values.dtype.type(factor)
            state = {name: vector[piece] for name, vector in self.state.items()}
            optimizer.step(self.exact[piece], values, state, number)
        self.publish()

    def publish(self) -> None:
        """Copy the exact weights to those of the model."""
        if self.exact is not self.weights:
            self.weights[:] = self.exact

    @property
    def nbytes(self) -> int:
        """Return the bytes of the state and of separate exact weights."""
        apart = self.exact.nbytes if self.exact is not self.weights else 0
        return apart + sum(vector.nbytes for vector in self.state.values())
