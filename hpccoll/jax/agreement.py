"""Comparison of trees between ranks with one small allreduce.

Ranks that fuse different trees would add elements of different arrays, or deadlock. Each call on a
tree therefore compares fingerprints of the trees first. If they differ, every rank raises the same
error.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy
from mpi4py import MPI

from hpccoll.errors import ExchangeMismatch
from hpccoll.errors.waits import rank_list


@dataclass(frozen=True)
class Agreement:
    """Leaves of a rank's tree, as strings such as ``"['w']: float32[3,4]"``."""

    leaves: tuple[str, ...]

    @property
    def fingerprint(self) -> int:
        """Return a hash of the leaves: 56 bits of BLAKE2."""
        text = "\n".join(self.leaves).encode()
        return int.from_bytes(hashlib.blake2b(text, digest_size=7).digest(), "little")

    def check(self, comm: Any) -> None:
        """Raise on all ranks unless all ranks have the same leaves; collective.

        Raises:
            ExchangeMismatch: leaves differ.
        """
        if comm.size == 1:
            return
        mine = self.fingerprint
        most = numpy.empty(2, numpy.int64)
        comm.Allreduce(numpy.array([mine, -mine]), most, op=MPI.MAX)
        if most[0] != -most[1]:
            raise disagreement(comm.allgather(self.leaves))


def disagreement(leaves: Sequence[Sequence[str]]) -> ExchangeMismatch:
    """Return the error for the first leaf that differs between ranks.

    Args:
        leaves: leaves of each rank.

    >>> print(disagreement([["a: int32[2]"], ["a: int32[3]"], ["a: int32[2]"]]))
    trees differ between ranks in leaf 0: a: int32[2] on ranks 0, 2; a: int32[3] on rank 1; \
pass the same tree, shapes and types on all ranks
    """
    number, seen = next((number, seen) for number, seen in
                        enumerate(zip_longest(*leaves, fillvalue="nothing")) if len(set(seen)) > 1)
    who = {text: [rank for rank, other in enumerate(seen) if other == text] for text in seen}
    text = "; ".join(f"{text} on {rank_list(ranks)}" for text, ranks in who.items())
    majority = max(who.values(), key=len)
    return ExchangeMismatch(
        f"trees differ between ranks in leaf {number}: {text}; pass the same tree, shapes and "
        "types on all ranks", tuple(who),
        tuple(rank for rank in range(len(leaves)) if rank not in majority))
