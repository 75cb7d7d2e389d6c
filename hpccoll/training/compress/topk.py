"""topk: allgather each rank's largest elements; accumulate the others.

    wire   k = density * n values, then k indices as uint32, allgathered: (P-1) k (4 + 4) bytes.
           Unused entries of a sampled selection have the index n. If pairs are not smaller than an
           allreduce of all elements, the step sends all elements
    law    that of :mod:`~hpccoll.training.compress.sparse`, which also describes momentum
           correction and warm-up

``method="exact"`` selects the k largest magnitudes; ``"sampled"`` selects those above a threshold
from a sample, which is faster and sends somewhat fewer. Contributions are added in rank order.
Source: Aji and Heafield, 2017; Lin et al., 2018 (Deep Gradient Compression).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy

from hpccoll.training.compress import select
from hpccoll.training.compress.quantise import namespace
from hpccoll.training.compress.scheme import (
    ITEMSIZE,
    Reduction,
    Shapes,
    Steps,
    allreduce_bytes,
    elements,
)
from hpccoll.training.compress.sparse import MomentumCorrection, ResidualReduction, all_finite

#: Size of an index in bytes.
INDEX = 4


@dataclass(frozen=True)
class TopK(MomentumCorrection):
    """Scheme that sends the largest elements of each rank.

    Attributes:
        density, warmup, momentum, masking: see :mod:`~hpccoll.training.compress.sparse`.
        method: ``"exact"`` or ``"sampled"``.
    """

    name = "topk"

    method: str = "exact"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check("method", self.method in ("exact", "sampled"), "exact or sampled")

    def start(self, comm: Any, shapes: Shapes) -> Reduction:
        return _TopKReduction(self, comm, shapes)

    def wire_bytes(self, shapes: Shapes, size: int, step: int | None = None) -> float:
        count = elements(shapes)
        if not count:
            return 0
        everything = allreduce_bytes(count * ITEMSIZE, size)
        return min(everything, (size - 1) * self.share(count, step) * (ITEMSIZE + INDEX))


class _TopKReduction(ResidualReduction):
    """One allgather of values and indices."""

    def __init__(self, scheme: TopK, comm: Any, shapes: Shapes):
        super().__init__(scheme, comm, shapes)
        self.topk, self.momentum, self.masking = scheme, scheme.momentum, scheme.masking

    def _reduce(self, values: Any) -> Steps:
        self._add_residual(values)
        count = self.topk.share(self.count, self.steps)
        nbytes = count * (values.itemsize + INDEX)
        if self.size * nbytes >= 2 * self.count * values.itemsize:
            yield from self._allreduce_dense(values)
            return
        module, split = namespace(values), count * values.itemsize
        usable = all_finite(values)
        sent = module.empty(nbytes, "u1")
        chosen = self._select(values, count) if usable else module.arange(0)
        # Send NaN if selection fails, so that all ranks detect it.
        sent[:split].view(values.dtype)[:] = 0 if usable else numpy.nan
        sent[:split].view(values.dtype)[:chosen.size] = values[chosen]
        sent[split:].view("u4")[:] = self.count
        sent[split:].view("u4")[:chosen.size] = chosen
        received = module.empty((self.size, nbytes), "u1")
        yield self.comm.Iallgather(sent, received)
        parts, places = received[:, :split].view(values.dtype), received[:, split:].view("u4")
        with numpy.errstate(over="ignore"):
            most = module.abs(parts).max(axis=1).sum()
        if not bool(module.isfinite(most)):
            yield from self.reject_nonfinite(not usable)
        self._store_residual(values, chosen)
        values.fill(0)
        for part, indices in zip(parts, places):
            used = int(module.searchsorted(indices, self.count))
            values[indices[:used]] += part[:used]
        values /= self.size

    def _select(self, values: Any, count: int) -> Any:
        chooses = select.select_largest if self.topk.method == "exact" else select.select_sampled
        return chooses(namespace(values).abs(values), count)
