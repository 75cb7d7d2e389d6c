"""csc: whole chunks travel, those whose L1 norm is largest in the sum over the ranks.

    1   n_c = |r_c|_1 of every chunk, allreduced
    2   the k largest sums, of equal ones those with the lower index: the same on all ranks
    3   these chunks, one behind the other, allreduced

    wire   C = ceil(n / chunk) norms in float32, k = density * C chunks: (4C + 4 k chunk) 2(P-1)/P
           bytes; a short last chunk is filled up. Where k = C, one allreduce of everything
    law    that of :mod:`~hpccoll.training.compress.sparse`, where momentum correction and warm-up
           are described as well; density 1 gives the bits of no compression

Nothing grows with the number of ranks, as the allgather of topk does, and no index travels.
Source: GradientFlow (Sun et al., 2019): coarse-grained sparse communication. Which chunks it sends,
how it corrects momentum and that it warms up are known; masking is Deep Gradient Compression's.
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
from hpccoll.training.compress.sparse import Corrected, Residual

#: Bytes of a norm.
NORM = 4


@dataclass(frozen=True)
class Csc(Corrected):
    """The largest chunks of all ranks together.

    Attributes:
        density, warmup, momentum, masking: see :mod:`~hpccoll.training.compress.sparse`; the
            density is that of chunks.
        chunk: elements of one.
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


class _CscReduction(Residual):
    """Two allreduces: norms, then chunks."""

    def __init__(self, scheme: Csc, comm: Any, shapes: Shapes):
        super().__init__(scheme, comm, shapes)
        self.csc, self.momentum, self.masking = scheme, scheme.momentum, scheme.masking
        self.chunk = max(1, min(scheme.chunk, self.count))
        self.chunks = -(-self.count // self.chunk)

    def _reduce(self, values: Any) -> Steps:
        self._collect(values)
        chosen_count = self.csc.share(self.chunks, self.steps)
        if chosen_count == self.chunks:
            yield from self._dense(values)
            return
        module = namespace(values)
        norms = self._norms(values)
        usable = bool(module.isfinite(norms).all())
        yield self.comm.Iallreduce(MPI.IN_PLACE, norms)
        if not bool(module.isfinite(norms).all()):
            yield from self.refuse(not usable)
        chosen = select.largest(norms, chosen_count)
        packed = module.zeros((chosen_count, self.chunk), values.dtype)
        inside, rows, tail = self._places(values, chosen)
        packed[:inside.size] = rows[inside]
        packed[inside.size:, :tail.size] = tail
        yield self.comm.Iallreduce(MPI.IN_PLACE, packed)
        self._keep(values, chosen)
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

    def _places(self, values: Any, chosen: Any) -> tuple[Any, Any, Any]:
        """The chosen ones of the whole chunks, the whole chunks, and the short one behind them."""
        whole = self.count // self.chunk
        rows, tail = values[:whole * self.chunk].reshape(whole, -1), values[whole * self.chunk:]
        return chosen[:int((chosen < whole).sum())], rows, tail

    def _clear(self, vector: Any, selected: Any) -> None:
        if isinstance(selected, slice):
            vector[selected] = 0
            return
        inside, rows, tail = self._places(vector, selected)
        rows[inside] = 0
        if inside.size < selected.size:
            tail.fill(0)
