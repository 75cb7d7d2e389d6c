"""csc: allreduce the chunks with the largest L1 norms, summed over the ranks.

    1   n_c = |r_c|_1 of each chunk, allreduced
    2   the k largest sums, ties to the lower index: the same on all ranks
    3   these chunks, contiguous, allreduced

    wire   C = ceil(n / chunk) norms in float32, k = density * C chunks: (4C + 4 k chunk) 2(P-1)/P
           bytes; a short last chunk is padded. If k = C, one allreduce of all elements
    law    that of :mod:`~hpccoll.training.compress.sparse`, which also describes momentum
           correction and warm-up; density 1 is bitwise equal to no compression

Unlike the allgather of topk, messages do not grow with the number of ranks, and no indices are
sent. Source: GradientFlow (Sun et al., 2019), coarse-grained sparse communication, for the choice
of chunks, momentum correction and warm-up; masking is that of Deep Gradient Compression.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy
from mpi4py import MPI

from hpccoll.training.compress import select
from hpccoll.training.compress.quantise import namespace, slices
from hpccoll.training.compress.scheme import (
    ITEMSIZE,
    Reduction,
    Shapes,
    Steps,
    allreduce_bytes,
    elements,
)
from hpccoll.training.compress.sparse import MomentumCorrection, ResidualReduction

#: Size of a norm in bytes.
NORM = 4


@dataclass(frozen=True)
class Csc(MomentumCorrection):
    """Scheme that sends the chunks with the largest summed norms.

    Attributes:
        density, warmup, momentum, masking: see :mod:`~hpccoll.training.compress.sparse`; the
            density is a fraction of the chunks.
        chunk: elements of a chunk.
    """

    name = "csc"

    density: float = 0.1
    chunk: int = 1024

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check("chunk", self.chunk > 0, "a number of elements above 0")

    def start(self, comm: Any, shapes: Shapes) -> Reduction:
        return _CscReduction(self, comm, shapes)

    def wire_bytes(self, shapes: Shapes, size: int, step: int | None = None) -> float:
        count = elements(shapes)
        if not count:
            return 0
        chunk = min(self.chunk, count)
        chunks = -(-count // chunk)
        chosen = self.share(chunks, step)
        if chosen == chunks:
            return allreduce_bytes(count * ITEMSIZE, size)
        return allreduce_bytes(chunks * NORM + chosen * chunk * ITEMSIZE, size)


class _CscReduction(ResidualReduction):
    """Two allreduces: norms, then chunks."""

    def __init__(self, scheme: Csc, comm: Any, shapes: Shapes):
        super().__init__(scheme, comm, shapes)
        self.csc, self.momentum, self.masking = scheme, scheme.momentum, scheme.masking
        self.chunk = max(1, min(scheme.chunk, self.count))
        self.chunks = -(-self.count // self.chunk)

    def _reduce(self, values: Any) -> Steps:
        self._add_residual(values)
        chosen_count = self.csc.share(self.chunks, self.steps)
        if chosen_count == self.chunks:
            yield from self._allreduce_dense(values)
            return
        module = namespace(values)
        norms = self._norms(values)
        usable = bool(module.isfinite(norms).all())
        yield self.comm.Iallreduce(MPI.IN_PLACE, norms)
        if not bool(module.isfinite(norms).all()):
            yield from self.reject_nonfinite(not usable)
        chosen = select.select_largest(norms, chosen_count)
        packed = module.zeros((chosen_count, self.chunk), values.dtype)
        inside, rows, tail = self._split_chunks(values, chosen)
        packed[:inside.size] = rows[inside]
        packed[inside.size:, :tail.size] = tail
        yield self.comm.Iallreduce(MPI.IN_PLACE, packed)
        self._store_residual(values, chosen)
        values.fill(0)
        packed /= self.size
        rows[inside] = packed[:inside.size]
        if inside.size < chosen.size:
            tail[:] = packed[-1, :tail.size]

    def _norms(self, values: Any) -> Any:
        module = namespace(values)
        norms = module.empty(self.chunks, "f4")
        with numpy.errstate(over="ignore"):
            for first, rows in slices(values, self.chunk):
                norms[first:first + len(rows)] = module.abs(rows).sum(axis=1)
        return norms

    def _split_chunks(self, values: Any, chosen: Any) -> tuple[Any, Any, Any]:
        """Return the chosen full chunks, all full chunks, and the short last chunk."""
        whole = self.count // self.chunk
        rows, tail = values[:whole * self.chunk].reshape(whole, -1), values[whole * self.chunk:]
        return chosen[:int((chosen < whole).sum())], rows, tail

    def _clear(self, vector: Any, selected: Any) -> None:
        if isinstance(selected, slice):
            vector[selected] = 0
            return
        inside, rows, tail = self._split_chunks(vector, selected)
        rows[inside] = 0
        if inside.size < selected.size:
            tail.fill(0)
