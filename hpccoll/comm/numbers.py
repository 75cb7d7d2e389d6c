"""Methods about the bits of numbers: sums that depend on the summands alone, equality of data."""

from __future__ import annotations

from typing import Any

import numpy

from hpccoll.arrays.reproducible import ReproducibleSum, gathered
from hpccoll.comm.base import Base
from hpccoll.comm.sums import sum_all
from hpccoll.errors import ArgumentTypeError
from hpccoll.guard import census


class Numbers(Base):
    """What a communicator offers beside mpi4py's methods about the bits of data."""

    def reproducible_sum(self, values: Any, axis: int | None = None) -> Any:
        """Sum numbers of all ranks so that the bits depend on the numbers alone.

        They do not depend on how many ranks there are, which of them holds which numbers, or in
        what order. Collective; a rank may have no numbers, in an array of that type and shape.

        Args:
            values: an array, or a :class:`hpccoll.ReproducibleSum` that was made of several. A dot
                product of distributed vectors is ``comm.reproducible_sum(x * y)``.
            axis: the axis of the array to sum along; all elements are added if omitted. The others
                must be the same on all ranks.

        Returns:
            On every rank, the sum: a number, or an array.

        Raises:
            ArgumentError, ArgumentTypeError: a type that has no such sum, or no such axis.
        """
        self._check_usable()
        sums = values if isinstance(values, ReproducibleSum) else gathered(values, axis)
        return sum_all(self, sums).value()

    def check_equal(self, array: Any, name: str = "an array") -> None:
        """Check that all ranks hold the same bits; collective.

        What travels are digests of 16 bytes. Arrays that differ in type or shape differ, too; so do
        0.0 and -0.0, and NaN of different bits.

        Args:
            array: what each rank is to hold alike, such as weights or a result.
            name: what the error calls it.

        Raises:
            UnequalError: on every rank; names the ranks that differ from the majority.
            ArgumentTypeError: elements that are Python objects.
        """
        checked = numpy.asarray(array)
        if checked.dtype.hasobject:
            raise ArgumentTypeError("array", f"has elements of type {checked.dtype}")
        with self._check_usable().entrance:
            census.check_equal(self._private(), checked, name)
