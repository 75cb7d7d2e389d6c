"""Collectives as data: what runs on NumPy arrays, which shapes it has, and its transpose.

A call has one operand and one result. All but lone messages, and operators that do not add, are
linear maps from the operands of all ranks to the results of all ranks, and such a map has a
transpose, which carries derivatives back:

    Allreduce <-> Allreduce      Bcast <-> Reduce           Allgather <-> ReduceScatter
    Alltoall <-> Alltoall        Scatter <-> Gather         Scan <-> Scan from the last rank
    Sendrecv <-> Sendrecv the other way

For each pair to be one, a rank without a result (not the root of ``Reduce`` and ``Gather``) gets
zeros in the shape of its operand. Batching adds an axis *behind* the others, and every call takes
what lies there as a longer element; so one rule batches them all.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy
from mpi4py import MPI

from hpccoll.errors import ArgumentError, ArgumentTypeError
from hpccoll.jax.agreement import Agreement

Shape = tuple[int, ...]


# Compared by identity: operators and communicators of MPI have no hash.
@dataclass(frozen=True, eq=False, kw_only=True)
class ArrayCall(ABC):
    """One collective; all ranks make the same.

    Attributes:
        comm: the ranks.
        agreement: what to compare with other ranks first, if anything.
    """

    comm: Any
    agreement: Agreement | None = None

    def __call__(self, operand: numpy.ndarray) -> numpy.ndarray:
        """Run it; the operand is not changed."""
        if self.agreement is not None:
            self.agreement.check(self.comm)
        return self.run(numpy.asarray(operand, order="C"))

    @abstractmethod
    def run(self, operand: numpy.ndarray) -> numpy.ndarray:
        """Run it on a contiguous array, and return another one of :meth:`shape`."""

    def shape(self, operand: Shape) -> Shape:
        """The shape of the result.

        Raises:
            ArgumentError: the operand cannot have this shape.
        """
        return operand

    def transpose(self, operand: Shape) -> ArrayCall:
        """The call that takes derivatives from the result back to the operand.

        Raises:
            ArgumentTypeError: there is none.
        """
        name = type(self).__name__.removesuffix("Call").lower()
        raise ArgumentTypeError(name, "has no derivative",
                                "use sendrecv, or jax.lax.stop_gradient on the input")

    def batched(self, size: int) -> ArrayCall:
        """The same call on arrays with one more axis of ``size`` at the end."""
        return self

    def carrying(self, shapes: Sequence[Shape], agreement: Agreement | None) -> ArrayCall:
        """The same call on arrays of these shapes, one behind the other in the last axis."""
        return replace(self, agreement=agreement)

    def _per_rank(self, operand: Shape) -> None:
        if not operand or operand[0] != self.comm.size:
            raise ArgumentError("x", f"expected a first axis of {self.comm.size} entries, one per "
                                     f"rank; {type(self).__name__.lower()} got the shape {operand}")


@dataclass(frozen=True, eq=False, kw_only=True)
class CombiningCall(ArrayCall):
    """A collective that combines what ranks have."""

    op: MPI.Op

    def _check_linear(self) -> None:
        if self.op != MPI.SUM:
            raise ArgumentTypeError("op", f"{type(self).__name__.lower()} has a derivative for "
                                    "MPI.SUM only", "use jax.lax.stop_gradient on the input")


class Allreduce(CombiningCall):
    """The combination, on every rank."""

    def run(self, operand: numpy.ndarray) -> numpy.ndarray:
        result = numpy.empty_like(operand)
        self.comm.Allreduce(operand, result, op=self.op)
        return result

    def transpose(self, operand: Shape) -> ArrayCall:
        self._check_linear()
        return replace(self, agreement=None)


@dataclass(frozen=True, eq=False, kw_only=True)
class Reduce(CombiningCall):
    """The combination, on the root; zeros elsewhere."""

    root: int

    def run(self, operand: numpy.ndarray) -> numpy.ndarray:
        result = numpy.zeros_like(operand)
        self.comm.Reduce(operand, result if self.comm.rank == self.root else None, op=self.op,
                         root=self.root)
        return result

    def transpose(self, operand: Shape) -> ArrayCall:
        self._check_linear()
        return Bcast(comm=self.comm, root=self.root)


@dataclass(frozen=True, eq=False, kw_only=True)
class Bcast(ArrayCall):
    """What the root has, on every rank; other ranks bring the shape and the type."""

    root: int

    def run(self, operand: numpy.ndarray) -> numpy.ndarray:
        result = operand.copy()
        self.comm.Bcast(result, root=self.root)
        return result

    def transpose(self, operand: Shape) -> ArrayCall:
        return Reduce(comm=self.comm, op=MPI.SUM, root=self.root)


class Allgather(ArrayCall):
    """What all ranks have, one behind the other in a new first axis, on every rank."""

    def run(self, operand: numpy.ndarray) -> numpy.ndarray:
        result = numpy.empty(self.shape(operand.shape), operand.dtype)
        self.comm.Allgather(operand, result)
        return result

    def shape(self, operand: Shape) -> Shape:
        return (self.comm.size, *operand)

    def transpose(self, operand: Shape) -> ArrayCall:
        return ReduceScatter(comm=self.comm, op=MPI.SUM)


class ReduceScatter(CombiningCall):
    """Entry r of the combination along the first axis, on rank r."""

    def run(self, operand: numpy.ndarray) -> numpy.ndarray:
        result = numpy.empty(operand.shape[1:], operand.dtype)
        self.comm.Reduce_scatter_block(operand, result, op=self.op)
        return result

    def shape(self, operand: Shape) -> Shape:
        self._per_rank(operand)
        return operand[1:]

    def transpose(self, operand: Shape) -> ArrayCall:
        self._check_linear()
        return Allgather(comm=self.comm)


class Alltoall(ArrayCall):
    """Entry s of the operand goes to rank s; entry r of the result came from rank r."""

    def run(self, operand: numpy.ndarray) -> numpy.ndarray:
        result = numpy.empty_like(operand)
        self.comm.Alltoall(operand, result)
        return result

    def shape(self, operand: Shape) -> Shape:
        self._per_rank(operand)
        return operand

    def transpose(self, operand: Shape) -> ArrayCall:
        return replace(self, agreement=None)


@dataclass(frozen=True, eq=False, kw_only=True)
class Gather(ArrayCall):
    """What all ranks have, in a new first axis, on the root; zeros elsewhere."""

    root: int

    def run(self, operand: numpy.ndarray) -> numpy.ndarray:
        result = numpy.zeros(self.shape(operand.shape), operand.dtype)
        self.comm.Gather(operand, result if self.comm.rank == self.root else None, root=self.root)
        return result

    def shape(self, operand: Shape) -> Shape:
        return (self.comm.size, *operand) if self.comm.rank == self.root else operand

    def transpose(self, operand: Shape) -> ArrayCall:
        return Scatter(comm=self.comm, root=self.root)


@dataclass(frozen=True, eq=False, kw_only=True)
class Scatter(ArrayCall):
    """Entry r of what the root has, on rank r; other ranks bring the shape of their result."""

    root: int

    def run(self, operand: numpy.ndarray) -> numpy.ndarray:
        result = numpy.empty(self.shape(operand.shape), operand.dtype)
        self.comm.Scatter(operand if self.comm.rank == self.root else None, result, root=self.root)
        return result

    def shape(self, operand: Shape) -> Shape:
        if self.comm.rank != self.root:
            return operand
        self._per_rank(operand)
        return operand[1:]

    def transpose(self, operand: Shape) -> ArrayCall:
        return Gather(comm=self.comm, root=self.root)


@dataclass(frozen=True, eq=False, kw_only=True)
class Scan(CombiningCall):
    """The combination of ranks 0 to r on rank r; or of r to the last, if it is ``reverse``."""

    reverse: bool = False

    def run(self, operand: numpy.ndarray) -> numpy.ndarray:
        # From the last rank on: rank r takes the place of its mirror image and back.
        result = numpy.empty_like(operand)
        self.comm.Scan(self._mirrored(operand), result, op=self.op)
        return self._mirrored(result)

    def _mirrored(self, values: numpy.ndarray) -> numpy.ndarray:
        if not self.reverse:
            return values
        other = self.comm.size - 1 - self.comm.rank
        received = numpy.empty_like(values)
        self.comm.Sendrecv(_message(values), other, 0, _message(received), other, 0)
        return received

    def transpose(self, operand: Shape) -> ArrayCall:
        self._check_linear()
        return replace(self, agreement=None, reverse=not self.reverse)


@dataclass(frozen=True, eq=False, kw_only=True)
class Sendrecv(ArrayCall):
    """Goes to one rank; what comes from another one has ``received`` as its shape."""

    dest: int
    source: int
    sendtag: int
    recvtag: int
    received: Shape

    def run(self, operand: numpy.ndarray) -> numpy.ndarray:
        result = numpy.zeros(self.received, operand.dtype)
        self.comm.Sendrecv(_message(operand), self.dest, self.sendtag,
                           _message(result), self.source, self.recvtag)
        return result

    def shape(self, operand: Shape) -> Shape:
        return self.received

    def transpose(self, operand: Shape) -> ArrayCall:
        if MPI.ANY_SOURCE == self.source or MPI.ANY_TAG == self.recvtag:
            raise ArgumentTypeError("source", "sendrecv from any source or with any tag has no "
                                    "derivative", "pass the rank and the tag")
        return Sendrecv(comm=self.comm, dest=self.source, source=self.dest, sendtag=self.recvtag,
                        recvtag=self.sendtag, received=operand)

    def batched(self, size: int) -> ArrayCall:
        return replace(self, received=(*self.received, size))


@dataclass(frozen=True, eq=False, kw_only=True)
class SendCall(ArrayCall):
    """Goes to one rank; the result is empty, but for the axis of a batch."""

    dest: int
    tag: int

    def run(self, operand: numpy.ndarray) -> numpy.ndarray:
        self.comm.Send(_message(operand), self.dest, self.tag)
        return numpy.empty(self.shape(operand.shape), operand.dtype)

    def shape(self, operand: Shape) -> Shape:
        return (0, *operand[-1:])


@dataclass(frozen=True, eq=False, kw_only=True)
class RecvCall(ArrayCall):
    """Comes from one rank; the operand brings the shape and the type."""

    source: int
    tag: int

    def run(self, operand: numpy.ndarray) -> numpy.ndarray:
        result = numpy.zeros_like(operand)
        self.comm.Recv(_message(result), self.source, self.tag)
        return result


class Barrier(ArrayCall):
    """Goes on when all ranks have come; operand and result are empty."""

    def run(self, operand: numpy.ndarray) -> numpy.ndarray:
        self.comm.Barrier()
        return operand


def _message(values: numpy.ndarray) -> numpy.ndarray:
    """Bytes, so that MPI need not know the type: it has no bfloat16."""
    return values.reshape(-1).view(numpy.uint8)
