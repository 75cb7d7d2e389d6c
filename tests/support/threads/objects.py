"""The lower-case collectives of threads: objects, pickled, by the upper-case ones.

Reductions combine the objects in the order of the ranks.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from functools import reduce
from itertools import accumulate
from typing import Any

import numpy
from mpi4py import MPI

from support.threads.collectives import Collectives

#: What combines two objects; an ``MPI.Op`` does.
Operator = Callable[[Any, Any], Any]


class ObjectCollectives(Collectives):
    """The lower-case collective methods of a communicator."""

    def barrier(self) -> None:
        """Wait for all ranks."""
        self.Barrier()

    def bcast(self, obj: Any, root: int = 0) -> Any:
        """Send the root's object to every rank."""
        data = _pickled([obj] if self.rank == root else [])[0]
        count = numpy.array([data.size], "i8")
        self.Bcast(count, root=root)
        if self.rank != root:
            data = numpy.empty(count[0], "u1")
        self.Bcast(data, root=root)
        return pickle.loads(data.tobytes())

    def allgather(self, sendobj: Any) -> list[Any]:
        """Every rank's object, on every rank."""
        data, [count] = _pickled([sendobj])
        counts = numpy.empty(self.size, "i8")
        self.Allgather(numpy.array([count]), counts)
        received = numpy.empty(counts.sum(), "u1")
        self.Allgatherv(data, [received, counts.tolist()])
        return _objects(received, counts)

    def gather(self, sendobj: Any, root: int = 0) -> list[Any] | None:
        """Every rank's object, at the root."""
        data, [count] = _pickled([sendobj])
        counts = numpy.zeros(self.size, "i8")
        self.Gather(numpy.array([count]), counts, root=root)
        received = numpy.empty(counts.sum(), "u1")
        self.Gatherv(data, [received, counts.tolist()], root=root)
        return _objects(received, counts) if self.rank == root else None

    def scatter(self, sendobj: Sequence[Any] | None, root: int = 0) -> Any:
        """One of the root's objects for every rank."""
        data, counts = _pickled(_each(sendobj, self.size) if self.rank == root else [])
        count = numpy.empty(1, "i8")
        self.Scatter(counts, count, root=root)
        received = numpy.empty(count[0], "u1")
        self.Scatterv([data, counts.tolist()] if self.rank == root else None, received, root=root)
        return pickle.loads(received.tobytes())

    def alltoall(self, sendobj: Sequence[Any]) -> list[Any]:
        """One object from every rank to every rank."""
        data, counts = _pickled(_each(sendobj, self.size))
        awaited = numpy.empty(self.size, "i8")
        self.Alltoall(counts, awaited)
        received = numpy.empty(awaited.sum(), "u1")
        self.Alltoallv([data, counts.tolist()], [received, awaited.tolist()])
        return _objects(received, awaited)

    def allreduce(self, sendobj: Any, op: Operator | MPI.Op = MPI.SUM) -> Any:
        """Every rank's object combined, on every rank."""
        return reduce(op, self.allgather(sendobj))

    def reduce(self, sendobj: Any, op: Operator | MPI.Op = MPI.SUM, root: int = 0) -> Any:
        """Every rank's object combined, at the root."""
        gathered = self.gather(sendobj, root)
        return None if gathered is None else reduce(op, gathered)

    def scan(self, sendobj: Any, op: Operator | MPI.Op = MPI.SUM) -> Any:
        """The objects of ranks 0 to this one combined."""
        return reduce(op, self.allgather(sendobj)[:self.rank + 1])

    def exscan(self, sendobj: Any, op: Operator | MPI.Op = MPI.SUM) -> Any:
        """The objects of the ranks before this one combined; ``None`` on rank 0."""
        before = self.allgather(sendobj)[:self.rank]
        return reduce(op, before) if before else None


def _each(objects: Sequence[Any] | None, size: int) -> Sequence[Any]:
    """The objects, if there is one for every rank."""
    if objects is None or len(objects) != size:
        raise ValueError(f"expected {size} objects, one per rank, got {objects!r}")
    return objects


def _pickled(objects: Sequence[Any]) -> tuple[numpy.ndarray, numpy.ndarray]:
    """Objects as bytes one behind the other, and how many bytes each has."""
    parts = list(map(pickle.dumps, objects))
    return (numpy.frombuffer(b"".join(parts), "u1"),
            numpy.array([len(part) for part in parts], "i8"))


def _objects(data: numpy.ndarray, counts: numpy.ndarray) -> list[Any]:
    """What :func:`_pickled` made bytes of."""
    stops = list(accumulate(counts.tolist()))
    return [pickle.loads(data[stop - count:stop].tobytes())
            for count, stop in zip(counts.tolist(), stops)]
