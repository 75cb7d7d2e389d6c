"""fp16: the bucket is allreduced in float16 (:mod:`~hpccoll.training.compress.cast`).

Eleven bits of precision, but nothing above 65,504: so that sums of many ranks stay below, terms are
divided by a power of two near the root of P beforehand, and sums by the rest (PyTorch FSDP's
division in two steps). What is below 6e-8 after the first division is lost: scale the loss.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy

from hpccoll.training.compress.cast import Cast


@dataclass(frozen=True)
class Fp16(Cast):
    """Travels in float16."""

    name = "fp16"

    def dtype(self) -> numpy.dtype:
        return numpy.dtype("f2")

    def divisor(self, size: int) -> float:
        """The least power of two whose square is at least ``size``.

        >>> [Fp16().divisor(size) for size in (1, 2, 4, 5, 64)]
        [1.0, 2.0, 2.0, 4.0, 8.0]
        """
        return 2.0 ** (((size - 1).bit_length() + 1) // 2)
