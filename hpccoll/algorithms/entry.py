"""Table entries of algorithms: builder, supported calls, costs.

The same noun for an algorithm of the table, of another package, and of a file of one's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from hpccoll.algorithms.formula import ClosedForm, number
from hpccoll.ir.schedule import Program

#: Lengths of messages, as far as the table knows them.
SMALL, LARGE = "small", "large"


class Variants(NamedTuple):
    """Values of a parameter, beside its default.

    Attributes:
        measured: those that a survey of a machine measures; all are proved too.
        edges: more values to prove: the smallest ones, and some that divide nothing.
    """

    measured: tuple[int, ...]
    edges: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class Algorithm:
    """Entry of one algorithm: its builder, and the calls that it supports.

    Only the builder is needed. All that is stated beside it is checked where the algorithm is
    proved, or asked before it is built.

    Attributes:
        build: ``build(rank, size[, root], **params) -> Program``; rooted collectives take the
            root; hierarchical ones take a :class:`~hpccoll.ir.topology.Topology` instead of the
            size. Parameters without a default, there or in ``params``, must be given.
        collective: what it implements, MPI's name in lower case; entries of the table leave it to
            their place there.
        blocks: blocks a vector is cut into: a number, or ``blocks(size, **params)``; ``vector``
            payloads only (allreduce, reduce, bcast, scan, exscan).
        params: parameters and their defaults.
        variants: other values of the parameters, to measure and to prove.
        fits: ``fits(size, **params) -> bool``: whether it supports a number; all if omitted.
        rank_order: keeps rank order, so serves operators that do not commute; a hierarchical
            one only on a topology without an order of its own.
        exact_only: association differs between ranks; only for operations that are exact.
        uniform: needs blocks of one size.
        own_blocks: a rank other than the root handles only blocks of its own, so it need not
            know the sizes of others.
        hierarchical: builds from a topology (a flat one will do).
        chain: adds up all ranks' terms one after the other, so rounding errors grow with p.
        reproducible: all elements are combined in one order, the same for all algorithms of the
            collective that are marked so, on every layout. The lengths of messages (``SMALL``,
            ``LARGE``) for which it is the one to take where that is promised.
        picks: lengths of messages for which it stands for the others in a short comparison.
        rounds, sent: closed forms in (size or topology, **params), confirmed by every proof: the
            longest chain of messages, and blocks sent by the busiest rank when every block has
            one element; ``None`` where there is none, such as for unequal groups.
        name: for people; the builder's if omitted.
        size: the only number of ranks that it serves; 0 for any.
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
        """Return whether every message and every reduction has a whole vector."""
        return self.blocks == number(1)

    @property
    def label(self) -> str:
        """Its name, or that of its builder."""
        return self.name or getattr(self.build, "__name__", "custom")

    def __str__(self) -> str:
        return self.label
