"""Collectives as objects: execution on NumPy arrays, shapes, and transpose.

A call has one operand and one result. Except single messages and operators other than the sum,
calls are linear maps from the operands of all ranks to the results of all ranks. The transpose of
such a map computes gradients:

    Allreduce <-> Allreduce      Bcast <-> Reduce           Allgather <-> ReduceScatter
    Alltoall <-> Alltoall        Scatter <-> Gather         Scan <-> Scan from the last rank
    Sendrecv <-> Sendrecv in reverse

To make these pairs transposes, a rank without a result (not the root of ``Reduce`` and ``Gather``)
gets zeros in the shape of its operand. Batching appends a *last* axis, which every call treats as a
part of a longer element, so one batching rule applies to all calls.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy
from mpi4py import MPI

from hpccoll.errors import ArgumentError, ArgumentTypeError, ExchangeMismatch
from hpccoll.errors.agreement import compare

Shape = tuple[int, ...]


# Compared by identity: MPI operators and communicators have no hash.
@dataclass(frozen=True, eq=False, kw_only=True)
class ArrayCall(ABC):
    """One collective; all ranks must make the same call.

    Attributes:
        leaves: of a tree to compare between ranks first, such as ``"['w']: float32[3,4]"``: ranks
            that fuse different trees would add elements of different arrays, or deadlock.
    """

    comm: Any
    leaves: Sequence[str] | None = None

    def __call__(self, operand: numpy.ndarray) -> numpy.ndarray:
        """Run the call; the operand is not modified."""
        difference = None if self.leaves is None else compare(self.comm, self.leaves)
        if difference is not None:
            raise ExchangeMismatch(
                f"trees differ between ranks in leaf {difference.place}: {difference}; pass the "
                "same tree, shapes and types on all ranks", tuple(dict.fromkeys(difference.values)),
                difference.ranks)
        return self.run(numpy.asarray(operand, order="C"))

    @abstractmethod
    def run(self, operand: numpy.ndarray) -> numpy.ndarray:
        """Run the call on a contiguous array; return a new array of :meth:`shape`."""

    def shape(self, operand: Shape) -> Shape:
        """Return the shape of the result."""
        return operand

    def transpose(self, operand: Shape) -> ArrayCall:
        """Return the transposed call, from the cotangent of the result to that of the operand."""
        name = type(self).__name__.removesuffix("Call").lower()
        raise ArgumentTypeError(name, "has no derivative",
                                "use sendrecv, or jax.lax.stop_gradient on the input")

    def batch(self, size: int) -> ArrayCall:
        """Return the call for arrays with one additional last axis of ``size``."""
        return self

    def with_shapes(self, shapes: Sequence[Shape], leaves: Sequence[str] | None) -> ArrayCall:
        """Return the call for arrays of these shapes, concatenated in the last axis."""
        return replace(self, leaves=leaves)

    def _per_rank(self, operand: Shape) -> None:
        if not operand or operand[0] != self.comm.size:
            raise ArgumentError("x", f"expected a first axis of {self.comm.size} entries, one per "
                                     f"rank; {type(self).__name__.lower()} got the shape {operand}")


@dataclass(frozen=True, eq=False, kw_only=True)
class CombiningCall(ArrayCall):
    """Base of collectives with a reduction."""

    op: MPI.Op

    def _check_linear(self) -> None:
        if self.op != MPI.SUM:
            raise ArgumentTypeError("op", f"{type(self).__name__.lower()} has a derivative for "
                                    "MPI.SUM only", "use jax.lax.stop_gradient on the input")


class Allreduce(CombiningCall):
    """Reduction to all ranks."""

    def run(self, operand: numpy.ndarray) -> numpy.ndarray:
        result = numpy.empty_like(operand)
        self.comm.Allreduce(operand, result, op=self.op)
        return result

    def transpose(self, operand: Shape) -> ArrayCall:
        self._check_linear()
        return replace(self, leaves=None)


@dataclass(frozen=True, eq=False, kw_only=True)
class Reduce(CombiningCall):
    """Reduction to the root; zeros elsewhere."""

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
class RootedCall(ArrayCall):
    """Base of collectives with a root and without a reduction."""

    root: int


class Bcast(RootedCall):
    """Broadcast from the root; operands of other ranks provide the shape and dtype."""

    def run(self, operand: numpy.ndarray) -> numpy.ndarray:
        result = operand.copy()
        self.comm.Bcast(result, root=self.root)
        return result

    def transpose(self, operand: Shape) -> ArrayCall:
        return Reduce(comm=self.comm, op=MPI.SUM, root=self.root)


class Allgather(ArrayCall):
    """Concatenation of all ranks' operands in a new first axis, on every rank."""

    def run(self, operand: numpy.ndarray) -> numpy.ndarray:
        result = numpy.empty(self.shape(operand.shape), operand.dtype)
        self.comm.Allgather(operand, result)
        return result

    def shape(self, operand: Shape) -> Shape:
        return (self.comm.size, *operand)

    def transpose(self, operand: Shape) -> ArrayCall:
        return ReduceScatter(comm=self.comm, op=MPI.SUM)


class ReduceScatter(CombiningCall):
    """Reduction; rank r gets entry r along the first axis."""

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
    """Exchange: rank s receives entry s of the operand; entry r of the result is from rank r."""

    def run(self, operand: numpy.ndarray) -> numpy.ndarray:
        result = numpy.empty_like(operand)
        self.comm.Alltoall(operand, result)
        return result

    def shape(self, operand: Shape) -> Shape:
        self._per_rank(operand)
        return operand

    def transpose(self, operand: Shape) -> ArrayCall:
        return replace(self, leaves=None)


class Gather(RootedCall):
    """Concatenation of operands in a new first axis, on the root; zeros elsewhere."""

    def run(self, operand: numpy.ndarray) -> numpy.ndarray:
        result = numpy.zeros(self.shape(operand.shape), operand.dtype)
        self.comm.Gather(operand, result if self.comm.rank == self.root else None, root=self.root)
        return result

    def shape(self, operand: Shape) -> Shape:
        return (self.comm.size, *operand) if self.comm.rank == self.root else operand

    def transpose(self, operand: Shape) -> ArrayCall:
        return Scatter(comm=self.comm, root=self.root)


class Scatter(RootedCall):
    """Entry r of the root's operand on rank r; other operands provide the result's shape."""

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
    """Reduction of ranks 0 to r on rank r; with ``reverse``, of ranks r to the last."""

    reverse: bool = False

    def run(self, operand: numpy.ndarray) -> numpy.ndarray:
        # Reverse: mirror the ranks before and after the scan.
        result = numpy.empty_like(operand)
        self.comm.Scan(self._mirror(operand), result, op=self.op)
        return self._mirror(result)

    def _mirror(self, values: numpy.ndarray) -> numpy.ndarray:
        if not self.reverse:
            return values
        other = self.comm.size - 1 - self.comm.rank
        received = numpy.empty_like(values)
        self.comm.Sendrecv(_message(values), other, 0, _message(received), other, 0)
        return received

    def transpose(self, operand: Shape) -> ArrayCall:
        self._check_linear()
        return replace(self, leaves=None, reverse=not self.reverse)


@dataclass(frozen=True, eq=False, kw_only=True)
class Sendrecv(ArrayCall):
    """Send to one rank and receive from another one, with the shape ``received``."""

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

    def batch(self, size: int) -> ArrayCall:
        return replace(self, received=(*self.received, size))


@dataclass(frozen=True, eq=False, kw_only=True)
class SendCall(ArrayCall):
    """Send to one rank; the result is empty, except for a batch axis."""

    dest: int
    tag: int

    def run(self, operand: numpy.ndarray) -> numpy.ndarray:
        self.comm.Send(_message(operand), self.dest, self.tag)
        return numpy.empty(self.shape(operand.shape), operand.dtype)

    def shape(self, operand: Shape) -> Shape:
        return (0, *operand[-1:])


@dataclass(frozen=True, eq=False, kw_only=True)
class RecvCall(ArrayCall):
    """Receive from one rank; the operand provides the shape and dtype."""

    source: int
    tag: int

    def run(self, operand: numpy.ndarray) -> numpy.ndarray:
        result = numpy.zeros_like(operand)
        self.comm.Recv(_message(result), self.source, self.tag)
        return result


class Barrier(ArrayCall):
    """Barrier of all ranks; operand and result are empty."""

    def run(self, operand: numpy.ndarray) -> numpy.ndarray:
        self.comm.Barrier()
        return operand


def _message(values: numpy.ndarray) -> numpy.ndarray:
    """Return the values as bytes, because MPI has no bfloat16."""
    return values.reshape(-1).view(numpy.uint8)
