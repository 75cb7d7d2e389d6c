"""The collectives, under the names of mpi4jax, for arrays and for trees of arrays.

All work at once, under ``jax.jit``, in ``lax.scan``, ``fori_loop``, ``while_loop`` and ``cond``,
under ``jax.vmap``, and with ``jax.grad`` and ``jax.jvp`` as linear maps (an operator must add).
A gradient is that of the *sum over ranks* of what their functions return, as with
``jax.lax.psum``: where every rank returns the same loss, divide it by the number of ranks, or
return it on one rank and 0 times it on the others.

Every function takes an array, or a tree of them that travels as one vector for each type.
``comm`` is any intracommunicator, by default :func:`hpccoll.jax.world`. Operands are not changed.
An error inside of a compiled function comes as ``jax.errors.JaxRuntimeError`` with the text of
hpccoll's, when its result is looked at.
"""

from __future__ import annotations

from typing import Any

from jax import numpy as jnp
from mpi4py import MPI

from hpccoll.errors import ArgumentError, ArgumentTypeError
from hpccoll.jax import calls
from hpccoll.jax.communicator import communicator
from hpccoll.jax.fusion import fused
from hpccoll.jax.primitive import bind

IntraComm = MPI.Intracomm | None


def allreduce(x: Any, op: MPI.Op = MPI.SUM, *, comm: IntraComm = None) -> Any:
    """Combine what all ranks have; every rank gets the result, in the shapes of ``x``.

    Args:
        x: the same shapes and types on every rank.
        op: how elements combine; ``MPI.SUM`` has derivatives.
        comm: the ranks.

    Raises:
        ArgumentTypeError: differentiated, and ``op`` is not ``MPI.SUM``.
        ExchangeMismatch: ranks pass different trees; on all ranks.
    """
    ranks = communicator(comm)
    return fused(x, calls.Allreduce(comm=ranks, op=op))


def reduce(x: Any, op: MPI.Op = MPI.SUM, root: int = 0, *, comm: IntraComm = None) -> Any:
    """Combine what all ranks have; the root gets the result, other ranks zeros.

    Args and errors: those of :func:`allreduce`, and ``root``.
    """
    ranks = communicator(comm)
    _check_rank("root", root, ranks)
    return fused(x, calls.Reduce(comm=ranks, op=op, root=root))


def bcast(x: Any, root: int = 0, *, comm: IntraComm = None) -> Any:
    """Give every rank what the root has.

    Args:
        x: on the root the values, on other ranks anything of the same shapes and types.
        root: whose values count.
        comm: the ranks.

    Raises:
        ExchangeMismatch: ranks pass different trees; on all ranks.
    """
    ranks = communicator(comm)
    _check_rank("root", root, ranks)
    return fused(x, calls.Bcast(comm=ranks, root=root))


def allgather(x: Any, *, comm: IntraComm = None) -> Any:
    """Give every rank what all have: results have a new first axis, with an entry per rank."""
    ranks = communicator(comm)
    return fused(x, calls.Allgather(comm=ranks))


def gather(x: Any, root: int = 0, *, comm: IntraComm = None) -> Any:
    """Give the root what all have, in a new first axis; other ranks get zeros like ``x``."""
    ranks = communicator(comm)
    _check_rank("root", root, ranks)
    return fused(x, calls.Gather(comm=ranks, root=root))


def scatter(x: Any, root: int = 0, *, comm: IntraComm = None) -> Any:
    """Give rank r entry r of what the root has.

    Args:
        x: on the root, arrays whose first axis has an entry per rank; on other ranks anything of
            the shapes and types of the result.
        root: whose values count.
        comm: the ranks.

    Raises:
        ArgumentError: the root's first axis has another length.
    """
    ranks = communicator(comm)
    _check_rank("root", root, ranks)
    return fused(x, calls.Scatter(comm=ranks, root=root),
                 lead=int(ranks.rank == root))


def reduce_scatter(x: Any, op: MPI.Op = MPI.SUM, *, comm: IntraComm = None) -> Any:
    """Combine what all ranks have; rank r gets entry r along the first axis.

    Raises:
        ArgumentError: the first axis has not one entry per rank.
        ArgumentTypeError: differentiated, and ``op`` is not ``MPI.SUM``.
    """
    ranks = communicator(comm)
    return fused(x, calls.ReduceScatter(comm=ranks, op=op),
                 lead=1)


def alltoall(x: Any, *, comm: IntraComm = None) -> Any:
    """Send entry s along the first axis to rank s; entry r of the result came from rank r.

    Raises:
        ArgumentError: the first axis has not one entry per rank.
    """
    ranks = communicator(comm)
    return fused(x, calls.Alltoall(comm=ranks), lead=1)


def scan(x: Any, op: MPI.Op = MPI.SUM, *, comm: IntraComm = None) -> Any:
    """Combine what ranks 0 to r have, on rank r.

    Raises:
        ArgumentTypeError: differentiated, and ``op`` is not ``MPI.SUM``.
    """
    ranks = communicator(comm)
    return fused(x, calls.Scan(comm=ranks, op=op))


def barrier(*, comm: IntraComm = None) -> None:
    """Go on when all ranks have come here, and the calls before it are over."""
    bind(calls.Barrier(comm=communicator(comm)), jnp.zeros(0))


def send(x: Any, dest: int, *, tag: int = 0, comm: IntraComm = None) -> None:
    """Send an array to a rank, which receives it with :func:`recv`.

    Raises:
        ArgumentTypeError: differentiated; :func:`sendrecv` carries derivatives.
    """
    ranks = communicator(comm)
    _check_rank("dest", dest, ranks, MPI.PROC_NULL)
    bind(calls.SendCall(comm=ranks, dest=dest, tag=tag), _lone(x))


def recv(x: Any, source: int = MPI.ANY_SOURCE, *, tag: int = MPI.ANY_TAG,
         comm: IntraComm = None) -> Any:
    """Receive an array.

    Args:
        x: anything of the shape and the type of what comes; no derivative goes through it.
        source, tag: of the message.
        comm: the ranks.
    """
    ranks = communicator(comm)
    _check_rank("source", source, ranks, MPI.PROC_NULL, MPI.ANY_SOURCE)
    return bind(calls.RecvCall(comm=ranks, source=source, tag=tag), _lone(x))


def sendrecv(sendbuf: Any, recvbuf: Any, source: int, dest: int, *, sendtag: int = 0,
             recvtag: int = 0, comm: IntraComm = None) -> Any:
    """Send one array and receive another one; its derivative goes the other way.

    Args:
        sendbuf: what is sent to ``dest``.
        recvbuf: anything of the shape of what comes, and of the type of ``sendbuf``.
        source, dest: ranks; ``MPI.PROC_NULL`` for none, from which zeros come.
        sendtag, recvtag: of the messages.
        comm: the ranks.

    Raises:
        ArgumentTypeError: the arrays differ in type; or differentiated with any source or tag.
    """
    ranks = communicator(comm)
    _check_rank("dest", dest, ranks, MPI.PROC_NULL)
    _check_rank("source", source, ranks, MPI.PROC_NULL, MPI.ANY_SOURCE)
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


def _check_rank(argument: str, rank: int, comm: Any, *others: int) -> None:
    if not (0 <= rank < comm.size or rank in others):
        raise ArgumentError(argument, f"rank {rank} is not in a communicator of {comm.size}")
