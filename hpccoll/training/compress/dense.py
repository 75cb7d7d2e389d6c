"""none, fp16 and bf16: send all elements, unchanged or in a 16-bit type.

    wire   none: float32, allreduced: 2nb(P-1)/P bytes; fp16, bf16: 16-bit floats, 4n(P-1)/P bytes
    law    out = mean x; with 16 bits each term, each partial sum that is sent and the result are
           rounded once, with an error of at most half of the type's epsilon

NaN and infinity are preserved. The library adds 16-bit floats in float32 and rounds partial sums
before sending. There is no error feedback, as in the hooks of Horovod and PyTorch DDP.
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


class _DenseReduction(Reduction):
    """One allreduce."""

    def _reduce(self, values: Any) -> Steps:
        yield self.comm.Iallreduce(MPI.IN_PLACE, values)
        values /= self.size


@dataclass(frozen=True)
class NoCompression(Scheme):
    """Sends elements unchanged."""

    name = "none"
    dense = carries_nan = True
    reduction = _DenseReduction

    def wire_bytes(self, shapes: Shapes, size: int, step: int | None = None) -> float:
        return allreduce_bytes(elements(shapes) * ITEMSIZE, size)


class _CastReduction(Reduction):
    """One allreduce of a 16-bit copy."""

    def __init__(self, scheme: Cast, comm: Any, shapes: Shapes):
        super().__init__(scheme, comm, shapes)
        self.dtype, self.before = scheme.dtype(), scheme.divisor(self.size)
        self.narrow: Any = None

    def _reduce(self, values: Any) -> Steps:
        if self.narrow is None:
            self.narrow = namespace(values).empty(self.count, self.dtype)
        if self.before != 1:
            values /= self.before
        # Values beyond the range become infinity, which is preserved.
        with numpy.errstate(over="ignore"):
            self.narrow[:] = values
        yield self.comm.Iallreduce(MPI.IN_PLACE, self.narrow)
        values[:] = self.narrow
        values /= self.size / self.before


@dataclass(frozen=True)
class Cast(Scheme):
    """Sends elements in a 16-bit type."""

    dense = carries_nan = True
    reduction = _CastReduction

    @abstractmethod
    def dtype(self) -> numpy.dtype:
        """Dtype of messages."""

    def divisor(self, size: int) -> float:
        """Return the divisor of terms; the sum is divided by ``size`` over this divisor."""
        return 1.0

    def wire_bytes(self, shapes: Shapes, size: int, step: int | None = None) -> float:
        return allreduce_bytes(2 * elements(shapes), size)


@dataclass(frozen=True)
class Fp16(Cast):
    """Sends float16: 11 bits of precision, largest value 65,504.

    To avoid overflow of sums, terms are first divided by a power of two near the root of P, and
    sums by the remaining factor (PyTorch FSDP's division in two steps). Values below 6e-8
    after the first division underflow: scale the loss.
    """

    name = "fp16"

    def dtype(self) -> numpy.dtype:
        return numpy.dtype("f2")

    def divisor(self, size: int) -> float:
        """Return the least power of two whose square is at least ``size``.

        >>> [Fp16().divisor(size) for size in (1, 2, 4, 5, 64)]
        [1.0, 2.0, 2.0, 4.0, 8.0]
        """
        return 2.0 ** (((size - 1).bit_length() + 1) // 2)


@dataclass(frozen=True)
class Bf16(Cast):
    """Sends bfloat16: float32's range with 8 bits of precision; needs no loss scale."""

    name = "bf16"

    def dtype(self) -> numpy.dtype:
        try:
            import ml_dtypes
        except ImportError:
            raise ArgumentError("compress", "'bf16' requires the package ml_dtypes, which is not "
                                "installed", "install it, or choose 'fp16'") from None
        return numpy.dtype(ml_dtypes.bfloat16)
