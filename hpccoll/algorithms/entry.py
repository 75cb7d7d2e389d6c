"""What the table says about an algorithm: how it is built, where it may serve, what it costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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


class Algorithm(NamedTuple):
    """How to build one algorithm, and where it may be used.

    Attributes:
        build: ``build(rank, size[, root], **params) -> Program``; rooted collectives take the
            root; hierarchical ones take a :class:`~hpccoll.ir.topology.Topology` in place of the
            size.
        blocks: blocks a vector is cut into, ``blocks(size, **params)``; ``vector`` payloads only.
        params: parameters and their defaults.
        variants: other values of the parameters, to measure and to prove.
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
        rounds, sent: closed forms in (size or topology, **params), confirmed by every proof;
            ``None`` where there is none, such as for unequal groups.
    """

    build: Callable[..., Program]
    blocks: Callable[..., int | None] = number(1)
    params: Mapping[str, int] = {}
    variants: Mapping[str, Variants] = {}
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
