"""Collectives with the names of mpi4jax, for arrays and trees of arrays.

All functions work eagerly, under ``jax.jit``, in ``lax.scan``, ``fori_loop``, ``while_loop`` and
``cond``, under ``jax.vmap``, and with ``jax.grad`` and ``jax.jvp`` as linear maps (for sums only).
Gradients are those of the *sum over ranks* of the functions' results, as with ``jax.lax.psum``. If
every rank returns the same loss, divide it by the number of ranks, or return it on one rank and
``0 * loss`` on the others.

Each function accepts an array, or a tree of arrays, which is sent as one vector for each dtype.
``comm`` is any intracommunicator, by default :func:`hpccoll.jax.world`. Operands are not modified.
An error inside a compiled function is raised as ``jax.errors.JaxRuntimeError`` with hpccoll's
message when its result is accessed.
"""

from __future__ import annotations

from typing import Any

from jax import numpy as jnp
from mpi4py import MPI

from hpccoll.errors import ArgumentError, ArgumentTypeError
from hpccoll.jax import calls
from hpccoll.jax.fusion import bind, call_fused
from hpccoll.training.framework import communicator

IntraComm = MPI.Intracomm | None


def allreduce(x: Any, op: MPI.Op = MPI.SUM, *, comm: IntraComm = None) -> Any:
    """Reduce the arrays of all ranks; return the result on every rank.

    Args:
        x: arrays of the same shapes and dtypes on every rank.
        op: reduction operator; only ``MPI.SUM`` is differentiable.
        comm: the ranks.

    Raises:
        ArgumentTypeError: differentiation with an ``op`` other than ``MPI.SUM``.
        ExchangeMismatch: ranks pass different trees; on all ranks.
    """
    return call_fused(x, calls.Allreduce(comm=communicator(comm), op=op))


def reduce(x: Any, op: MPI.Op = MPI.SUM, root: int = 0, *, comm: IntraComm = None) -> Any:
    """Reduce the arrays of all ranks to the root; return zeros on other ranks.

    Arguments and errors are those of :func:`allreduce`, and ``root``.
    """
    ranks = _with_rank(comm, "root", root)
    return call_fused(x, calls.Reduce(comm=ranks, op=op, root=root))


def bcast(x: Any, root: int = 0, *, comm: IntraComm = None) -> Any:
    """Broadcast the root's arrays.

    Args:
        x: the values on the root; on other ranks any values of the same shapes and dtypes.
        root: rank of the root.
        comm: the ranks.

    Raises:
        ExchangeMismatch: ranks pass different trees; on all ranks.
    """
    ranks = _with_rank(comm, "root", root)
    return call_fused(x, calls.Bcast(comm=ranks, root=root))


def allgather(x: Any, *, comm: IntraComm = None) -> Any:
    """Gather the arrays of all ranks on every rank, in a new first axis of one entry per rank."""
    return call_fused(x, calls.Allgather(comm=communicator(comm)))


def gather(x: Any, root: int = 0, *, comm: IntraComm = None) -> Any:
    """Gather arrays on the root, in a new first axis; return zeros like ``x`` on others."""
    ranks = _with_rank(comm, "root", root)
    return call_fused(x, calls.Gather(comm=ranks, root=root))


def scatter(x: Any, root: int = 0, *, comm: IntraComm = None) -> Any:
    """Scatter the root's arrays: rank r gets entry r.

    Args:
        x: on the root, arrays whose first axis has one entry per rank; on other ranks any values of
            the shapes and dtypes of the result.
        root: rank of the root.
        comm: the ranks.

    Raises:
        ArgumentError: the root's first axis has a wrong length.
    """
    ranks = _with_rank(comm, "root", root)
    return call_fused(x, calls.Scatter(comm=ranks, root=root),
                      lead=int(ranks.rank == root))


def reduce_scatter(x: Any, op: MPI.Op = MPI.SUM, *, comm: IntraComm = None) -> Any:
    """Reduce the arrays of all ranks; rank r gets entry r along the first axis.

    Raises:
        ArgumentError: the first axis does not have one entry per rank.
        ArgumentTypeError: differentiation with an ``op`` other than ``MPI.SUM``.
    """
    return call_fused(x, calls.ReduceScatter(comm=communicator(comm), op=op), lead=1)


def alltoall(x: Any, *, comm: IntraComm = None) -> Any:
    """Send entry s of the first axis to rank s; return entry r from rank r.

    Raises:
        ArgumentError: the first axis does not have one entry per rank.
    """
    return call_fused(x, calls.Alltoall(comm=communicator(comm)), lead=1)


def scan(x: Any, op: MPI.Op = MPI.SUM, *, comm: IntraComm = None) -> Any:
    """Compute the inclusive scan: rank r gets the reduction of ranks 0 to r.

    Raises:
        ArgumentTypeError: differentiation with an ``op`` other than ``MPI.SUM``.
    """
    return call_fused(x, calls.Scan(comm=communicator(comm), op=op))


def barrier(*, comm: IntraComm = None) -> None:
    """Wait until all ranks have called ``barrier`` and all earlier calls have completed."""
    bind(calls.Barrier(comm=communicator(comm)), jnp.zeros(0))


def send(x: Any, dest: int, *, tag: int = 0, comm: IntraComm = None) -> None:
    """Send an array to a rank, which receives it with :func:`recv`.

    Raises:
        ArgumentTypeError: differentiation; :func:`sendrecv` is differentiable.
    """
    ranks = _with_rank(comm, "dest", dest, MPI.PROC_NULL)
    bind(calls.SendCall(comm=ranks, dest=dest, tag=tag), _lone(x))


def recv(x: Any, source: int = MPI.ANY_SOURCE, *, tag: int = MPI.ANY_TAG,
         comm: IntraComm = None) -> Any:
    """Receive an array.

    Args:
        x: any values of the shape and dtype of the message; not differentiable.
        source, tag: source and tag of the message.
        comm: the ranks.
    """
    ranks = _with_rank(comm, "source", source, MPI.PROC_NULL, MPI.ANY_SOURCE)
    return bind(calls.RecvCall(comm=ranks, source=source, tag=tag), _lone(x))


def sendrecv(sendbuf: Any, recvbuf: Any, source: int, dest: int, *, sendtag: int = 0,
             recvtag: int = 0, comm: IntraComm = None) -> Any:
    """Send one array and receive another one; the gradient is sent in reverse.

    Args:
        sendbuf: array for ``dest``.
        recvbuf: any values of the shape of the received array, and of the dtype of ``sendbuf``.
        source, dest: ranks; with ``MPI.PROC_NULL`` nothing is sent, or the result is zeros.
        sendtag, recvtag: tags of the messages.
        comm: the ranks.

    Raises:
        ArgumentTypeError: the arrays differ in dtype; or differentiation with any source or tag.
    """
    ranks = _with_rank(comm, "dest", dest, MPI.PROC_NULL)
    _with_rank(ranks, "source", source, MPI.PROC_NULL, MPI.ANY_SOURCE)
    sent, received = _lone(sendbuf), _lone(recvbuf)
    if sent.dtype != received.dtype:
        raise ArgumentTypeError("recvbuf", f"has type {received.dtype}, sendbuf {sent.dtype}",
                                "send and receive the same type")
    return bind(calls.Sendrecv(comm=ranks, dest=dest, source=source, sendtag=sendtag,
                               recvtag=recvtag, received=received.shape), sent)


def _lone(x: Any) -> Any:
    if isinstance(x, (list, tuple, dict)):
        raise ArgumentTypeError("x", "expected one array, got a tree",
                                "send each leaf, or use a collective")
    return jnp.asarray(x)


def _with_rank(comm: IntraComm, argument: str, rank: int, *others: int) -> Any:
    ranks = communicator(comm)
    if not (0 <= rank < ranks.size or rank in others):
        raise ArgumentError(argument, f"rank {rank} is not in a communicator of {ranks.size}")
    return ranks
