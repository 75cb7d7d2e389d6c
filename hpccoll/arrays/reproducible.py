"""Reproducible sums: the public class and functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy

from hpccoll.arrays import binned
from hpccoll.errors import ArgumentError, ArgumentTypeError


class ReproducibleSum:
    """Array of sums whose bits do not depend on the order and the grouping of the summands.

    ``comm.reproducible_sum`` adds the sums of all ranks, with the same bits on any number of ranks.

    Args:
        shape: shape of the array of sums; ``()`` for one sum.
        dtype: type of summands and sums: float64, float32, float16, bfloat16, complex128 or
            complex64.

    A sum differs from the exact one by at most half a unit of its last place, and by
    ``n * 2**-78 * max(abs(x))`` for n summands of float64, ``n * 2**-52 * max(abs(x))`` for the
    others. It overflows only if the exact sum does. Sums with NaN, or with infinities of both
    signs, are NaN; empty sums and sums of zeros are +0.0. Complex numbers are pairs of real ones.

    Raises:
        ArgumentTypeError: an unsupported type.
        ArgumentError: a negative or malformed shape.
    """

    def __init__(self, shape: int | Sequence[int] = (), dtype: Any = float):
        self.dtype = numpy.dtype(dtype)
        parts = {"complex64": "float32", "complex128": "float64"}
        name = parts.get(self.dtype.name, self.dtype.name)
        if name not in binned.FORMATS or not self.dtype.isnative:
            raise ArgumentTypeError("dtype", f"reproducible sums do not support {self.dtype}",
                                    f"use one of {', '.join((*binned.FORMATS, *parts))}")
        try:
            self.shape = numpy.broadcast_shapes(shape)
        except (TypeError, ValueError) as error:
            raise ArgumentError("shape", f"cannot create sums of shape {shape!r}", str(error)
                                ) from error
        self._part = self.dtype if name == self.dtype.name else numpy.dtype(name)
        self._wide = binned.WIDE[name]
        count = math.prod(self.shape) * (self.dtype.itemsize // self._part.itemsize)
        #: Tops and lanes; see :mod:`hpccoll.arrays.binned`.
        self.tops = numpy.full(count, binned.TOPS[self._wide][0])
        self.lanes = numpy.zeros((binned.FORMATS[self._wide].fold, count), "i8")
        #: Largest number of summands of any sum.
        self.summands = 0

    def add(self, values: Any) -> None:
        """Add numbers.

        Args:
            values: array whose last axes are those of the sums; leading axes are summed.

        Raises:
            ArgumentTypeError: another type than the sums.
            ArgumentError: a wrong shape, or too many summands.
        """
        array = numpy.asarray(values)
        if array.dtype != self.dtype:
            if array.dtype.kind not in "fiub" or not numpy.can_cast(array.dtype, self.dtype):
                raise ArgumentTypeError("values", f"have type {array.dtype}, the sums {self.dtype}",
                                        "convert them explicitly")
            array = array.astype(self.dtype)
        leading = array.ndim - len(self.shape)
        if leading < 0 or array.shape[leading:] != self.shape:
            raise ArgumentError("values", f"have shape {array.shape}, the sums {self.shape}",
                                "the last axes must match the sums")
        rows = math.prod(array.shape[:leading])
        self._count(rows)
        array = numpy.ascontiguousarray(array).view(self._part).reshape(rows, len(self.tops))
        array = binned.wide(array)
        self.raise_tops(numpy.maximum(self.tops, binned.tops_of(array)))
        self.lanes += binned.lanes_of(array, self.tops)

    def merge(self, other: ReproducibleSum) -> None:
        """Add the summands of other sums.

        Raises:
            ArgumentError: another shape or type, or too many summands.
        """
        if (other.shape, other.dtype) != (self.shape, self.dtype):
            raise ArgumentError("other", f"got sums of {other.dtype} of shape {other.shape}, "
                                         f"expected {self.dtype} of shape {self.shape}")
        self._count(other.summands)
        tops = numpy.maximum(self.tops, other.tops)
        self.raise_tops(tops)
        self.lanes += binned.raise_tops(other.lanes, other.tops, tops)

    def raise_tops(self, tops: numpy.ndarray) -> None:
        """Raise the tops to those of larger summands."""
        self.lanes, self.tops = binned.raise_tops(self.lanes, self.tops, tops), tops

    def value(self) -> Any:
        """Return the sums, each rounded once: an array, or one number for the shape ``()``."""
        sums = binned.round_to_dtype(self.lanes, self.tops, self._part)
        return sums.view(self.dtype).reshape(self.shape)[()]

    def _count(self, more: int) -> None:
        if self.summands + more > binned.MOST_SUMMANDS:
            raise ArgumentError("values", f"exceed {binned.MOST_SUMMANDS} summands")
        self.summands += more


def reproducible_sum(values: Any, axis: int | None = None) -> Any:
    """Sum numbers so that the bits do not depend on their order.

    ``comm.reproducible_sum`` has the same result on any number of ranks that share the numbers.

    Args:
        values: an array of a type of :class:`ReproducibleSum`.
        axis: the axis to sum along; all elements are added if omitted.

    Returns:
        A number, or an array without that axis, as ``numpy.sum``.
    """
    return sum_axis(values, axis).value()


def sum_axis(values: Any, axis: int | None = None) -> ReproducibleSum:
    """Return the sums of an array along an axis, or of all elements; see :func:`reproducible_sum`.

    Raises:
        ArgumentError: there is no such axis.
    """
    array = numpy.asarray(values)
    try:
        array = array.reshape(-1) if axis is None else numpy.moveaxis(array, axis, 0)
    except ValueError as error:
        raise ArgumentError("axis", f"{axis} does not exist, got shape {array.shape}") from error
    sums = ReproducibleSum(array.shape[1:], array.dtype)
    sums.add(array)
    return sums
