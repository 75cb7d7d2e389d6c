"""What fp16 and bf16 share: the bucket is allreduced in a type of 16 bits.

    wire   16-bit floats, allreduced: 4n(P-1)/P bytes
    law    out = mean x, but for one rounding of every term, one of every partial sum that travels
           and one of the result, each by at most half of the type's epsilon

The library adds 16-bit floats in float32 and rounds what travels. There is no error feedback:
what rounding loses is lost, as in the hooks of Horovod and PyTorch DDP.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy
from mpi4py import MPI

from hpccoll.training.compress.quantise import namespace
from hpccoll.training.compress.scheme import (
    Reduction,
    Scheme,
    Shapes,
    Steps,
    allreduce_bytes,
    elements,
)


@dataclass(frozen=True)
class Cast(Scheme):
    """Travels in a type of 16 bits."""

    dense = carries_nan = True

    @abstractmethod
    def dtype(self) -> numpy.dtype:
        """The type that travels."""

    def divisor(self, size: int) -> float:
        """What terms are divided by before they are added; the sum is divided by the rest."""
        return 1.0

    def start(self, comm: Any, shapes: Shapes) -> Reduction:
        return _CastReduction(self, comm, shapes)

    def wire_bytes(self, shapes: Shapes, size: int, step: int | None = None) -> float:
        return allreduce_bytes(2 * elements(shapes), size)


class _CastReduction(Reduction):
    """One allreduce of a narrow copy."""

    def __init__(self, scheme: Cast, comm: Any, shapes: Shapes):
        super().__init__(scheme, comm, shapes)
        self.dtype, self.before = scheme.dtype(), scheme.divisor(self.size)
        self.narrow: Any = None

    def _reduce(self, values: Any) -> Steps:
        if self.narrow is None:
            self.narrow = namespace(values).empty(self.count, self.dtype)
        if self.before != 1:
            values /= self.before
        # What is beyond the type becomes infinity, which comes through.
        with numpy.errstate(over="ignore"):
            self.narrow[:] = values
        yield self.comm.Iallreduce(MPI.IN_PLACE, self.narrow)
        values[:] = self.narrow
        values /= self.size / self.before
