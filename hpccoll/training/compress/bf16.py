"""bf16: the bucket is allreduced in bfloat16 (:mod:`~hpccoll.training.compress.cast`).

The range of float32 with eight bits of precision: nothing overflows, no loss scale is needed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy

from hpccoll.errors import ArgumentError
from hpccoll.training.compress.cast import Cast


@dataclass(frozen=True)
class Bf16(Cast):
    """Travels in bfloat16."""

    name = "bf16"

    def dtype(self) -> numpy.dtype:
        try:
            import ml_dtypes
        except ImportError:
            raise ArgumentError("compress", "'bf16' needs the package ml_dtypes, which is not "
                                "installed", "install it, or choose 'fp16'") from None
        return numpy.dtype(ml_dtypes.bfloat16)
