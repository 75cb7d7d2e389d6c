"""Every algorithm, in one literal table: (collective, name) -> builder and its conditions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from hpccoll.algorithms.flat import (
    binary,
    bine,
    bruck,
    census,
    chain,
    circulant,
    circulant_broadcast,
    dissemination,
    double_tree,
    knomial,
    linear,
    neighbor_exchange,
    pairwise,
    pat,
    recursive_doubling,
    recursive_halving,
    recursive_multiplying,
    ring,
    scan,
    scatter_allgather,
    swing,
)
from hpccoll.algorithms.hierarchical import alltoall, leader, rails, rails_blocks
from hpccoll.algorithms.hierarchical import bruck as hierarchical_bruck
from hpccoll.algorithms.hierarchical import census as hierarchical_census
from hpccoll.algorithms.hierarchical.composition import regular
from hpccoll.algorithms.hierarchical.ownership import nblocks, rooted_nblocks
from hpccoll.algorithms.parts import swing_routes, trees
from hpccoll.errors import ArgumentError
from hpccoll.ir.schedule import Program


def _floor_log2(p: int) -> int:
    return p.bit_length() - 1


def _ceil_log2(p: int) -> int:
    return (p - 1).bit_length()


def _power(p: int) -> int:
    """The largest power of two that is not larger."""
    return 1 << _floor_log2(p)


def _folded(p: int) -> int:
    """1 when p is not a power of two and ranks must be folded."""
    return int(p & (p - 1) != 0)


class Algorithm(NamedTuple):
    """How to build one algorithm, and where it may be used.

    Attributes:
        build: ``build(rank, size[, root], **params) -> Program``; rooted collectives take the
            root; hierarchical ones take a :class:`Topology` in place of the size.
        blocks: blocks a vector is cut into, ``blocks(size, **params)``; ``vector`` payloads only.
        params: parameters and their defaults.
        rank_order: keeps rank order, so serves operators that do not commute; a hierarchical
            one only on a topology without an order of its own.
        exact_only: ranks may associate differently; offered only where that cannot show.
        uniform: needs blocks of one size.
        own_blocks: a rank other than the root handles only blocks of its own, so it need not
            know the sizes of others.
        hierarchical: builds from a topology (a flat one will do).
        rounds, sent: closed forms in (size or topology, **params), confirmed by every proof;
            ``None`` where there is none, such as for unequal groups.
    """

    build: Callable[..., Program]
    blocks: Callable[..., int] = lambda size, **params: 1
    params: Mapping[str, int] = {}
    rank_order: bool = False
    exact_only: bool = False
    uniform: bool = False
    own_blocks: bool = False
    hierarchical: bool = False
    rounds: Callable[..., int | None] | None = None
    sent: Callable[..., int | None] | None = None


#: THE table. A name means the same idea in every collective.
ALGORITHMS: dict[str, dict[str, Algorithm]] = {
    "allreduce": {
        "ring": Algorithm(ring.allreduce, blocks=lambda p: p,
                          rounds=lambda p: 2 * (p - 1), sent=lambda p: 2 * (p - 1)),
        "allpairs": Algorithm(pairwise.allreduce, blocks=lambda p: p, rank_order=True,
                              rounds=lambda p: 2 * (p > 1), sent=lambda p: 2 * (p - 1)),
        "recursive_doubling": Algorithm(
            recursive_doubling.allreduce, rank_order=True,
            rounds=lambda p: _floor_log2(p) + 2 * _folded(p),
            sent=lambda p: _floor_log2(p) + _folded(p)),
        "recursive_multiplying": Algorithm(
            recursive_multiplying.allreduce, params={"k": 4}, rank_order=True,
            rounds=recursive_multiplying.rounds, sent=recursive_multiplying.sent),
        "rabenseifner": Algorithm(
            recursive_halving.allreduce, blocks=_power, rank_order=True,
            rounds=lambda p: 2 * (_floor_log2(p) + _folded(p)),
            sent=lambda p: 2 * (_power(p) - 1) + _folded(p) * _power(p)),
        "circulant": Algorithm(
            circulant.allreduce, blocks=lambda p: p,
            rounds=lambda p: 2 * _ceil_log2(p), sent=lambda p: 2 * (p - 1)),
        "pat": Algorithm(
            pat.allreduce, blocks=lambda p: p,
            rounds=lambda p: 2 * _ceil_log2(p), sent=lambda p: 2 * (p - 1)),
        "swing": Algorithm(
            swing.allreduce, blocks=lambda p: p,
            rounds=lambda p: 2 * swing_routes.rounds(p), sent=lambda p: 2 * (p - 1)),
        "census": Algorithm(census.allreduce, exact_only=True, rounds=_ceil_log2, sent=_ceil_log2),
        "linear": Algorithm(
            linear.allreduce, rank_order=True, sent=lambda p: p - 1,
            rounds=lambda p: -(-(p - 1) // linear.FAN) + (p > 1)),
        "reduce_bcast": Algorithm(
            knomial.allreduce, rank_order=True,
            rounds=lambda p: 2 * _floor_log2(p), sent=_ceil_log2),
        "double_tree": Algorithm(
            double_tree.allreduce, blocks=lambda p: 2,
            rounds=lambda p: 2 * _ceil_log2(p), sent=lambda p: min(p, 4) * (p > 1)),
        "leader": Algorithm(
            leader.allreduce, rank_order=True, hierarchical=True,
            rounds=lambda t: regular(t, lambda m: _floor_log2(m) + 2 * _folded(m),
                                     lambda m: 2 * _floor_log2(m)),
            sent=lambda t: regular(t, lambda m: _floor_log2(m) + _folded(m), _ceil_log2)),
        "lane_census": Algorithm(
            hierarchical_census.allreduce, params={"k": 8}, exact_only=True, hierarchical=True,
            rounds=hierarchical_census.rounds, sent=hierarchical_census.sent),
        "multi_leader": Algorithm(
            rails.multi_leader, blocks=nblocks,
            params={"leaders": 2}, hierarchical=True),
        "crossing": Algorithm(
            rails.crossing, blocks=rooted_nblocks, hierarchical=True,
            rounds=lambda t: regular(t, lambda m: _floor_log2(m) + 2 * _folded(m),
                                     lambda m: 2 * _ceil_log2(m)),
            sent=lambda t: regular(
                t, lambda m: _floor_log2(m) + _folded(m) + 2 * (t.size // m - 1), lambda m: 0)),
        "rails": Algorithm(
            rails.allreduce, blocks=nblocks, hierarchical=True,
            rounds=lambda t: regular(t, lambda m: 2 * _ceil_log2(m)),
            sent=lambda t: regular(t, lambda m: 2 * (t.size - 1), lambda m: 0)),
    },
    "reduce_scatter": {
        "ring": Algorithm(ring.reduce_scatter, rounds=lambda p: p - 1, sent=lambda p: p - 1),
        "linear": Algorithm(pairwise.linear_reduce_scatter, rank_order=True,
                            rounds=lambda p: int(p > 1), sent=lambda p: p - 1),
        "pairwise": Algorithm(pairwise.reduce_scatter,
                              rounds=lambda p: p - 1, sent=lambda p: p - 1),
        "recursive_halving": Algorithm(
            recursive_halving.reduce_scatter, rounds=lambda p: _floor_log2(p) + 2 * _folded(p),
            sent=lambda p: p - 1 + _folded(p)),
        "butterfly": Algorithm(
            recursive_halving.butterfly, rank_order=True, sent=lambda p: p - (p < 3),
            rounds=lambda p: _floor_log2(p) + _folded(p) + (p > 2)),
        "circulant": Algorithm(circulant.reduce_scatter, rounds=_ceil_log2, sent=lambda p: p - 1),
        "pat": Algorithm(pat.reduce_scatter, rounds=_ceil_log2, sent=lambda p: p - 1),
        "swing": Algorithm(swing.reduce_scatter, rounds=swing_routes.rounds, sent=lambda p: p - 1),
        "leader": Algorithm(
            leader.reduce_scatter, hierarchical=True,
            rounds=lambda t: regular(t, _ceil_log2, lambda m: 2 * _floor_log2(m))),
        "rails": Algorithm(
            rails_blocks.reduce_scatter, hierarchical=True,
            rounds=lambda t: regular(t, _ceil_log2),
            sent=lambda t: regular(t, lambda m: t.size - 1, lambda m: 0)),
    },
    "allgather": {
        "ring": Algorithm(ring.allgather, rounds=lambda p: p - 1, sent=lambda p: p - 1),
        "linear": Algorithm(pairwise.linear_allgather,
                            rounds=lambda p: int(p > 1), sent=lambda p: p - 1),
        "neighbor_exchange": Algorithm(
            neighbor_exchange.allgather, rounds=lambda p: p - 1 if p % 2 else p // 2,
            sent=lambda p: p - 1),
        "recursive_doubling": Algorithm(
            recursive_doubling.allgather, rounds=lambda p: _floor_log2(p) + 2 * _folded(p),
            sent=recursive_doubling.allgather_sent),
        "bruck": Algorithm(bruck.allgather, params={"k": 2},
                           rounds=lambda p, k: len(bruck.powers(p, k)), sent=lambda p, k: p - 1),
        "circulant": Algorithm(circulant.allgather, rounds=_ceil_log2, sent=lambda p: p - 1),
        "pat": Algorithm(pat.allgather, rounds=_ceil_log2, sent=lambda p: p - 1),
        "swing": Algorithm(swing.allgather, rounds=swing_routes.rounds, sent=lambda p: p - 1),
        "leader": Algorithm(
            leader.allgather, hierarchical=True,
            rounds=lambda t: regular(t, _ceil_log2, lambda m: 2 * _floor_log2(m)),
            sent=lambda t: regular(t, lambda m: t.size - t.size // m,
                                   lambda m: t.size * _ceil_log2(m))),
        "lane_bruck": Algorithm(hierarchical_bruck.allgather, hierarchical=True,
                                rounds=hierarchical_bruck.rounds, sent=hierarchical_bruck.sent),
        "rails": Algorithm(
            rails_blocks.allgather, hierarchical=True,
            rounds=lambda t: regular(t, _ceil_log2),
            sent=lambda t: regular(t, lambda m: t.size - 1, lambda m: 0)),
    },
    "alltoall": {
        "linear": Algorithm(pairwise.linear_alltoall,
                            rounds=lambda p: int(p > 1), sent=lambda p: p - 1),
        "pairwise": Algorithm(pairwise.alltoall, rounds=lambda p: p - 1, sent=lambda p: p - 1),
        "scattered": Algorithm(pairwise.scattered_alltoall, params={"batch": 4},
                               rounds=lambda p, batch: -(-(p - 1) // batch),
                               sent=lambda p, batch: p - 1),
        "bruck": Algorithm(bruck.alltoall, params={"k": 2}, uniform=True,
                           rounds=lambda p, k: len(bruck.powers(p, k)), sent=bruck.alltoall_sent),
        "circulant": Algorithm(circulant.alltoall, uniform=True,
                               rounds=_ceil_log2, sent=circulant.alltoall_sent),
        "leader": Algorithm(
            alltoall.leader, uniform=True, hierarchical=True,
            rounds=lambda t: regular(t, lambda m: m - 1, lambda m: 2 * _floor_log2(m))),
        "two_phase": Algorithm(
            alltoall.two_phase, uniform=True, hierarchical=True,
            rounds=lambda t: regular(t, lambda m: m - 1),
            sent=lambda t: regular(t, lambda m: t.size - t.size // m)),
    },
    "scan": {
        "linear": Algorithm(scan.linear_scan, rank_order=True,
                            rounds=lambda p: p - 1, sent=lambda p: int(p > 1)),
        "recursive_doubling": Algorithm(scan.scan, rank_order=True,
                                        rounds=_ceil_log2, sent=_ceil_log2),
        "census": Algorithm(census.scan, rank_order=True, rounds=_ceil_log2, sent=_ceil_log2),
    },
    "exscan": {
        "linear": Algorithm(scan.linear_exscan, rank_order=True,
                            rounds=lambda p: p - 1, sent=lambda p: int(p > 1)),
        "recursive_doubling": Algorithm(scan.exscan, rank_order=True,
                                        rounds=_ceil_log2, sent=_ceil_log2),
        "census": Algorithm(census.exscan, rank_order=True, rounds=_ceil_log2, sent=_ceil_log2),
    },
    "barrier": {
        "dissemination": Algorithm(dissemination.barrier, params={"k": 2},
                                   rounds=lambda p, k: len(dissemination.distances(p, k))),
        "tree": Algorithm(knomial.barrier, params={"k": 2},
                          rounds=lambda p, k: 2 * trees.depth(p, k)),
        "recursive_doubling": Algorithm(
            recursive_doubling.barrier, rounds=lambda p: _floor_log2(p) + 2 * _folded(p)),
        "linear": Algorithm(linear.barrier, rounds=lambda p: 2 * (p > 1)),
        "leader": Algorithm(
            leader.barrier, hierarchical=True,
            rounds=lambda t: regular(t, _ceil_log2, lambda m: 2 * _floor_log2(m))),
    },
    "bcast": {
        "linear": Algorithm(linear.bcast, rounds=lambda p: int(p > 1), sent=lambda p: p - 1),
        "binomial": Algorithm(knomial.bcast, rounds=_floor_log2, sent=_ceil_log2),
        "knomial": Algorithm(knomial.bcast, params={"k": 4},
                             rounds=trees.depth, sent=trees.degree),
        "chain": Algorithm(chain.bcast, rounds=lambda p: p - 1, sent=lambda p: int(p > 1)),
        "binary": Algorithm(binary.bcast),
        "bine": Algorithm(bine.bcast, rounds=_floor_log2, sent=bine.degree),
        "scatter_allgather": Algorithm(
            scatter_allgather.bcast, blocks=lambda p: p,
            rounds=lambda p: _floor_log2(p) + _floor_log2(4 * p // 3)),
        "scatter_ring": Algorithm(scatter_allgather.bcast_ring, blocks=lambda p: p,
                                  rounds=lambda p: _floor_log2(p) + p - 1),
        "double_tree": Algorithm(double_tree.bcast, blocks=lambda p: 2, rounds=_ceil_log2,
                                 sent=lambda p: 2 * (p > 1)),
        "circulant": Algorithm(
            circulant_broadcast.bcast, blocks=lambda p, n: n, params={"n": 8},
            rounds=circulant_broadcast.rounds, sent=circulant_broadcast.rounds),
        "leader": Algorithm(
            leader.bcast, hierarchical=True,
            rounds=lambda t: regular(t, _floor_log2), sent=lambda t: regular(t, _ceil_log2)),
        "rails": Algorithm(
            rails.bcast, blocks=rooted_nblocks, hierarchical=True,
            rounds=lambda t: regular(t, _floor_log2,
                                     lambda m: _floor_log2(m) + _ceil_log2(m))),
    },
    "reduce": {
        "linear": Algorithm(
            linear.reduce, rank_order=True, rounds=lambda p: -(-(p - 1) // linear.FAN),
            sent=lambda p: int(p > 1)),
        "binomial": Algorithm(knomial.reduce, rank_order=True,
                              rounds=_floor_log2, sent=lambda p: int(p > 1)),
        "knomial": Algorithm(knomial.reduce, params={"k": 4}, rank_order=True,
                             rounds=trees.depth, sent=lambda p, k: int(p > 1)),
        "chain": Algorithm(chain.reduce, rounds=lambda p: p - 1, sent=lambda p: int(p > 1)),
        "rabenseifner": Algorithm(
            recursive_halving.reduce, blocks=_power, rank_order=True,
            rounds=lambda p: 2 * _floor_log2(p) + _folded(p),
            sent=lambda p: _power(p) - 1 + _power(p) // 2),
        "in_order_binary": Algorithm(binary.reduce, rank_order=True, sent=lambda p: int(p > 1)),
        "bine": Algorithm(bine.reduce, rounds=_floor_log2, sent=lambda p: int(p > 1)),
        "double_tree": Algorithm(double_tree.reduce, blocks=lambda p: 2, rounds=_ceil_log2,
                                 sent=lambda p: 2 * (p > 1)),
        "circulant": Algorithm(
            circulant_broadcast.reduce, blocks=lambda p, n: n, params={"n": 8},
            rounds=circulant_broadcast.rounds, sent=lambda p, n: n * (p > 1)),
        "leader": Algorithm(
            leader.reduce, rank_order=True, hierarchical=True,
            rounds=lambda t: regular(t, _floor_log2), sent=lambda t: int(t.size > 1)),
        "rails": Algorithm(
            rails.reduce, blocks=rooted_nblocks, hierarchical=True,
            rounds=lambda t: regular(t, _floor_log2,
                                     lambda m: _floor_log2(m) + _ceil_log2(m))),
    },
    "gather": {
        "linear": Algorithm(linear.gather, own_blocks=True,
                            rounds=lambda p: int(p > 1), sent=lambda p: int(p > 1)),
        "binomial": Algorithm(knomial.gather, rounds=_floor_log2, sent=lambda p: p // 2),
    },
    "scatter": {
        "linear": Algorithm(linear.scatter, own_blocks=True,
                            rounds=lambda p: int(p > 1), sent=lambda p: p - 1),
        "binomial": Algorithm(knomial.scatter, rounds=_floor_log2, sent=lambda p: p - 1),
    },
}


def algorithm_names() -> dict[str, tuple[str, ...]]:
    """Names of all algorithms, by collective.

    >>> "ring" in algorithm_names()["allreduce"]
    True
    """
    return {collective: tuple(table) for collective, table in ALGORITHMS.items()}


def find(collective: str, name: str) -> Algorithm:
    """Look an algorithm up.

    Raises:
        ArgumentError: unknown collective or name; the message lists the valid ones.
    """
    if collective not in ALGORITHMS:
        raise ArgumentError("collective", f"{collective!r} is unknown",
                            f"choose from {', '.join(ALGORITHMS)}")
    if name not in ALGORITHMS[collective]:
        raise ArgumentError("algorithm", f"{collective} has no algorithm {name!r}",
                            f"choose from {', '.join(ALGORITHMS[collective])}")
    return ALGORITHMS[collective][name]
