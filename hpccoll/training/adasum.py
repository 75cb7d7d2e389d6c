"""Adasum: adaptive summation of gradients by their directions.

After Maleki et al., MLSys 2021, and Horovod's ``adasum.h``:

    adasum(a, b) = (1 - a.b / 2|a|^2) a + (1 - a.b / 2|b|^2) b

for each array separately. Orthogonal gradients give the sum, parallel ones the mean. Ranks combine
in a binary tree with recursive halving: rank r pairs with r XOR 1, then with r XOR 2, and so on.
The lower rank of a pair holds ``a``. Each rank sends 2n(P-1)/P elements, as in a bandwidth-optimal
allreduce, and 24 bytes for each array and level squared. Ranks above the largest power of two
first add their vectors to those of a partner: 2n elements more.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy

from hpccoll.training.compress.scheme import (
    ITEMSIZE,
    Reduction,
    Scheme,
    Shapes,
    Steps,
    elements,
)

TAG = 3
#: A squared norm below this is treated as zero: it is too small to define a direction.
LEAST = math.sqrt(sys.float_info.min)


class _Combination(Reduction):
    """Adasum of one bucket; sends point-to-point messages on the communicator."""

    def __init__(self, scheme: Scheme, comm: Any, shapes: Shapes):
        super().__init__(scheme, comm, shapes)
        ends = numpy.cumsum([0, *(math.prod(shape) for shape in shapes)]).tolist()
        self.segments = list(zip(ends, ends[1:]))

    def _reduce(self, values: Any) -> Steps:
        rank, size = self.rank, self.size
        paired = 1 << (size.bit_length() - 1)
        if rank >= paired:
            yield self.comm.Isend(values, rank - paired, TAG)
            yield self.comm.Irecv(values, rank - paired, TAG)
            return
        if rank + paired < size:
            other = numpy.empty_like(values)
            yield self.comm.Irecv(other, rank + paired, TAG)
            whole = 0, len(values)
            self._combine(values, other, whole, self._products(values, other, whole))
        yield from self._pairs(values, rank, paired)
        if rank + paired < size:
            yield self.comm.Isend(values, rank + paired, TAG)

    def _pairs(self, values: Any, rank: int, paired: int) -> Steps:
        """Run the binary tree among a power of two ranks."""
        low, high = 0, len(values)
        halves = []
        level = 1
        while level < paired:
            peer, middle = rank ^ level, low + (high - low) // 2
            left = not rank & level
            kept, sent = (low, middle), (middle, high)
            if not left:
                kept, sent = sent, kept
            other = numpy.empty(kept[1] - kept[0], values.dtype)
            yield from self._swap(values[slice(*sent)], other, peer)
            mine = values[slice(*kept)]
            a, b = (mine, other) if left else (other, mine)
            products = self._products(a, b, kept)
            yield from self._sum(products, rank, level)
            self._combine(a, b, kept, products)
            if not left:
                mine[...] = a
            halves.append((peer, kept, sent))
            low, high = kept
            level *= 2
        for peer, kept, sent in reversed(halves):
            yield from self._swap(values[slice(*kept)], values[slice(*sent)], peer)

    def _swap(self, mine: Any, other: Any, peer: int) -> Steps:
        incoming = self.comm.Irecv(other, peer, TAG)
        yield self.comm.Isend(mine, peer, TAG)
        yield incoming

    def _sum(self, products: numpy.ndarray, rank: int, level: int) -> Steps:
        """Sum the products over the aligned block of ``2 * level`` ranks, bitwise equal on each."""
        other, distance = numpy.empty_like(products), 1
        while distance <= level:
            yield from self._swap(products, other, rank ^ distance)
            products += other
            distance *= 2

    def _pieces(self, held: tuple[int, int]) -> Iterator[tuple[int, slice]]:
        """Yield the index of each array that overlaps ``held``, with its slice in that part."""
        for number, (start, stop) in enumerate(self.segments):
            start, stop = max(start, held[0]), min(stop, held[1])
            if start < stop:
                yield number, slice(start - held[0], stop - held[0])

    def _products(self, a: Any, b: Any, held: tuple[int, int]) -> numpy.ndarray:
        """Return ``a.b``, ``|a|^2`` and ``|b|^2`` of each array in float64 over the held part."""
        products = numpy.zeros((len(self.segments), 3))
        for number, piece in self._pieces(held):
            x, y = a[piece].astype(numpy.float64), b[piece].astype(numpy.float64)
            products[number] = x @ y, x @ x, y @ y
        return products

    def _combine(self, a: Any, b: Any, held: tuple[int, int], products: numpy.ndarray) -> None:
        for number, piece in self._pieces(held):
            dot, aa, bb = products[number].tolist()
            a[piece] *= 1 - dot / (2 * aa) if aa >= LEAST else 1
            a[piece] += b[piece] * a.dtype.type(1 - dot / (2 * bb) if bb >= LEAST else 1)


@dataclass(frozen=True)
class Adasum(Scheme):
    """Adasum as a scheme without state."""

    name: ClassVar[str] = "adasum"
    carries_nan: ClassVar[bool] = True
    reduction = _Combination

    def wire_bytes(self, shapes: Shapes, size: int, step: int | None = None) -> float:
        levels = size.bit_length() - 1
        paired, vector = 1 << levels, ITEMSIZE * elements(shapes)
        pairs = 2 * vector * (paired - 1) + 24 * len(shapes) * paired * levels * (levels + 1) // 2
        return (pairs + 2 * vector * (size - paired)) / size
