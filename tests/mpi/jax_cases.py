"""Every collective of hpccoll.jax on small integers, and what is right of all ranks' operands."""

from typing import NamedTuple

import numpy


class Case(NamedTuple):
    """``call(hj, x, comm)`` on operands ``shape(rank, size, root)``; ``truth(operands, root)``."""

    name: str
    call: object
    shape: object
    truth: object


def _flat(rank, size, root):
    return (3,)


def _one_per_rank(rank, size, root):
    return (size, 2)


def _at_root(rank, size, root):
    return (size, 2) if rank == root else (2,)


def _only(root, value, operands):
    return [value if rank == root else numpy.zeros_like(x) for rank, x in enumerate(operands)]


def _gathered(xs, root):
    return _only(root, numpy.stack(xs), xs)


CASES = [
    Case("allreduce", lambda hj, x, comm, root: hj.allreduce(x, comm=comm), _flat,
         lambda xs, root: [sum(xs)] * len(xs)),
    Case("reduce", lambda hj, x, comm, root: hj.reduce(x, root=root, comm=comm), _flat,
         lambda xs, root: _only(root, sum(xs), xs)),
    Case("bcast", lambda hj, x, comm, root: hj.bcast(x, root, comm=comm), _flat,
         lambda xs, root: [xs[root]] * len(xs)),
    Case("allgather", lambda hj, x, comm, root: hj.allgather(x, comm=comm), _flat,
         lambda xs, root: [numpy.stack(xs)] * len(xs)),
    Case("gather", lambda hj, x, comm, root: hj.gather(x, root, comm=comm), _flat, _gathered),
    Case("scatter", lambda hj, x, comm, root: hj.scatter(x, root, comm=comm), _at_root,
         lambda xs, root: list(xs[root])),
    Case("reduce_scatter", lambda hj, x, comm, root: hj.reduce_scatter(x, comm=comm),
         _one_per_rank, lambda xs, root: list(sum(xs))),
    Case("alltoall", lambda hj, x, comm, root: hj.alltoall(x, comm=comm), _one_per_rank,
         lambda xs, root: [numpy.stack([x[rank] for x in xs]) for rank in range(len(xs))]),
    Case("scan", lambda hj, x, comm, root: hj.scan(x, comm=comm), _flat,
         lambda xs, root: list(numpy.cumsum(xs, axis=0))),
    Case("sendrecv", lambda hj, x, comm, root: hj.sendrecv(
        x, numpy.zeros(x.shape, x.dtype), (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size,
        comm=comm), _flat, lambda xs, root: [xs[rank - 1] for rank in range(len(xs))]),
]


def operands(case, size, root, dtype="float32"):
    """Distinct small integers on every rank."""
    return [numpy.arange(1, 1 + numpy.prod(case.shape(rank, size, root))).reshape(
        case.shape(rank, size, root)).astype(dtype) + 10 * rank for rank in range(size)]


def weights(results):
    """What every rank multiplies its result with, to make a loss of it."""
    return [numpy.arange(2, 2 + x.size).reshape(x.shape) * (rank + 1)
            for rank, x in enumerate(results)]


def gradient(case, size, root, rank):
    """Of the sum over ranks of their weighted results, one unit vector after the other."""
    zeros = [numpy.zeros_like(x) for x in operands(case, size, root)]
    result = numpy.zeros_like(zeros[rank])
    for index in numpy.ndindex(*result.shape):
        zeros[rank][index] = 1
        results = case.truth(zeros, root)
        result[index] = sum((w * x).sum() for w, x in zip(weights(results), results))
        zeros[rank][index] = 0
    return result
