"""Sparse allreduce: gather rows with their indices, and add rows of equal index.

As in Horovod's sparse allreduce, every rank receives all indices and rows: (P-1) k (b + 8) bytes
for k rows of b bytes each. All ranks add rows of one index in the same order, so results are
bitwise equal.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy

from hpccoll.errors import ArgumentError, ArgumentTypeError

#: Indices and rows.
Rows = tuple[numpy.ndarray, numpy.ndarray]


def check(indices: Any, values: Any) -> Rows:
    """Return contiguous arrays: indices as int64, and rows."""
    indices, values = numpy.asarray(indices), numpy.asarray(values)
    if indices.dtype.kind not in "iu" and indices.size:
        raise ArgumentTypeError("indices", f"expected integers, got {indices.dtype}")
    if indices.ndim != 1 or values.ndim < 1 or len(indices) != len(values):
        raise ArgumentError("indices", f"got {indices.shape} indices for {values.shape} values",
                            "pass one index per row of the values")
    return indices.astype(numpy.int64), numpy.ascontiguousarray(values)


def add_rows(indices: numpy.ndarray, values: numpy.ndarray) -> Rows:
    """Add rows of equal index in their order; return sorted indices and the sums.

    >>> indices, rows = add_rows(numpy.array([4, 1, 4]), numpy.array([[1.0], [2.0], [3.0]]))
    >>> indices.tolist(), rows.tolist()
    ([1, 4], [[2.0], [4.0]])
    """
    if not len(indices):
        return indices, values
    order = numpy.argsort(indices, kind="stable")
    indices, values = indices[order], values[order]
    starts = numpy.flatnonzero(numpy.r_[True, indices[1:] != indices[:-1]])
    return indices[starts], numpy.add.reduceat(values, starts, axis=0)


def exchange_rows(comm: Any, indices: numpy.ndarray, values: numpy.ndarray
                  ) -> Generator[Any, None, Rows]:
    """Task that adds the rows of all ranks; its result is indices and rows."""
    size, width = comm.Get_size(), values[0].size if len(values) else 0
    mine, everyone = numpy.array([len(indices), width], numpy.int64), numpy.empty((size, 2), "i8")
    yield comm.Iallgather(mine, everyone)
    counts, widths = everyone[:, 0].tolist(), set(everyone[everyone[:, 0] > 0, 1].tolist())
    if len(widths) > 1:
        raise ArgumentError("values", f"ranks pass rows of {sorted(widths)} elements",
                            "pass rows of the same length")
    width = widths.pop() if widths else 0
    all_indices = numpy.empty(sum(counts), numpy.int64)
    yield comm.Iallgatherv(indices, [all_indices, counts])
    rows = numpy.empty(sum(counts) * width, values.dtype)
    yield comm.Iallgatherv(values.reshape(-1), [rows, [count * width for count in counts]])
    shape = (len(all_indices), *values.shape[1:]) if len(values) or not width else (-1, width)
    return add_rows(all_indices, rows.reshape(shape))
