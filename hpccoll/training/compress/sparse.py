"""topk, randomk and csc: send some elements, accumulate the others in a residual.

    u <- m u + g      momentum correction, if enabled: the local velocity
    r <- r + u        the residual (u is g without momentum)
    out = mean of the selected r; there r <- 0, and u <- 0 (factor masking)

    law   sum mean u = sum out + mean r, masked or not; u is g without momentum. Bitwise if the
          sums are exact: selection does not round. Density 1 has the bits of no compression

Momentum correction replaces the optimizer's momentum, which would be applied to late gradients.
Masking clears the velocity of sent elements. The density decreases from 1 to its final value by a
constant factor during the warm-up steps. Source: Lin et al. (2018).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy
from mpi4py import MPI

from hpccoll.training.compress.quantise import namespace, slices
from hpccoll.training.compress.scheme import (
    ITEMSIZE,
    Reduction,
    Scheme,
    Shapes,
    Steps,
    all_finite,
    allreduce_bytes,
    elements,
)

#: Sizes of an index of topk and of a norm of csc in bytes.
INDEX = NORM = 4
#: Smallest number of elements of a sample.
SAMPLE = 4096


@dataclass(frozen=True)
class SparseScheme(Scheme):
    """Scheme that sends the fraction ``density`` of the elements, after ``warmup`` steps."""

    density: float = 0.01
    warmup: int = 0

    def __post_init__(self) -> None:
        self.check("density", 0 < self.density <= 1, "above 0 and at most 1")
        self.check("warmup", self.warmup >= 0, "0 or more steps")

    @property
    def warmup_steps(self) -> int:
        return self.warmup

    def share(self, count: int, step: int | None) -> int:
        """Return how many of ``count`` elements a step sends; by default after the warm-up."""
        density = self.density
        if step is not None and step < self.warmup:
            density **= step / self.warmup
        return min(count, max(1, round(density * count)))


@dataclass(frozen=True)
class MomentumCorrection(SparseScheme):
    """Sparse scheme with the factor ``momentum`` of a velocity, 0 for none; see the module."""

    momentum: float = 0.0
    masking: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check("momentum", 0 <= self.momentum < 1, "at least 0 and below 1")


class _ResidualReduction(Reduction):
    """Residual and velocity of one bucket; the velocity is stored after a successful step."""

    scheme: Any
    velocity: Any = None

    def _add_residual(self, values: Any) -> None:
        if momentum := getattr(self.scheme, "momentum", 0):
            self.velocity = self.vector("velocity", values) * momentum
            self.velocity += values
            values[:] = self.velocity
        values += self.vector("error", values)

    def _store_residual(self, values: Any, selected: Any) -> None:
        """Store the residual without the selected elements: indices, or a slice."""
        error = self.vectors["error"]
        error[:] = values
        self._clear(error, selected)
        if self.velocity is not None:
            self.vectors["velocity"], self.velocity = self.velocity, None
            if self.scheme.masking:
                self._clear(self.vectors["velocity"], selected)

    def _clear(self, vector: Any, selected: Any) -> None:
        vector[selected] = 0

    def _allreduce_dense(self, values: Any) -> Steps:
        residual = values.copy()
        yield self.comm.Iallreduce(MPI.IN_PLACE, values)
        if not all_finite(values):
            yield from self.reject_nonfinite(not all_finite(residual))
        self._store_residual(residual, slice(None))
        values /= self.size


class _TopKReduction(_ResidualReduction):
    """One allgather of values and indices, added in rank order."""

    def _reduce(self, values: Any) -> Steps:
        self._add_residual(values)
        count = self.scheme.share(self.count, self.steps)
        nbytes = count * (values.itemsize + INDEX)
        if self.size * nbytes >= 2 * self.count * values.itemsize:
            yield from self._allreduce_dense(values)
            return
        module, split = namespace(values), count * values.itemsize
        usable = all_finite(values)
        sent = module.empty(nbytes, "u1")
        select = select_largest if self.scheme.method == "exact" else select_sampled
        chosen = select(module.abs(values), count) if usable else module.arange(0)
        # Send NaN if selection fails, so that all ranks detect it.
        sent[:split].view(values.dtype)[:] = 0 if usable else numpy.nan
        sent[:split].view(values.dtype)[:chosen.size] = values[chosen]
        sent[split:].view("u4")[:] = self.count
        sent[split:].view("u4")[:chosen.size] = chosen
        received = module.empty((self.size, nbytes), "u1")
        yield self.comm.Iallgather(sent, received)
        parts, places = received[:, :split].view(values.dtype), received[:, split:].view("u4")
        with numpy.errstate(over="ignore"):
            most = module.abs(parts).max(axis=1).sum()
        if not bool(module.isfinite(most)):
            yield from self.reject_nonfinite(not usable)
        self._store_residual(values, chosen)
        values.fill(0)
        for part, indices in zip(parts, places):
            used = int(module.searchsorted(indices, self.count))
            values[indices[:used]] += part[:used]
        values /= self.size


@dataclass(frozen=True)
class TopK(MomentumCorrection):
    """Allgathers each rank's largest elements.

    wire: k = density * n values, then k indices as uint32: (P-1) k (4 + 4) bytes. Unused entries
    of a sampled selection have the index n. A step sends all elements if that is not more.

    ``method="exact"`` selects the k largest magnitudes; ``"sampled"`` selects those above a
    threshold from a sample, which is faster and sends somewhat fewer.
    Source: Aji and Heafield, 2017; Lin et al., 2018 (Deep Gradient Compression).
    """

    name = "topk"
    reduction = _TopKReduction

    method: str = "exact"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check("method", self.method in ("exact", "sampled"), "exact or sampled")

    def wire_bytes(self, shapes: Shapes, size: int, step: int | None = None) -> float:
        count = elements(shapes)
        return min(allreduce_bytes(count * ITEMSIZE, size),
                   (size - 1) * self.share(count, step) * (ITEMSIZE + INDEX))


class _RandomKReduction(_ResidualReduction):
    """One allreduce of the drawn elements."""

    def _reduce(self, values: Any) -> Steps:
        self._add_residual(values)
        if self.scheme.share(self.count, self.steps) == self.count:
            yield from self._allreduce_dense(values)
            return
        chosen = namespace(values).asarray(self.scheme.draw(self.count, self.steps))
        usable = all_finite(values)
        packed = values[chosen]
        if not usable:
            packed.fill(numpy.nan)  # else it may stay in the residual, unseen by the other ranks
        yield self.comm.Iallreduce(MPI.IN_PLACE, packed)
        if not all_finite(packed):
            yield from self.reject_nonfinite(not usable)
        self._store_residual(values, chosen)
        values.fill(0)
        packed /= self.size
        values[chosen] = packed


@dataclass(frozen=True)
class RandomK(SparseScheme):
    """Allreduces random elements, the same on all ranks.

    wire: k = density * n values in index order, 2 k 4 (P-1)/P bytes; no indices, which follow from
    the seed and the step. An element waits 1/density steps on average, whatever its value: use
    higher densities than for topk. Source: Stich et al., 2018 (sparsified SGD with memory).
    """

    name = "randomk"
    reduction = _RandomKReduction

    density: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check("seed", self.seed >= 0, "0 or more")

    def wire_bytes(self, shapes: Shapes, size: int, step: int | None = None) -> float:
        return allreduce_bytes(self.share(elements(shapes), step) * ITEMSIZE, size)

    def draw(self, count: int, step: int) -> numpy.ndarray:
        """Return the indices of a step in ascending order, drawn without replacement."""
        random = numpy.random.Generator(numpy.random.SFC64([self.seed, step, count]))
        chosen = random.choice(count, self.share(count, step), replace=False, shuffle=False)
        return numpy.sort(chosen)


class _CscReduction(_ResidualReduction):
    """Two allreduces: the norms n_c = |r_c|_1 of all chunks, then the chosen chunks."""

    def __init__(self, scheme: Csc, comm: Any, shapes: Shapes):
        super().__init__(scheme, comm, shapes)
        self.chunk, self.chunks = scheme.split(self.count)

    def _reduce(self, values: Any) -> Steps:
        self._add_residual(values)
        chosen_count = self.scheme.share(self.chunks, self.steps)
        if chosen_count == self.chunks:
            yield from self._allreduce_dense(values)
            return
        module = namespace(values)
        norms = module.empty(self.chunks, "f4")
        with numpy.errstate(over="ignore"):
            for first, rows in slices(values, self.chunk):
                norms[first:first + len(rows)] = module.abs(rows).sum(axis=1)
        usable = bool(module.isfinite(norms).all())
        yield self.comm.Iallreduce(MPI.IN_PLACE, norms)
        if not bool(module.isfinite(norms).all()):
            yield from self.reject_nonfinite(not usable)
        chosen = select_largest(norms, chosen_count)
        packed = module.zeros((chosen_count, self.chunk), values.dtype)
        inside, rows, tail = self._split_chunks(values, chosen)
        packed[:inside.size] = rows[inside]
        packed[inside.size:, :tail.size] = tail
        yield self.comm.Iallreduce(MPI.IN_PLACE, packed)
        self._store_residual(values, chosen)
        values.fill(0)
        packed /= self.size
        rows[inside] = packed[:inside.size]
        if inside.size < chosen.size:
            tail[:] = packed[-1, :tail.size]

    def _split_chunks(self, values: Any, chosen: Any) -> tuple[Any, Any, Any]:
        """Return the chosen full chunks, all full chunks, and the short last chunk."""
        whole = self.count // self.chunk
        rows, tail = values[:whole * self.chunk].reshape(whole, -1), values[whole * self.chunk:]
        return chosen[:int((chosen < whole).sum())], rows, tail

    def _clear(self, vector: Any, selected: Any) -> None:
        if isinstance(selected, slice):
            vector[selected] = 0
            return
        inside, rows, tail = self._split_chunks(vector, selected)
        rows[inside] = 0
        if inside.size < selected.size:
            tail.fill(0)


@dataclass(frozen=True)
class Csc(MomentumCorrection):
    """Allreduces the chunks with the largest L1 norms, summed over the ranks.

    wire: C = ceil(n / chunk) norms in float32, k = density * C chunks: (4C + 4 k chunk) 2(P-1)/P
    bytes; a short last chunk is padded. If k = C, one allreduce of all elements.

    Messages do not grow with the number of ranks, as topk's do; ties go to the lower index.
    Source: GradientFlow (Sun et al., 2019), coarse-grained sparse communication.
    """

    name = "csc"
    reduction = _CscReduction

    density: float = 0.1
    chunk: int = 1024

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check("chunk", self.chunk > 0, "a number of elements above 0")

    def split(self, count: int) -> tuple[int, int]:
        """Return the length and the number of chunks of ``count`` elements."""
        chunk = max(1, min(self.chunk, count))
        return chunk, -(-count // chunk)

    def wire_bytes(self, shapes: Shapes, size: int, step: int | None = None) -> float:
        chunk, chunks = self.split(count := elements(shapes))
        chosen = self.share(chunks, step)
        if chosen == chunks:
            return allreduce_bytes(count * ITEMSIZE, size)
        return allreduce_bytes(chunks * NORM + chosen * chunk * ITEMSIZE, size)


def select_largest(magnitudes: Any, count: int) -> Any:
    """Return the ascending indices of the ``count`` largest; ties to the lower index.

    A sampled threshold, passed by somewhat more than ``count`` elements, excludes most elements.
    All elements are partitioned only if the threshold was too high.

    >>> import numpy
    >>> select_largest(numpy.array([1.0, 3.0, 2.0, 3.0, 3.0]), 2).tolist()
    [1, 3]
    """
    module = namespace(magnitudes)
    if count >= magnitudes.size:
        return module.arange(magnitudes.size)
    below = estimate_threshold(magnitudes, min(magnitudes.size, count + count // 4 + 64))
    among = module.flatnonzero(magnitudes >= below)
    if among.size < count:
        among = module.arange(magnitudes.size)
    candidates = magnitudes[among]
    least = module.partition(candidates, among.size - count)[among.size - count]
    above = module.flatnonzero(candidates > least)
    equal = module.flatnonzero(candidates == least)[:count - above.size]
    return among[module.sort(module.concatenate([above, equal]))]


def select_sampled(magnitudes: Any, count: int) -> Any:
    """Return the ascending indices of about the ``count`` largest, and never more.

    Selects elements that reach a quantile of a sample; the largest of them if there are too many.
    """
    module = namespace(magnitudes)
    if count >= magnitudes.size:
        return module.arange(magnitudes.size)
    among = module.flatnonzero(magnitudes >= estimate_threshold(magnitudes, count))
    if among.size > count:
        among = among[select_largest(magnitudes[among], count)]
    return among


def estimate_threshold(magnitudes: Any, count: int) -> Any:
    """Estimate a magnitude that about ``count`` elements reach, from every s-th element."""
    module = namespace(magnitudes)
    # About 100 samples above the threshold. An odd stride visits all columns of most matrices.
    wanted = max(SAMPLE, 100 * magnitudes.size // count)
    sample = magnitudes[::max(1, magnitudes.size // wanted) | 1]
    place = max(0, sample.size - max(1, round(count * sample.size / magnitudes.size)))
    return module.partition(sample, place)[place]
