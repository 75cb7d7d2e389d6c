"""Consistency checks between ranks, and errors that are raised on all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy

from hpccoll.errors import ArgumentError, ShardError
from hpccoll.errors.agreement import compare
from hpccoll.training.arguments import array_names
from hpccoll.training.arrays import BFLOAT16, specs_of
from hpccoll.training.buckets import ArraySpec

#: Message text: remedy for invalid gradients.
GRADIENTS = ("pass every gradient once per step; use missing='zeros' if a pass may omit some; "
             "create a new state for a larger model")


def one_of(argument: str, value: Any, choices: Sequence[Any]) -> None:
    """Raise an error if the value of an option is none of the choices."""
    if value not in choices:
        raise ArgumentError.unknown_word(argument, value, choices)


def agreed_specs(comm: Any, arrays: Sequence[numpy.ndarray], names: Sequence[str] | None,
                 options: str) -> list[ArraySpec]:
    """Return the specifications of arrays; collective."""
    specs = specs_of(arrays, array_names(names, len(arrays)) if names is not None else
                     [f"array {index}" for index in range(len(arrays))])
    for spec, array in zip(specs, arrays):
        # ml_dtypes' bfloat16 has kind "V".
        if array.dtype.kind != "f" and spec.dtype != BFLOAT16:
            raise ArgumentError("parameters", f"'{spec.name}' is {spec.dtype}",
                                "use a floating-point type")
    difference, what = compare(comm, [str(spec) for spec in specs]), "array {}"
    if difference is None:
        difference, what = compare(comm, [options]), "options"
    if difference is not None:
        raise ShardError({rank: [f"{what.format(difference.place)}: {difference.values[rank]}, "
                                 f"elsewhere {difference.usual}"] for rank in difference.ranks},
                         "create it from the same arrays and options on all ranks")
    return list(specs)


def raise_on_all_ranks(comm: Any, faults: Sequence[str], remedy: str, elsewhere: str = "") -> None:
    """Raise the same error, with the faults of all ranks, on all ranks; collective."""
    faults_by_rank = dict(enumerate(comm.allgather(list(faults))))
    if not any(faults_by_rank.values()):
        faults_by_rank = {rank: [elsewhere] for rank in faults_by_rank}
    raise ShardError(faults_by_rank, remedy)
