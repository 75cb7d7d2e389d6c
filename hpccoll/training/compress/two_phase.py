"""Two-phase mean: send coded chunks to their owners, which return coded means.

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
from typing import Any

import numpy
from mpi4py import MPI

from hpccoll.training.compress.quantise import namespace, slices
from hpccoll.training.compress.scheme import Reduction, Scheme, Shapes, Steps, elements

#: Size of a scale in bytes.
SCALE = 4


@dataclass(frozen=True)
class TwoPhase(Scheme):
    """Scheme with a block code.

    Attributes:
        block: largest number of elements with one scale.
    """

    block: int = 256

    #: Block lengths are multiples of this, so that codes are whole 4-byte words.
    multiple = 32
    #: Error feedback: coding errors are added to the next step's values.
    feedback = False

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
            random: result of :meth:`generator`.
        """

    @abstractmethod
    def decode(self, codes: Any, scales: Any, out: Any) -> None:
        """Write the decoded rows to the rows of ``out``; a NaN scale decodes to NaN."""

    def generator(self, *place: int) -> Any:
        """Return the random generator for one vector, if the code needs one.

        Args:
            place: step, elements and rank; and phase, as its seed.
        """

    def block_length(self, count: int, size: int) -> int:
        """Return the block length for ``count`` elements on ``size`` ranks."""
        share = -(-count // size)
        return min(self.block, -(-share // self.multiple) * self.multiple)

    def start(self, comm: Any, shapes: Shapes) -> Reduction:
        return _TwoPhaseReduction(self, comm, shapes)

    def wire_bytes(self, shapes: Shapes, size: int, step: int | None = None) -> float:
        count = elements(shapes)
        if not count:
            return 0
        block = self.block_length(count, size)
        record = self.code_bytes(block) + SCALE
        return 2 * -(-count // block) * record * (size - 1) / size


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
        """Store the coding errors."""
        error[:] = lost

    def _encode(self, values: Any, error: Any, records: Any, received: Any = None) -> None:
        """Code a vector in pieces that fit into the cache.

        Args:
            values: the vector; with feedback it is replaced by the coding errors.
            error: with feedback, the previous errors, which are added first.
            records: output.
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
        """Return the scales in records as a vector."""
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
