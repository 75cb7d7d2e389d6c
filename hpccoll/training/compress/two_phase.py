"""int8, onebit and dithering: coded chunks to their owners, which return coded means.

    1   v_i = x_i + e_i, coded in records of one block each; all ranks send chunk j to rank j
    2   owner j: a = mean_i D(C(v_i)) + s_j, coded; allgather of the chunks
    out = D(C(a)),  e_i = v_i - D(C(v_i)),  s_j = a - D(C(a))

Decoded values are added, with only two roundings for any number of ranks; an allgather of codes
would send P/2 times as much. This is the 1-bit allreduce of DeepSpeed (Tang et al., 1-bit Adam,
2021, from its source), generalized to any code.

    wire   blocks B = ceil(n / block) of w bytes: an alltoall and an allgather, 2Bw(P-1)/P bytes.
           A record is the codes of a block, then its scale in float32; the codes of a short last
           block are padded. No block is longer than a rank's even share of the bucket
    law    with feedback: sum mean x - sum out = mean e_i + s (chunks of all owners)

A NaN scale marks a block with non-finite values. Without feedback it is preserved; with feedback
all ranks detect it in phase 2 and reject the step.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy
from mpi4py import MPI

from hpccoll.training.compress.quantise import (
    dequantise_rows,
    expand,
    namespace,
    pack,
    packed_bytes,
    quantise_rows,
    slices,
    unpack,
)
from hpccoll.training.compress.scheme import Reduction, Scheme, Shapes, Steps, elements

#: Size of a scale in bytes.
SCALE = 4


class _TwoPhaseReduction(Reduction):
    """Records of one bucket; the records that a rank owns are contiguous."""

    def __init__(self, scheme: TwoPhase, comm: Any, shapes: Shapes):
        super().__init__(scheme, comm, shapes)
        self.code = scheme
        if not self.count:
            return
        self.block = scheme.block_length(self.count, self.size)
        self.width = scheme.code_bytes(self.block) + SCALE
        blocks = -(-self.count // self.block)
        first = [blocks * rank // self.size for rank in range(self.size + 1)]
        self.mine = first[self.rank + 1] - first[self.rank]
        self.owned = slice(min(first[self.rank] * self.block, self.count),
                           min(first[self.rank + 1] * self.block, self.count))
        self.records = slice(first[self.rank], first[self.rank + 1])
        self.byte_counts = [(last - one) * self.width for one, last in zip(first, first[1:])]
        self.byte_starts = [one * self.width for one in first[:-1]]
        self.mean: Any = None

    def _allocate(self, values: Any) -> None:
        module, blocks = namespace(values), sum(self.byte_counts) // self.width
        self.mean = values[self.owned].copy()
        self.sent = module.zeros((blocks, self.width), "u1")
        self.received = module.empty((self.size * self.mine, self.width), "u1")
        self.means = module.zeros((self.mine, self.width), "u1")
        self.gathered = module.empty((blocks, self.width), "u1")

    def _reduce(self, values: Any) -> Steps:
        if self.mean is None or self.mean.dtype != values.dtype:
            self._allocate(values)
        feedback = self.code.feedback
        error = self.vector("error", values) if feedback else None
        owner_error = self.vector("owner_error", values[self.owned]) if feedback else None
        self._encode(values, error, self.sent)
        share = self.mine * self.width
        yield self.comm.Ialltoallv(
            [self.sent, (self.byte_counts, self.byte_starts), MPI.BYTE],
            [self.received, ([share] * self.size, [share * rank for rank in range(self.size)]),
             MPI.BYTE])
        self._encode(self.mean, owner_error, self.means, self.received)
        yield self.comm.Iallgatherv(
            [self.means, MPI.BYTE], [self.gathered, (self.byte_counts, self.byte_starts), MPI.BYTE])
        if feedback:
            if not bool(namespace(values).isfinite(self._scales(self.gathered)).all()):
                yield from self.reject_nonfinite(bool(numpy.isnan(self._scales(self.sent)).any()))
            self._store_errors(error, values)
            self._store_errors(owner_error, self.mean)
        for rows, records in self._pieces(values, self.gathered):
            self._decode(records, rows)

    def _store_errors(self, error: Any, lost: Any) -> None:
        error[:] = lost

    def _encode(self, values: Any, error: Any, records: Any, received: Any = None) -> None:
        """Code a vector in pieces that fit into the cache.

        Args:
            values: the vector; with feedback it is replaced by the coding errors.
            received: coded vectors of all ranks; ``values`` is first set to their mean.
        """
        random = self.code.generator(self.steps, self.count, self.rank, 1 + (received is not None))
        errors = self._pieces(values if error is None else error, records)
        first = 0
        with numpy.errstate(all="ignore"):  # values without a code are visible in the scales
            for (rows, places), (late, _) in zip(self._pieces(values, records), errors):
                spare = namespace(rows).empty_like(rows)
                if received is not None:
                    self._mean(received, first, rows, spare)
                if error is not None:
                    rows += late
                scales = self._scales(places)
                codes = self.code.encode(rows, scales, random)
                places[:, :codes.shape[1]] = codes
                if error is not None:
                    self.code.decode(codes, scales, spare)
                    rows -= spare
                first += len(rows)

    def _mean(self, received: Any, first: int, rows: Any, spare: Any) -> None:
        """Compute the mean over all ranks of some owned rows, added in rank order."""
        rows.fill(0)
        for records in received.reshape(self.size, self.mine, self.width):
            self._decode(records[first:first + len(rows)], spare)
            rows += spare
        rows /= self.size

    def _decode(self, records: Any, rows: Any) -> None:
        codes = records[:, :self.code.code_bytes(rows.shape[1])]
        self.code.decode(codes, self._scales(records), rows)

    def _pieces(self, values: Any, records: Any) -> Iterator[tuple[Any, Any]]:
        """Yield rows of a vector and their records."""
        for first, rows in slices(values, self.block):
            yield rows, records[first:first + len(rows)]

    def _scales(self, records: Any) -> Any:
        return records[:, self.width - SCALE:].view("f4")[:, 0]

    def residual(self) -> Any:
        held = super().residual()
        if held is not None and "owner_error" in self.vectors:
            held[self.owned] += self.size * self.vectors["owner_error"]  # counts once in the mean
        return held

    def state(self) -> dict[str, Any]:
        state = super().state()
        if "owner_error" in state:
            whole = namespace(self.vectors["error"]).empty_like(self.vectors["error"])
            each = self.comm.allgather((self.owned.start, self.owned.stop))
            self.comm.Allgatherv(state["owner_error"], [whole, (
                [stop - start for start, stop in each], [start for start, _ in each])])
            state["owner_error"] = whole
        return state

    def load(self, state: dict[str, Any]) -> None:
        super().load(state)
        if "owner_error" in self.vectors:
            self.vectors["owner_error"] = self.vectors["owner_error"][self.owned].copy()

@dataclass(frozen=True)
class TwoPhase(Scheme):
    """Scheme with a block code."""

    block: int = 256

    #: Block lengths are multiples of this, so that codes are whole 4-byte words.
    multiple = 32
    #: Error feedback: coding errors are added to the next step's values.
    feedback = False
    reduction = _TwoPhaseReduction

    def __post_init__(self) -> None:
        self.check("block", self.block > 0 and self.block % self.multiple == 0,
                   f"a multiple of {self.multiple}")

    @abstractmethod
    def code_bytes(self, count: int) -> int:
        """Return the size of the codes of ``count`` elements of a block in bytes."""

    @abstractmethod
    def encode(self, rows: Any, scales: Any, random: Any) -> Any:
        """Code each row as one block and fill ``scales``; return rows of bytes.

        A scale is NaN if and only if the row holds NaN or infinity.

        Args:
            rows: rows of floats.
            scales: float32 vector, written.
        """

    @abstractmethod
    def decode(self, codes: Any, scales: Any, out: Any) -> None:
        """Write the decoded rows to the rows of ``out``; a NaN scale decodes to NaN."""

    def generator(self, *place: int) -> Any:
        """Return the random generator for one vector, if the code needs one."""

    def block_length(self, count: int, size: int) -> int:
        """Return the block length for ``count`` elements on ``size`` ranks."""
        share = -(-count // size)
        return min(self.block, -(-share // self.multiple) * self.multiple)

    def wire_bytes(self, shapes: Shapes, size: int, step: int | None = None) -> float:
        count = elements(shapes)
        if not count:
            return 0
        block = self.block_length(count, size)
        record = self.code_bytes(block) + SCALE
        return 2 * -(-count // block) * record * (size - 1) / size


@dataclass(frozen=True)
class Int8(TwoPhase):
    """8-bit integers, with the block's largest magnitude / 127 as its scale.

    wire: codes in two's complement (:mod:`~hpccoll.training.compress.quantise`).
    law: |out - mean x| <= (mean of the terms' scales + scale of the result) / 2.
    Source: Alistarh et al., 2017 (QSGD), for blocks; Dettmers, 2016, for 8 bits.
    """

    name = "int8"
    carries_nan = True

    def code_bytes(self, count: int) -> int:
        return count

    def encode(self, rows: Any, scales: Any, random: Any) -> Any:
        return quantise_rows(rows, 8, scales)

    def decode(self, codes: Any, scales: Any, out: Any) -> None:
        dequantise_rows(codes, scales, 8, out)


@dataclass(frozen=True)
class OneBit(TwoPhase):
    """Signs, with two-sided error feedback; 32 times smaller than float32.

    wire: bits, 1 for x >= 0, most significant bit first.

    ``scale="l2"`` is the root mean square, as in DeepSpeed; ``"l1"`` is the mean magnitude. L1 has
    the smaller error in a single step, but more delay: with high learning rates and momentum it
    diverged first (docs/training/compress.md). Zero has no code: gradients that are always zero
    become noise around zero. Mask such elements, or send them with another scheme.
    Source: Seide et al., 2014 (1-bit SGD), Tang et al., 2021 (1-bit Adam).
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


@dataclass(frozen=True)
class DitheringScheme(TwoPhase):
    """Unbiased stochastic rounding to a few levels in each block.

        linear    levels 0, 1, ... s;                 y = s |x| / norm
        natural   levels 0, 1, 2, 4, ... 2^(s-1);     y = 2^(s-1) |x| / norm
        both      rounded to a neighbouring level with probabilities that preserve the mean;
                  the result is sign * level * norm / (the highest level)

    wire: codes of ``bits`` bits (2, 4 or 8; natural 2 or 4): the sign, then the index of the level,
    of s + 1 = 2^(bits-1). BytePS's Elias codes have data-dependent lengths.
    law: E[out] = mean x; the error of a code is less than the distance of two levels.

    ``norm`` is the block's largest magnitude (``"max"``) or its L2 norm, with which most codes are
    zero. There is no error feedback: BytePS reports that it diverged with L2.
    Source: Alistarh et al., 2017 (QSGD); Horvath et al., 2019 (natural).
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
