"""powersgd: low-rank approximation of matrices by one step of power iteration.

    v = x + e, split into matrices M (a x c: the first axis, and all others), r = min(rank, a, c)
    1   Q <- orthonormal(Q);  P = M Q, allreduced
    2   P <- orthonormal(P);  Q = M^T P, allreduced, divided by the number of ranks
    out = P Q^T,  e = v - out;  the next step starts with Q

    wire   first allreduce: uncompressed arrays, then P of each matrix; second: Q of each matrix.
           A matrix is compressed if rate * r (a + c) < a c. In total
           2 * 4 * (rest + sum r (a + c)) (P-1)/P bytes; dense steps send all elements
    law    sum mean x - sum out = mean e

Q is initialised from the seed, with the same random numbers on all ranks. The first ``dense_steps``
steps send all elements: early gradients are large and change direction fast. Each rank computes
P Q^T from the same bits, so bitwise equal results need the same processor type and BLAS on all
ranks.
Source: Vogels et al., 2019 (PowerSGD); parameters as in PyTorch's hook.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy
from mpi4py import MPI

from hpccoll.training.compress.quantise import namespace
from hpccoll.training.compress.scheme import (
    ITEMSIZE,
    Reduction,
    Scheme,
    Shapes,
    Steps,
    all_finite,
    allreduce_bytes,
    elements,
)


class Matrix(NamedTuple):
    """Array that is sent as a product of thin matrices.

    Attributes:
        array: its index in the bucket.
        start: its offset in the bucket in elements.
        rows, columns: shape of the matrix.
        rank: columns of the thin matrices.
    """

    array: int
    start: int
    rows: int
    columns: int
    rank: int


class _PowerSgdReduction(Reduction):
    """Two allreduces for any number of matrices."""

    scheme: PowerSgd

    def __init__(self, scheme: PowerSgd, comm: Any, shapes: Shapes):
        super().__init__(scheme, comm, shapes)
        self.matrices = scheme.matrices(shapes)
        self.bases: dict[int, Any] = {}
        # Uncompressed elements: everything between matrices.
        ends = [0, *(one.start + one.rows * one.columns for one in self.matrices)]
        starts = [*(one.start for one in self.matrices), self.count]
        self.rest = [slice(end, start) for end, start in zip(ends, starts) if end < start]

    def _reduce(self, values: Any) -> Steps:
        values += self.vector("error", values)
        if not self.matrices or self.steps < self.scheme.dense_steps:
            yield from self._allreduce_all(values)
            return
        module = namespace(values)
        matrices = [self._matrix(values, one) for one in self.matrices]
        rest = [values[where] for where in self.rest]
        dense = sum(one.size for one in rest)
        bases = [self._base(one, values) for one in self.matrices]
        # Infinity times zero is detected in the result.
        with numpy.errstate(all="ignore"):
            products = [(matrix @ base).ravel() for matrix, base in zip(matrices, bases)]
        sums = module.concatenate([*rest, *products])
        yield self.comm.Iallreduce(MPI.IN_PLACE, sums)
        if not all_finite(sums):
            yield from self.reject_nonfinite(not all_finite(values))
        lefts = [orthonormalise(left)
                 for left in split_matrices(sums[dense:], self.matrices, "rows")]
        rights = module.concatenate([(matrix.T @ left).ravel()
                                     for matrix, left in zip(matrices, lefts)])
        yield self.comm.Iallreduce(MPI.IN_PLACE, rights)
        if not all_finite(rights):
            yield from self.reject_nonfinite(False)
        rights /= self.size
        sums[:dense] /= self.size
        error, start = self.vectors["error"], 0
        for where in self.rest:
            error[where] = 0
            values[where] = sums[start:start + where.stop - where.start]
            start += where.stop - where.start
        for one, matrix, left, right in zip(self.matrices, matrices, lefts,
                                            split_matrices(rights, self.matrices, "columns")):
            mean = left @ right.T
            module.subtract(matrix, mean, out=self._matrix(error, one))
            matrix[...] = mean
            self.bases[one.array] = right

    def _allreduce_all(self, values: Any) -> Steps:
        usable = all_finite(values)
        yield self.comm.Iallreduce(MPI.IN_PLACE, values)
        if not all_finite(values):
            yield from self.reject_nonfinite(not usable)
        values /= self.size
        self.vectors["error"].fill(0)

    def _matrix(self, values: Any, one: Matrix) -> Any:
        return values[one.start:one.start + one.rows * one.columns].reshape(one.rows, one.columns)

    def _base(self, one: Matrix, values: Any) -> Any:
        base = self.bases.get(one.array) if self.scheme.warm_start else None
        if base is None or base.shape != (one.columns, one.rank):
            seeds = [self.scheme.seed, one.rows, one.columns, self.steps]
            random = numpy.random.Generator(numpy.random.SFC64(seeds))
            base = namespace(values).asarray(random.standard_normal((one.columns, one.rank)))
        return orthonormalise(base.astype(values.dtype))

    def state(self) -> dict[str, Any]:
        bases = [self.bases.get(array) for array in range(len(self.shapes))]
        return {**super().state(), "bases": [one if one is None else one.copy() for one in bases]}

    def load(self, state: dict[str, Any]) -> None:
        super().load(state)
        bases = state.get("bases", [])
        self.bases = {array: one.copy() for array, one in enumerate(bases) if one is not None}


@dataclass(frozen=True)
class PowerSgd(Scheme):
    """Scheme with low-rank approximations.

    Attributes:
        rank: largest number of columns of a thin matrix.
        dense_steps: uncompressed steps at the start.
        rate: minimum compression rate of a matrix.
        warm_start: start with the last step's Q instead of a new one.
        seed: seed of the first Q.
    """

    name = "powersgd"
    reduction = _PowerSgdReduction

    rank: int = 2
    dense_steps: int = 10
    rate: float = 2.0
    warm_start: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        self.check("rank", self.rank > 0, "1 or more")
        self.check("dense_steps", self.dense_steps >= 0, "0 or more steps")
        self.check("rate", self.rate > 0, "above 0")
        self.check("seed", self.seed >= 0, "0 or more")

    @property
    def warmup_steps(self) -> int:
        return self.dense_steps

    def matrices(self, shapes: Shapes) -> list[Matrix]:
        """Return the arrays that are compressed."""
        found, start = [], 0
        for array, shape in enumerate(shapes):
            count = math.prod(shape)
            if len(shape) > 1 and count:
                rows, columns = shape[0], count // shape[0]
                rank = min(self.rank, rows, columns)
                if self.rate * rank * (rows + columns) < count:
                    found.append(Matrix(array, start, rows, columns, rank))
            start += count
        return found

    def wire_bytes(self, shapes: Shapes, size: int, step: int | None = None) -> float:
        count = elements(shapes)
        if step is None or step >= self.dense_steps:
            count += sum(one.rank * (one.rows + one.columns) - one.rows * one.columns
                         for one in self.matrices(shapes))
        return allreduce_bytes(count * ITEMSIZE, size)


def orthonormalise(matrix: Any) -> Any:
    """Return an orthonormal basis of the column space of ``matrix``.

    Linearly dependent columns are replaced by others.
    """
    return namespace(matrix).linalg.qr(matrix)[0]


def split_matrices(vector: Any, matrices: list[Matrix], side: str) -> list[Any]:
    """Split a vector into thin matrices; ``side`` gives their number of rows."""
    parts, start = [], 0
    for one in matrices:
        stop = start + getattr(one, side) * one.rank
        parts.append(vector[start:stop].reshape(-1, one.rank))
        start = stop
    return parts
