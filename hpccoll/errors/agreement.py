"""The one comparison of all ranks: where their values differ first, and which rank has which."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy

try:
    from _blake2 import blake2b  # ``hashlib`` would load OpenSSL into every rank, for 3 ms
except ImportError:
    from hashlib import blake2b

from hpccoll.errors.waits import rank_list

if TYPE_CHECKING:  # it would start MPI, which `hpccoll trace` does not need
    from mpi4py import MPI

V = TypeVar("V", bound=Hashable)
#: Entry of a list that is shorter than that of another rank.
NOTHING = "nothing"


class Difference(NamedTuple):
    """The first place at which lists of ranks differ, and every rank's entry there.

    >>> difference = Difference(4, ("ring", "tree", "ring"))
    >>> print(difference, difference.ranks)
    ring on ranks 0, 2; tree on rank 1 (1,)
    """

    place: int
    values: tuple[str, ...]

    @property
    def usual(self) -> str:
        """The most frequent value; among equals that of the lowest rank."""
        found = ranks_by_value(self.values)
        return max(found, key=lambda value: len(found[value]))

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks without the usual value."""
        usual = self.usual
        return tuple(rank for rank, value in enumerate(self.values) if value != usual)

    def __str__(self) -> str:
        return "; ".join(f"{value} on {rank_list(ranks)}"
                         for value, ranks in ranks_by_value(self.values).items())


def hash_of_text(text: str, nbytes: int) -> int:
    """Return a number of some bytes, equal on all ranks for equal texts, unlike ``hash()``."""
    return int.from_bytes(blake2b(text.encode(), digest_size=nbytes).digest(), "little")


def ranks_by_value(values: Iterable[V]) -> dict[V, list[int]]:
    """Return the ranks with each value, in the order of the ranks."""
    found: dict[V, list[int]] = {}
    for rank, value in enumerate(values):
        found.setdefault(value, []).append(rank)
    return found


def first_difference(lists: Sequence[Sequence[str]]) -> Difference | None:
    """Return the first place at which the ranks' lists differ."""
    return next((Difference(place, values) for place, values in
                 enumerate(zip_longest(*lists, fillvalue=NOTHING)) if len(set(values)) > 1), None)


def compare(comm: MPI.Intracomm, mine: Sequence[str]) -> Difference | None:
    """Compare lists of all ranks, by one small call if they are equal; the same result on all."""
    from mpi4py import MPI
    if comm.Get_size() == 1:
        return None
    number = hash_of_text(repr(list(mine)), 7)
    most = numpy.empty(2, numpy.int64)
    comm.Allreduce(numpy.array([number, -number]), most, op=MPI.MAX)
    return None if most[0] == -most[1] else first_difference(comm.allgather(list(mine)))
