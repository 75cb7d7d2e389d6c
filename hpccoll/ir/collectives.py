"""Specification of each collective: given input and wanted output.

A collective contains no algorithm. It names, for one rank, the blocks of its buffers at the
start (``given``) and, for each slot of the output, which block must be there and which
ranks must have contributed to it exactly once (``wanted``). Proofs compare a schedule
with these two functions and nothing else.

Payloads:

* ``none``   - no data (barrier); the result is knowledge of every rank's arrival.
* ``vector`` - every rank holds one vector, cut into ``nblocks`` near-equal blocks.
* ``blocks`` - one block per rank; sizes may differ and be zero.
* ``pairs``  - one block per (source, destination); block key is ``source * size + destination``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from hpccoll.ir.methods import METHODS

IN, OUT, TMP = "in", "out", "tmp"


class ExpectedBlock(NamedTuple):
    """One slot of the output: ``block``, reduced over ``ranks`` in this order."""

    block: int
    ranks: Sequence[int]


@dataclass(frozen=True)
class Collective:
    """Pre- and postcondition of one collective operation.

    ``given(rank, size, root, nblocks)`` maps buffer names to the block keys of their slots;
    every slot holds the calling rank's own contribution. ``wanted`` lists the slots of the
    output in the same terms; an empty list means the rank receives nothing.

    ``in_place`` is the memory that ``MPI.IN_PLACE`` shares between the buffers: ``same`` - input
    slot i is output slot i; ``own`` - the only input slot is output slot ``rank``; ``front`` -
    the input starts where the output starts; ``root`` - the only output slot is input slot
    ``root``; empty - the algorithms need separate buffers.
    """

    name: str
    payload: str
    given: Callable[[int, int, int, int], dict[str, Sequence[int]]]
    wanted: Callable[[int, int, int, int], list[ExpectedBlock]]
    in_place: str = ""
    rooted: bool = False
    reduces: bool = False

    def __str__(self) -> str:
        return self.name


def _everyone(rank: int, size: int, root: int, n: int) -> dict[str, Sequence[int]]:
    return {IN: range(n)}


def _input_blocks(rank: int, size: int, root: int, n: int) -> dict[str, Sequence[int]]:
    return {IN: (rank,)}


def _reduced_blocks(rank: int, size: int, root: int, n: int) -> list[ExpectedBlock]:
    return [ExpectedBlock(b, range(size)) for b in range(n)]


def _gathered_blocks(rank: int, size: int, root: int, n: int) -> list[ExpectedBlock]:
    return [ExpectedBlock(b, (b,)) for b in range(size)]


T = TypeVar("T")


def _at_root(condition: Callable[[int, int, int, int], T],
             nothing: Callable[[], T]) -> Callable[[int, int, int, int], T]:
    """Restrict a condition to the root; it is empty on other ranks."""
    def only_at_root(rank: int, size: int, root: int, n: int) -> T:
        return condition(rank, size, root, n) if rank == root else nothing()
    return only_at_root


BARRIER = Collective("barrier", "none", lambda r, p, root, n: {}, lambda r, p, root, n: [])

BCAST = Collective(
    "bcast", "vector", rooted=True,
    given=_at_root(lambda r, p, root, n: {OUT: range(n)}, dict),
    wanted=lambda r, p, root, n: [ExpectedBlock(b, (root,)) for b in range(n)])

REDUCE = Collective("reduce", "vector", in_place="same", rooted=True, reduces=True,
                    given=_everyone, wanted=_at_root(_reduced_blocks, list))

ALLREDUCE = Collective("allreduce", "vector", in_place="same", reduces=True,
                       given=_everyone, wanted=_reduced_blocks)

REDUCE_SCATTER = Collective(
    "reduce_scatter", "blocks", in_place="front", reduces=True,
    given=lambda r, p, root, n: {IN: range(p)},
    wanted=lambda r, p, root, n: [ExpectedBlock(r, range(p))])

ALLGATHER = Collective("allgather", "blocks", in_place="own",
                       given=_input_blocks, wanted=_gathered_blocks)

GATHER = Collective("gather", "blocks", in_place="own", rooted=True,
                    given=_input_blocks, wanted=_at_root(_gathered_blocks, list))

SCATTER = Collective(
    "scatter", "blocks", in_place="root", rooted=True,
    given=_at_root(lambda r, p, root, n: {IN: range(p)}, dict),
    wanted=lambda r, p, root, n: [ExpectedBlock(r, (root,))])

ALLTOALL = Collective(
    "alltoall", "pairs",
    given=lambda r, p, root, n: {IN: range(r * p, (r + 1) * p)},
    wanted=lambda r, p, root, n: [ExpectedBlock(s * p + r, (s,)) for s in range(p)])

SCAN = Collective(
    "scan", "vector", in_place="same", reduces=True, given=_everyone,
    wanted=lambda r, p, root, n: [ExpectedBlock(b, range(r + 1)) for b in range(n)])

EXSCAN = Collective(
    "exscan", "vector", in_place="same", reduces=True, given=_everyone,
    wanted=lambda r, p, root, n: [ExpectedBlock(b, range(r)) for b in range(n)] if r else [])

#: Every collective, by its MPI name. The v- and w-forms are these with uneven blocks.
COLLECTIVES = {c.name: c for c in (
    BARRIER, BCAST, REDUCE, ALLREDUCE, REDUCE_SCATTER, ALLGATHER, GATHER, SCATTER,
    ALLTOALL, SCAN, EXSCAN)}


def block_counts(count: int, nblocks: int) -> list[int]:
    """Cut ``count`` elements into ``nblocks`` blocks whose sizes differ by at most one.

    >>> block_counts(7, 3)
    [3, 2, 2]
    """
    size, extra = divmod(count, nblocks)
    return [size + 1] * extra + [size] * (nblocks - extra)


def slot_keys(collective: Collective, rank: int, size: int, root: int = 0,
              nblocks: int = 1) -> dict[str, Sequence[int]]:
    """Return the block key of every slot of a rank's ``in`` and ``out``."""
    keys = dict(collective.given(rank, size, root, nblocks))
    wanted = collective.wanted(rank, size, root, nblocks)
    if wanted:
        keys[OUT] = [w.block for w in wanted]
    elif collective is EXSCAN:
        # Rank 0 has a result buffer too; it is not written.
        keys[OUT] = range(nblocks)
    return keys


def method_named(text: str) -> str:
    """Return the method in lower case, from names of MPI and mpi4py; other text is unchanged.

    >>> method_named("MPI_Iallgatherv"), method_named("Allreduce_init"), method_named("ring")
    ('allgatherv', 'allreduce', 'ring')
    """
    name = text.lower().removeprefix("mpi_").removesuffix("_init")
    name = name if name in METHODS else name.removeprefix("i")
    return name if name in METHODS else text


def collective_named(text: str) -> str:
    """Return the collective whose algorithms implement a method; other text is unchanged.

    >>> collective_named("Ireduce_scatter_block"), collective_named("scam")
    ('reduce_scatter', 'scam')
    """
    return METHODS.get(method_named(text), text)
