"""Reproducible sums, and checks that ranks hold equal data."""

from __future__ import annotations

from typing import Any

import numpy

from hpccoll.comm.base import Base
from hpccoll.errors import ArgumentTypeError


class Numbers(Base):
    """Methods that mpi4py does not have, for reproducible and equal data."""

    def reproducible_sum(self, values: Any, axis: int | None = None) -> Any:
        """Sum numbers of all ranks; the bits of the result depend only on the numbers.

        They do not depend on the number of ranks, the distribution or the order of the numbers.
        Collective; a rank may pass an empty array of the same type and shape.

        Args:
            values: an array, or a :class:`hpccoll.ReproducibleSum` of several arrays. A dot product
                of distributed vectors is ``comm.reproducible_sum(x * y)``.
            axis: the axis of the array to sum along; all elements are added if omitted. The others
                must be the same on all ranks.

        Returns:
            On every rank, the sum: a number, or an array.

        Raises:
            ArgumentError, ArgumentTypeError: an unsupported type, or an invalid axis.
        """
        from hpccoll.arrays.reproducible import ReproducibleSum, sum_axis
        from hpccoll.comm.reproducible_sums import sum_all
        self._check_usable()
        sums = values if isinstance(values, ReproducibleSum) else sum_axis(values, axis)
        return sum_all(self, sums).value()

    def check_equal(self, array: Any, name: str = "an array") -> None:
        """Check that all ranks hold the same bits; collective.

        Ranks exchange digests of 16 bytes. Arrays of different type or shape are unequal; so are
        0.0 and -0.0, and NaN with different bits.

        Args:
            array: the data to compare, such as weights or a result.
            name: name of the array in the error message.

        Raises:
            UnequalError: on every rank; names the ranks that differ from the majority.
            ArgumentTypeError: elements that are Python objects.
        """
        from hpccoll.guard import data_checks
        checked = numpy.asarray(array)
        if checked.dtype.hasobject:
            raise ArgumentTypeError("array", f"has elements of type {checked.dtype}")
        with self._check_usable().call_guard:
            data_checks.check_equal(self._private(), checked, name)
