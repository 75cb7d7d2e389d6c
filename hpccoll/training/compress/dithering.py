"""dithering: unbiased stochastic rounding to a few levels in each block.

    linear    levels 0, 1, ... s;                 y = s |x| / norm
    natural   levels 0, 1, 2, 4, ... 2^(s-1);     y = 2^(s-1) |x| / norm
    both      rounded to a neighbouring level with probabilities that preserve the mean;
              the result is sign * level * norm / (the highest level)

    wire   codes of ``bits`` bits: the sign, then the index of the level, of s + 1 = 2^(bits-1);
           scale: norm / (the highest level). BytePS's Elias codes have data-dependent lengths
    law    E[out] = mean x; the error of a code is less than the distance of two levels

``norm`` is the block's largest magnitude or its L2 norm; with L2 most codes are zero. Random
generators are seeded by the seed, the step, the rank and the phase. There is no error feedback:
BytePS reports that it diverged with L2.
Source: Alistarh et al., 2017 (QSGD); Horvath et al., 2019 (natural).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy

from hpccoll.training.compress.quantise import expand, namespace, pack, packed_bytes, unpack
from hpccoll.training.compress.two_phase import TwoPhase


@dataclass(frozen=True)
class DitheringScheme(TwoPhase):
    """Scheme with stochastic rounding to levels.

    Attributes:
        block: largest number of elements with one scale.
        kind: ``"linear"`` or ``"natural"``.
        bits: bits of a code: 2, 4 or 8; natural codes have 2 or 4.
        norm: ``"max"`` or ``"l2"``.
        seed: seed of the random generators.
    """

    name = "dithering"
    carries_nan = True

    kind: str = "linear"
    bits: int = 4
    norm: str = "max"
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check("kind", self.kind in ("linear", "natural"), "linear or natural")
        self.check("bits", self.bits in ((2, 4, 8) if self.kind == "linear" else (2, 4)),
                   "2, 4 or 8; 2 or 4 for natural levels")
        self.check("seed", self.seed >= 0, "0 or more")
        self.check("norm", self.norm in ("max", "l2"), "max or l2")

    def code_bytes(self, count: int) -> int:
        return packed_bytes(count, self.bits)

    @property
    def _max_level(self) -> int:
        """Index of the highest level."""
        return (1 << self.bits - 1) - 1

    def generator(self, *place: int) -> Any:
        return numpy.random.Generator(numpy.random.SFC64([self.seed, *place]))

    def encode(self, rows: Any, scales: Any, random: Any) -> Any:
        module, linear = namespace(rows), self.kind == "linear"
        top = self._max_level if linear else 1 << self._max_level - 1
        size = module.abs(rows)
        if self.norm == "max":
            norm = size.max(axis=1)
        else:
            norm = module.sqrt(module.einsum("ij,ij->i", rows, rows))
        scales[:] = norm / top
        scales[scales == 0] = 1
        scales[~module.isfinite(scales)] = numpy.nan
        size /= scales[:, None].astype(rows.dtype)
        chance = module.asarray(random.random(rows.shape, "f4"))
        levels = _linear_levels(size, chance) if linear else _natural_levels(module, size, chance)
        codes = module.minimum(levels, self._max_level).astype("u1")
        codes |= (rows < 0).astype("u1") << self.bits - 1
        return codes if self.bits == 8 else pack(codes, self.bits)

    def decode(self, codes: Any, scales: Any, out: Any) -> None:
        expand(codes, _levels(namespace(out), out.dtype, self.bits, self.kind == "linear"), out)
        out *= scales[:, None].astype(out.dtype)


@cache
def _levels(module: Any, dtype: Any, bits: int, linear: bool) -> Any:
    """Return the table of signed levels for each byte."""
    levels = numpy.arange(1 << bits - 1, dtype=dtype)
    if not linear:
        levels[1:] = 2.0 ** (levels[1:] - 1)
    codes = unpack(numpy.arange(256, dtype="u1")[:, None], bits)
    return module.asarray(numpy.concatenate([levels, -levels])[codes])


def _linear_levels(size: Any, chance: Any) -> Any:
    """Return level indices: the integer below or above, at random."""
    size += chance
    return size


def _natural_levels(module: Any, size: Any, chance: Any) -> Any:
    """Return level indices: 0 for 0, e + 1 for 2^e."""
    fraction, exponent = module.frexp(size)
    # size = fraction * 2^exponent with fraction in [0.5, 1). Its relative position between
    # 2^(exponent-1) and 2^exponent is 2 * fraction - 1. Sizes below 1 are between 0 and 1.
    number = exponent + (2 * fraction - 1 > chance)
    return module.where(size < 1, size > chance, number)
