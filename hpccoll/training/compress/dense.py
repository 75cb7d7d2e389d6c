"""none, fp16 and bf16: every element travels, as it is or in a type of 16 bits.

    wire   none: float32, allreduced: 2nb(P-1)/P bytes; fp16, bf16: 16-bit floats, 4n(P-1)/P bytes
    law    out = mean x; with 16 bits, but for one rounding of every term, one of every partial sum
           that travels and one of the result, each by at most half of the type's epsilon

NaN and infinity come through. The library adds 16-bit floats in float32 and rounds what travels.
There is no error feedback: what rounding loses is lost, as in the hooks of Horovod and PyTorch DDP.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy
from mpi4py import MPI

from hpccoll.errors import ArgumentError
from hpccoll.training.compress.quantise import namespace
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


@dataclass(frozen=True)
class Fp16(Cast):
    """Travels in float16: eleven bits of precision, but nothing above 65,504.

    So that sums of many ranks stay below, terms are divided by a power of two near the root of P
    beforehand, and sums by the rest (PyTorch FSDP's division in two steps). What is below 6e-8
    after the first division is lost: scale the loss.
    """

    name = "fp16"

    def dtype(self) -> numpy.dtype:
        return numpy.dtype("f2")

    def divisor(self, size: int) -> float:
        """The least power of two whose square is at least ``size``.

        >>> [Fp16().divisor(size) for size in (1, 2, 4, 5, 64)]
        [1.0, 2.0, 2.0, 4.0, 8.0]
        """
        return 2.0 ** (((size - 1).bit_length() + 1) // 2)


@dataclass(frozen=True)
class Bf16(Cast):
    """Travels in bfloat16: the range of float32 with eight bits of precision, no loss scale."""

    name = "bf16"

    def dtype(self) -> numpy.dtype:
        try:
            import ml_dtypes
        except ImportError:
            raise ArgumentError("compress", "'bf16' requires the package ml_dtypes, which is not "
                                "installed", "install it, or choose 'fp16'") from None
        return numpy.dtype(ml_dtypes.bfloat16)


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
