"""Reproducible sums on any number of ranks, by exact integer arithmetic.

    tops    Allreduce, MAX of one byte       exponent of the largest summand of each sum
    lanes   the call itself, SUM of int64    contents of each lane of the ranks' summands

Both are exact, so any algorithm can run them, also a native one. :mod:`hpccoll.arrays.binned`
defines tops and lanes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy
from mpi4py import MPI

from hpccoll.arrays.binned import FORMATS, MOST_SUMMANDS, lanes_of, round_to_dtype, tops_of, wide
from hpccoll.arrays.reproducible import ReproducibleSum
from hpccoll.calls.call import Call, on_host
from hpccoll.calls.facts import CallFacts
from hpccoll.calls.specification import Buffer
from hpccoll.errors import ArgumentError

if TYPE_CHECKING:
    from hpccoll.comm.base import Base

#: Methods with sums independent of the number of ranks, and their types of numbers.
METHODS = ("allreduce", "reduce", "reduce_scatter", "reduce_scatter_block")
PARTS = {"complex64": "f4", "complex128": "f8"}
#: Operators with equal results in any order, if zeros of both signs are equal.
CHOOSING = ("max", "min")
#: Elements of a vector per step: their lanes stay in the cache.
PIECE = 1 << 15


def check_kept(facts: CallFacts, form: str) -> None:
    """Raise an error for a reduction whose bits would depend on the number of ranks.

    Args:
        facts: the facts of the call.
        form: the form of the method's name.

    Raises:
        ArgumentError: names the supported guarantees.
    """
    if not facts.reduces or facts.exact or facts.operator in CHOOSING:
        return
    raise ArgumentError(
        "determinism", f"'any-p' is not available for this {form.format(facts.method)}: it rounds "
                       f"{facts.operator} of {facts.dtype}",
        f"it supports exact operations, MAX, MIN, and sums of {', '.join((*FORMATS, *PARTS))} in "
        f"the blocking {', '.join(METHODS)}")


def is_served(facts: CallFacts) -> bool:
    """Return True if this module runs a reduction with rounding."""
    return facts.method in METHODS and facts.operator == "sum" and facts.dtype is not None and (
        facts.dtype.name in FORMATS or facts.dtype.name in PARTS)


def sum_call(comm: Base, call: Call) -> None:
    """Run a blocking sum; collective.

    Raises:
        ArgumentError: its buffers are device memory.
    """
    source = call.source
    if source is None or source.namespace is not numpy:
        raise ArgumentError("determinism", "'any-p' does not support device memory",
                            "copy the buffers to the host")
    call = on_host(call)
    source, sink = call.source or source, call.sink
    for buffer in {id(each): each for each in (source, sink) if each is not None}.values():
        if buffer.load is not None:
            buffer.load()
    (_reduce_scatter if call.collective == "reduce_scatter" else _reduce)(comm, call, source, sink)
    if sink is not None and sink.store is not None:
        sink.store()


def _reduce(comm: Base, call: Call, source: Buffer, sink: Buffer | None) -> None:
    """Sum vectors on every rank, or at the root."""
    summands = _as_real(source.array, source.displs[0], source.count)
    result = None if sink is None else _as_real(sink.array, sink.displs[0], sink.count)
    # All ranks have the same number of pieces; an empty vector has one, so that it is a call.
    for start in range(0, max(len(summands), 1), PIECE):
        lanes, tops = _lanes(comm, summands[start:start + PIECE])
        if call.collective == "allreduce":
            comm.Allreduce(MPI.IN_PLACE, lanes, MPI.SUM)
        elif result is None:
            comm.Reduce(lanes, None, MPI.SUM, call.root)
        else:
            comm.Reduce(MPI.IN_PLACE, lanes, MPI.SUM, call.root)
        if result is not None:
            result[start:start + PIECE] = round_to_dtype(lanes, tops, result.dtype)


def _reduce_scatter(comm: Base, call: Call, source: Buffer, sink: Buffer | None) -> None:
    """Sum vectors, and give each rank its block."""
    counts, rank = call.key[0], comm.Get_rank()
    summands = _as_real(source.array, source.displs[0], sum(counts))
    parts = len(summands) // max(sum(counts), 1)
    lanes, tops = _lanes(comm, summands)
    mine = numpy.empty((counts[rank] * parts, len(lanes)), "i8")
    comm.Reduce_scatter(numpy.ascontiguousarray(lanes.T), mine,
                        [count * parts * len(lanes) for count in counts])
    if sink is not None and len(mine):
        result, start = _as_real(sink.array, sink.displs[0],
                                 counts[rank]), sum(counts[:rank]) * parts
        result[...] = round_to_dtype(mine.T, tops[start:start + len(mine)], result.dtype)


def _as_real(array: numpy.ndarray, start: int, count: int) -> numpy.ndarray:
    """Return elements of a buffer; complex ones as pairs of real ones."""
    part = array[start:start + count]
    return part.view(PARTS[part.dtype.name]) if part.dtype.name in PARTS else part


def _lanes(comm: Base, summands: numpy.ndarray) -> tuple[numpy.ndarray, numpy.ndarray]:
    """Return the lanes of this rank's summands, per sum, and the tops of the sums."""
    values = wide(summands).reshape(1, -1)
    tops = tops_of(values)
    comm.Allreduce(MPI.IN_PLACE, tops, MPI.MAX)
    return lanes_of(values, tops), tops


def sum_all(comm: Base, sums: ReproducibleSum) -> ReproducibleSum:
    """Return the sums of all ranks' summands, on every rank; collective.

    Raises:
        ArgumentError: there may be too many summands; on every rank.
    """
    # The same call reduces the number of summands, as a power of two.
    tops = numpy.append(sums.tops, numpy.uint8(sums.summands.bit_length()))
    comm.Allreduce(MPI.IN_PLACE, tops, MPI.MAX)
    most = comm.Get_size() << int(tops[-1])
    if most > MOST_SUMMANDS:
        raise ArgumentError("values", f"got up to {most} summands, the limit is {MOST_SUMMANDS}",
                            "distribute them evenly over the ranks, or sum parts of them")
    total = ReproducibleSum(sums.shape, sums.dtype)
    total.merge(sums)
    total.raise_tops(tops[:-1].copy())
    comm.Allreduce(MPI.IN_PLACE, total.lanes, MPI.SUM)
    return total
