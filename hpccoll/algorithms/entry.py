"""Entries of algorithms, in the table, in other packages and in files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from hpccoll.algorithms.formula import ClosedForm, number
from hpccoll.ir.schedule import Program

#: Lengths of messages that the table distinguishes.
SMALL, LARGE = "small", "large"


class Variants(NamedTuple):
    """Values of a parameter other than its default.

    Attributes:
        measured: values to measure in a survey of a machine, and to prove.
        edges: other values to prove: the smallest ones, and some that do not divide sizes.
    """

    measured: tuple[int, ...]
    edges: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class Algorithm:
    """Entry of one algorithm: its builder, and the calls that it supports.

    Only the builder is required. Proofs check the other fields.

    Attributes:
        build: ``build(rank, size[, root], **params) -> Program``; rooted collectives take the
            root; hierarchical ones take a :class:`~hpccoll.ir.topology.Topology` instead of the
            size. Parameters without a default, there or in ``params``, must be given.
        collective: its collective, MPI's name in lower case; empty in the table.
        blocks: number of blocks of a vector, or ``blocks(size, **params)``; for ``vector`` payloads
            (allreduce, reduce, bcast, scan, exscan).
        params: parameters and their defaults.
        variants: other values of the parameters, to measure and to prove.
        fits: ``fits(size, **params) -> bool``: True for supported numbers of ranks; all if omitted.
        rank_order: keeps rank order, so supports operators that do not commute; a hierarchical
            algorithm only on a topology without its own order of ranks.
        exact_only: association differs between ranks; only for exact operations.
        uniform: needs blocks of one size.
        own_blocks: a rank other than the root handles only its own blocks, so the ranks do not need
            the sizes of other blocks.
        hierarchical: builds from a topology, which may be flat.
        chain: adds the terms of all ranks one after the other, so rounding errors grow with p.
        reproducible: lengths of messages (``SMALL``, ``LARGE``) for which it is selected if a
            reproducible result is requested. All such algorithms of a collective combine all
            elements in the same order, on every layout.
        picks: lengths of messages for which a short comparison includes it.
        rounds, sent: closed forms in (size or topology, **params), confirmed by every proof: the
            longest chain of messages, and the blocks that the busiest rank sends if every block
            has one element; ``None`` without a closed form, such as for unequal groups.
        name: name in messages; the builder's if omitted.
        size: the only supported number of ranks; 0 for any.
    """

    build: Callable[..., Program]
    collective: str = ""
    blocks: Callable[..., int | None] | int = number(1)
    params: Mapping[str, int] = field(default_factory=dict)
    variants: Mapping[str, Variants] = field(default_factory=dict)
    fits: Callable[..., bool] | None = None
    rank_order: bool = False
    exact_only: bool = False
    uniform: bool = False
    own_blocks: bool = False
    hierarchical: bool = False
    chain: bool = False
    reproducible: tuple[str, ...] = ()
    picks: tuple[str, ...] = ()
    rounds: ClosedForm | None = None
    sent: ClosedForm | None = None
    name: str = ""
    size: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.blocks, int):
            object.__setattr__(self, "blocks", number(self.blocks))

    @property
    def keeps_vectors_whole(self) -> bool:
        """Return True if every message and every reduction has a whole vector."""
        return self.blocks == number(1)

    @property
    def label(self) -> str:
        """Return its name, or that of its builder."""
        return self.name or getattr(self.build, "__name__", "custom")

    def __str__(self) -> str:
        return self.label
