"""Consistency checks between ranks, and errors that are raised on all ranks."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy

from hpccoll.errors import ArgumentError, ShardError
from hpccoll.training.arguments import array_names
from hpccoll.training.buckets import ArraySpec

#: Message text: remedy for different arrays on ranks.
SAME = "create it from the same arrays and options on all ranks"
#: Message text: remedy for invalid gradients.
GRADIENTS = ("pass every gradient once per step; use missing='zeros' if a pass may omit some; "
             "create a new state for a larger model")


def one_of(argument: str, value: Any, choices: Sequence[Any]) -> None:
    """Validate the value of an option.

    Raises:
        ArgumentError: the value is none of the choices.
    """
    if value not in choices:
        raise ArgumentError(argument, f"{value!r} is unknown; choose from "
                                      + ", ".join(map(str, choices)))


def specs_of(arrays: Sequence[numpy.ndarray], names: Sequence[str] | None) -> list[ArraySpec]:
    """Return the specifications of arrays.

    Raises:
        ArgumentError: not one name for each array, or not floating-point.
    """
    names = array_names(names, len(arrays)) if names is not None else [
        f"array {index}" for index in range(len(arrays))]
    for name, array in zip(names, arrays):
        # ml_dtypes' bfloat16 has kind "V".
        if array.dtype.kind != "f" and array.dtype.name != "bfloat16":
            raise ArgumentError("parameters", f"'{name}' is {array.dtype.name}",
                                "use a floating-point type")
    return [ArraySpec(name, array.shape, array.dtype.name, array.dtype.itemsize)
            for name, array in zip(names, arrays)]


def check_agreement(comm: Any, specs: Sequence[ArraySpec], options: str) -> None:
    """Check that all ranks have the same arrays and options; collective.

    Raises:
        ShardError: they differ; the message has the ranks and the difference from rank 0.
    """
    texts = [f"'{spec.name}' {spec.shape} {spec.dtype}" for spec in specs] + [options]
    digest = hashlib.sha256("\n".join(texts).encode()).hexdigest()  # text, for any ``MPI.pickle``
    if len(set(comm.allgather(digest))) == 1:
        return
    all_told = comm.allgather(texts)
    raise ShardError({rank: [_difference(theirs, all_told[0])]
                      for rank, theirs in enumerate(all_told) if theirs != all_told[0]}, SAME)


def _difference(theirs: list[str], first: list[str]) -> str:
    if len(theirs) != len(first):
        return f"{len(theirs) - 1} arrays, rank 0 has {len(first) - 1}"
    place = next(i for i, (a, b) in enumerate(zip(theirs, first)) if a != b)
    what = f"array {place}" if place < len(first) - 1 else "options"
    return f"{what}: {theirs[place]}, on rank 0 {first[place]}"


def raise_on_all_ranks(comm: Any, faults: Sequence[str], remedy: str, elsewhere: str = "") -> None:
    """Gather faults and raise the same error on all ranks; collective.

    Raises:
        ShardError: any rank has a fault; the message has those of all ranks.
    """
    faults_by_rank = dict(enumerate(comm.allgather(list(faults))))
    if not any(faults_by_rank.values()):
        faults_by_rank = {rank: [elsewhere] for rank in faults_by_rank}
    raise ShardError(faults_by_rank, remedy)
