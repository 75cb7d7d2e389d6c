"""onebit: signs with one scale for each block, and two-sided error feedback.

    wire   codes: bits, 1 for x >= 0, most significant bit first; scale: float32
    law    that of the two-phase mean (:mod:`~hpccoll.training.compress.two_phase`)

``scale="l2"`` is the root mean square, as in DeepSpeed; ``"l1"`` is the mean magnitude. L1 has the
smaller error in a single step, but more delay: with high learning rates and momentum it diverged
first (docs/training/compress.md).
Source: Seide et al., 2014 (1-bit SGD), Tang et al., 2021 (1-bit Adam).

Zero has no code: gradients that are always zero become noise around zero. Mask such elements, or
send them with another scheme.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy

from hpccoll.training.compress.quantise import expand, namespace
from hpccoll.training.compress.two_phase import TwoPhase


@dataclass(frozen=True)
class OneBit(TwoPhase):
    """Scheme with signs, 32 times smaller than float32.

    Attributes:
        block: largest number of elements with one scale.
        scale: ``"l1"`` or ``"l2"``, see the module.
    """

    name = "onebit"
    feedback = True

    block: int = 2048
    scale: str = "l2"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check("scale", self.scale in ("l1", "l2"), "l1 or l2")

    def code_bytes(self, count: int) -> int:
        return -(-count // 8)

    def encode(self, rows: Any, scales: Any, random: Any) -> Any:
        module = namespace(rows)
        if self.scale == "l1":
            scales[:] = module.einsum("ij->i", module.abs(rows)) / rows.shape[1]
        else:
            scales[:] = module.sqrt(module.einsum("ij,ij->i", rows, rows) / rows.shape[1])
        scales[~module.isfinite(scales)] = numpy.nan
        # All rows but a single short one are whole bytes, so they can be packed as one.
        return module.packbits((rows >= 0).ravel()).reshape(len(rows), -1)

    def decode(self, codes: Any, scales: Any, out: Any) -> None:
        expand(codes, _signs(namespace(out), out.dtype), out)
        out *= scales[:, None].astype(out.dtype)


@cache
def _signs(module: Any, dtype: Any) -> Any:
    """Return the table of the eight signs for each byte."""
    bits = numpy.unpackbits(numpy.arange(256, dtype="u1")[:, None], axis=1)
    return module.asarray((2.0 * bits - 1).astype(dtype))
