"""Reduction of a bucket: prescale, allreduce or compressed reduction, postscale."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy

from hpccoll.errors import NonFiniteArray, NonFiniteError
from hpccoll.training.adasum import Adasum
from hpccoll.training.compress.scheme import Reduction, Steps
from hpccoll.training.exchange.settings import BLOCKING, OPS, ExchangeSettings, Recipe
from hpccoll.training.exchange.transfer import ResultScaling, allreduce_vector

#: Dtypes in which schemes and Adasum compute; other floats are cast to the first.
WIDE = "float32", "float64"


def result_scaling(recipe: Recipe, size: int, scheme: bool) -> ResultScaling:
    """Return the scaling of the result of a reduction over ``size`` ranks."""
    if scheme:  # a scheme returns the mean
        return ResultScaling(1, recipe.postscale * (size if recipe.op == "sum" else 1))
    return ResultScaling(size if recipe.op == "average" else 1, recipe.postscale)


class BucketReducer:
    """Reduces buckets on one communicator."""

    def __init__(self, comm: Any, settings: ExchangeSettings):
        self.comm, self.size = comm, comm.Get_size()
        self.settings = settings
        self.blocking = settings.transfer == BLOCKING

    def start(self, recipe: Recipe, dtype: str, shapes: Sequence[tuple[int, ...]]
              ) -> Reduction | None:
        """Return a reduction for arrays of these shapes; ``None`` for MPI operators."""
        if recipe.op == "adasum":
            return Adasum().start(self.comm, shapes)
        if self.settings.compress is None or not is_float(dtype):
            return None
        return self.settings.compress.start(self.comm, shapes)

    def run(self, reduction: Reduction | None, recipe: Recipe, values: Any,
            names: Sequence[str]) -> Steps:
        """Reduce a vector in place."""
        if not len(values):
            return
        if reduction is None:
            yield from allreduce_vector(self.comm, values, OPS[recipe.op], self.blocking,
                                        self.settings.partition_bytes)
            return
        wide = values if values.dtype.name in WIDE else values.astype(WIDE[0])
        try:
            yield from reduction.reduce(wide)
        except NonFiniteError as error:
            raise NonFiniteArray(f"{_name_text(names)}: {error}", tuple(names),
                                 error.ranks) from error
        if wide is not values:
            numpy.copyto(values, wide, casting="same_kind")

    def wire_bytes(self, reduction: Reduction | None, values: Any) -> float:
        """Return the bytes that a rank sends for a bucket, by closed form; mean over ranks."""
        if reduction is not None:
            return reduction.scheme.wire_bytes(reduction.shapes, self.size, reduction.steps - 1)
        return 2 * values.nbytes * (self.size - 1) / self.size


def is_float(dtype: str) -> bool:
    """Return True if a dtype is real floating-point."""
    return "float" in dtype


def _name_text(names: Sequence[str]) -> str:
    return (f"array '{names[0]}'" if len(names) == 1 else
            f"one of the arrays '{names[0]}' to '{names[-1]}'")
