"""int8: 8-bit integers with one scale for each block, in two phases.

    wire   codes: int8 in two's complement; scale: float32, the block's largest magnitude / 127
           (:mod:`~hpccoll.training.compress.quantise`)
    law    |out - mean x| <= (mean of the terms' scales + scale of the result) / 2

There is no error feedback. Two phases send 2n(P-1)/P bytes; the allgather of PyTorch's quantisation
hook sends n(P-1). Source: Alistarh et al., 2017 (QSGD), for blocks; Dettmers, 2016, for 8 bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hpccoll.training.compress.quantise import dequantise_rows, quantise_rows
from hpccoll.training.compress.two_phase import TwoPhase


@dataclass(frozen=True)
class Int8(TwoPhase):
    """Scheme with 8-bit integers, four times smaller than float32.

    Attributes:
        block: largest number of elements with one scale.
    """

    name = "int8"
    carries_nan = True

    def code_bytes(self, count: int) -> int:
        return count

    def encode(self, rows: Any, scales: Any, random: Any) -> Any:
        return quantise_rows(rows, 8, False, scales)

    def decode(self, codes: Any, scales: Any, out: Any) -> None:
        dequantise_rows(codes, scales, 8, out)
