"""Memory of calls in tests: how a rank passes its data to a call, fills it and reads it.

:func:`memory` returns the function that makes the buffers of a rank. Each buffer holds its elements
between guards, which no call may change.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy
from mpi4py import MPI

from hpccoll.arrays.exact import POISON
from hpccoll.calls.datatypes import datatype_of

#: Bytes of a guard; bytes of registered memory, at least twice what one call needs.
ZONE, POOL, GUARD = 64, 1 << 24, bytes([POISON])
#: Ways to write a buffer: an array alone, with its type, with counts and its type.
FORMS = ("arrays", "types", "counts")


class Host:
    """An array on the host; the base of other kinds of memory."""

    def __init__(self, count: int, dtype: numpy.dtype, allocate: Callable = numpy.empty,
                 wrap: Callable = lambda values: values):
        end = ZONE + count * dtype.itemsize
        memory = allocate(end + ZONE, "u1")
        memory[...] = POISON
        self.zones, self.values = (memory[:ZONE], memory[end:]), memory[ZONE:end].view(dtype)
        self.count, self.passed, self.kind = count, wrap(self.values), datatype_of(dtype)

    def write(self, values: numpy.ndarray) -> None:
        """Fill the buffer."""
        self.values[...] = values

    def read(self) -> numpy.ndarray:
        """Return the elements."""
        return self.values

    def overwritten(self) -> bool:
        """Return True if a guard has changed."""
        return any(zone.tobytes().strip(GUARD) for zone in self.zones)

    def items(self, elements: Sequence[int], displs: bool = False) -> list[int]:
        """Convert counts or displacements of blocks to numbers of items of the datatype."""
        return list(elements)

    def whole(self, form: str, blocks: int = 1) -> Any:
        """Write all of the buffer, which consists of equal blocks, in one of :data:`FORMS`."""
        if form == "counts":
            return [self.passed, *self.items([self.count // blocks]), self.kind]
        return [self.passed, self.kind] if form == "types" else self.passed

    def vector(self, form: str, counts: Sequence[int], displs: Sequence[int] | None) -> Any:
        """Write the buffer with a block for each rank."""
        counts, displs = self.items(counts), displs and self.items(displs, True)
        if form == "counts":
            counts, displs = numpy.array(counts), displs and numpy.array(displs)
        return [self.passed, *([(counts, displs)] if form == "arrays" else [counts, displs]),
                self.kind]

    def pairwise(self, counts: Sequence[int], displs: Sequence[int]) -> Any:
        """Write the buffer with a block, a place in bytes and a datatype for each rank."""
        extent = self.kind.Get_extent()[1]
        return [self.passed, (self.items(counts), [extent * i for i in self.items(displs, True)]),
                [self.kind] * len(counts)]


class Gaps(Host):
    """Every third element of an array, by a datatype that is three elements long."""

    def __init__(self, count: int, dtype: numpy.dtype, blocks: int):
        self.count, self.passed = count, numpy.empty(3 * count * dtype.itemsize, "u1")
        self.passed[...] = POISON
        self.values, self.kind = self.passed.view(dtype)[::3], spaced(dtype, 1, 1, 3)
        self.zones = tuple(self.passed.view(f"V{dtype.itemsize}")[i::3] for i in (1, 2))

    def whole(self, form: str, blocks: int = 1) -> Any:
        return super().whole("counts", blocks)


class Columns(Gaps):
    """Equal blocks as the columns of a matrix that has one column more."""

    def __init__(self, count: int, dtype: numpy.dtype, blocks: int):
        self.count, self.rows = count, count // blocks
        self.passed = numpy.empty(self.rows * (blocks + 1) * dtype.itemsize, "u1")
        self.passed[...] = POISON
        matrix = self.passed.view(dtype).reshape(self.rows, blocks + 1)
        self.values, self.kind = matrix[:, :-1].T, spaced(dtype, self.rows, blocks + 1, 1)
        self.zones = (matrix[:, -1],)

    def write(self, values: numpy.ndarray) -> None:
        self.values[...] = values.reshape(self.values.shape)

    def read(self) -> numpy.ndarray:
        return self.values.reshape(-1)

    def items(self, elements: Sequence[int], displs: bool = False) -> list[int]:
        return [each // max(self.rows, 1) if displs else 1 for each in elements]


class Device(Host):
    """An array in the memory of a GPU, or of the double of one."""

    def __init__(self, count: int, dtype: numpy.dtype, cupy: Any, allocate: Callable | None = None):
        end = ZONE + count * dtype.itemsize
        memory = (allocate or cupy.empty)(end + ZONE, "u1")
        memory[...] = cupy.asarray(numpy.full(end + ZONE, POISON, "u1"))
        self.cupy, self.zones = cupy, (memory[:ZONE], memory[end:])
        self.count, self.kind = count, datatype_of(dtype)
        self.passed = memory[ZONE:end].view(dtype)

    def write(self, values: numpy.ndarray) -> None:
        self.passed[...] = self.cupy.asarray(values)

    def read(self) -> numpy.ndarray:
        return self.cupy.asnumpy(self.passed)

    def overwritten(self) -> bool:
        return any(self.cupy.asnumpy(zone).tobytes().strip(GUARD) for zone in self.zones)


@functools.cache
def spaced(dtype: numpy.dtype, rows: int, distance: int, extent: int) -> MPI.Datatype:
    """Make a datatype of ``rows`` elements at a distance, as long as ``extent`` elements.

    It is never freed: many calls use it.
    """
    column = datatype_of(dtype).Create_vector(rows, 1, distance)
    kind = column.Create_resized(0, extent * dtype.itemsize).Commit()
    column.Free()
    return kind


class Quantity(numpy.ndarray):
    """An array like those of packages for units: it computes with its own kind only."""

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **named: Any) -> Any:
        raise TypeError("units differ")

    def __getitem__(self, key: Any) -> Any:
        raise TypeError("no part of it")


def read_only(values: numpy.ndarray) -> numpy.ndarray:
    """Make a view that cannot be written."""
    view = values.view()
    view.flags.writeable = False
    return view


WRAPS = {"read-only": read_only, "subclass": lambda values: values.view(Quantity)}


class Pool:
    """Registered memory, parts of which are given to one call after another."""

    def __init__(self, comm: Any, **xp: Any):
        self.bytes, self.used = comm.empty(POOL, "u1", **xp), 0

    def __call__(self, nbytes: int, dtype: str) -> Any:
        assert nbytes <= POOL // 2
        start = self.used if self.used + nbytes <= POOL else 0
        self.used = start + -(-nbytes // ZONE) * ZONE
        return self.bytes[start:start + nbytes]


def memory(name: str, comm: Any, cupy: Any = None) -> Callable[[int, Any, int, bool], Host]:
    """Return the function that makes buffers; collective where memory is registered.

    Args:
        name: ``host``, ``read-only`` inputs, a ``subclass`` of arrays; ``gaps`` or ``columns``
            between the elements of every second rank; ``registered`` or ``device``, with
            ``inputs``, ``outputs`` or ``on some`` ranks if others are ordinary.
        comm: communicator of the calls.
        cupy: a module like CuPy, for memory of devices.
    """
    odd, words = comm.rank % 2 == 1, name.split()
    here = odd if "some" in words else True
    pool = Pool(comm, **({"xp": cupy} if "device" in words else {})) if "registered" in words else (
        None)

    def make(count: int, dtype: Any, blocks: int = 1, is_output: bool = False) -> Host:
        dtype = numpy.dtype(dtype)
        if name in ("gaps", "columns") and odd == (name == "gaps"):
            return (Gaps if odd else Columns)(count, dtype, blocks)
        if name == "subclass" or name == "read-only" and not is_output:
            return Host(count, dtype, wrap=WRAPS[name])
        if "device" in words and here:
            return Device(count, dtype, cupy, pool)
        chosen = "device" not in words and here and {
            "inputs": not is_output, "outputs": is_output}.get(words[-1], True)
        return Host(count, dtype, pool if pool and chosen else numpy.empty)
    return make
