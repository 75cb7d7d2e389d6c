"""No compression: the bucket is allreduced as it is, and divided by the number of ranks.

    wire   float32, allreduced: 2nb(P-1)/P bytes
    law    out = mean x; NaN and infinity come through
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mpi4py import MPI

from hpccoll.training.compress.scheme import (
    ITEMSIZE,
    Reduction,
    Scheme,
    Shapes,
    Steps,
    allreduce_bytes,
    elements,
)


@dataclass(frozen=True)
class NoCompression(Scheme):
    """Travels as it is."""

    name = "none"
    dense = carries_nan = True

    def start(self, comm: Any, shapes: Shapes) -> Reduction:
        return Dense(self, comm, shapes)

    def wire_bytes(self, shapes: Shapes, size: int, step: int | None = None) -> float:
        return allreduce_bytes(elements(shapes) * ITEMSIZE, size)


class Dense(Reduction):
    """One allreduce."""

    def _reduce(self, values: Any) -> Steps:
        yield self.comm.Iallreduce(MPI.IN_PLACE, values)
        values /= self.size
