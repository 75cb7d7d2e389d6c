"""Table of all algorithms: (collective, name) -> entry.

Numbers of rounds and of sent blocks are formulas (:mod:`hpccoll.algorithms.formula`), which every
proof checks. docs/algorithms.md is generated from this table.
"""

from __future__ import annotations

from hpccoll.algorithms import outside
from hpccoll.algorithms.entry import LARGE, SMALL, Algorithm, Variants
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
from hpccoll.algorithms.formula import (
    P,
    Relation,
    batch,
    ceil_div,
    ceil_log,
    ceil_log2,
    d,
    doubling_sum,
    even,
    f,
    f0,
    floor_div,
    floor_log,
    floor_log2,
    g,
    if_odd,
    inner,
    k,
    least,
    m,
    m0,
    more_than,
    n,
    number,
    p,
    p_equal,
)
from hpccoll.algorithms.hierarchical import alltoall, leader, rails, rails_blocks
from hpccoll.algorithms.hierarchical import bruck as hierarchical_bruck
from hpccoll.algorithms.hierarchical import census as hierarchical_census
from hpccoll.algorithms.hierarchical.ownership import nblocks, rooted_nblocks
from hpccoll.algorithms.parts import trees
from hpccoll.errors import ArgumentError

#: Values of the parameters: radices, blocks of a pipeline, messages at a time, owners in a group.
RADICES = {"k": Variants((2, 3, 4, 8))}
PIPELINED = {"n": Variants((4, 8, 32), edges=(1, 3))}
BATCHES = {"batch": Variants((2, 4, 16), edges=(1, 3, 8))}
OWNERS = {"leaders": Variants((2, 4), edges=(1, 3))}
#: Number of blocks that the groups of a topology can share evenly.
SHARES = Relation(nblocks, "=", p_equal)
ROOTED_SHARES = Relation(rooted_nblocks, "=", g)
#: Lanes of a group, and rounds between groups whose lanes all fetch concurrently.
LANES = least(k, g)
LANE_ROUNDS, RANK_ROUNDS = ceil_log(LANES + 1, m0), ceil_log(g + 1, m0)

#: The table. A name means the same idea in every collective.
ALGORITHMS: dict[str, dict[str, Algorithm]] = {
    "allreduce": {
        "ring": Algorithm(ring.allreduce, blocks=p, chain=True, picks=(LARGE,),
                          rounds=2 * (p - 1), sent=2 * (p - 1)),
        "allpairs": Algorithm(pairwise.allreduce, blocks=p, rank_order=True, chain=True,
                              rounds=number(2), sent=2 * (p - 1)),
        "recursive_doubling": Algorithm(
            recursive_doubling.allreduce, rank_order=True, reproducible=(SMALL,), picks=(SMALL,),
            rounds=floor_log2(p) + 2 * f, sent=floor_log2(p) + f),
        "recursive_multiplying": Algorithm(
            recursive_multiplying.allreduce, params={"k": 4}, variants=RADICES, rank_order=True,
            rounds=Relation(recursive_multiplying.rounds, "≤", floor_log(k, p) + 2),
            sent=Relation(recursive_multiplying.sent_vectors, "≤", (k - 1) * ceil_log(k, p))),
        "rabenseifner": Algorithm(
            recursive_halving.allreduce, blocks=P, rank_order=True, reproducible=(LARGE,),
            picks=(LARGE,), rounds=2 * floor_log2(p) + 2 * f, sent=2 * (P - 1) + f * P),
        "circulant": Algorithm(circulant.allreduce, blocks=p,
                               rounds=2 * ceil_log2(p), sent=2 * (p - 1)),
        "pat": Algorithm(pat.allreduce, blocks=p, rounds=2 * ceil_log2(p), sent=2 * (p - 1)),
        "swing": Algorithm(swing.allreduce, blocks=p,
                           rounds=2 * ceil_log2(even), sent=2 * (p - 1)),
        "census": Algorithm(census.allreduce, exact_only=True,
                            rounds=ceil_log2(p), sent=ceil_log2(p)),
        "linear": Algorithm(linear.allreduce, rank_order=True, chain=True,
                            rounds=ceil_div(p - 1, linear.FAN) + 1, sent=p - 1),
        "reduce_bcast": Algorithm(knomial.allreduce, rank_order=True,
                                  rounds=2 * floor_log2(p), sent=ceil_log2(p)),
        "double_tree": Algorithm(double_tree.allreduce, blocks=number(2),
                                 rounds=2 * ceil_log2(p), sent=least(p, 4)),
        "leader": Algorithm(
            leader.allreduce, rank_order=True, hierarchical=True,
            rounds=floor_log2(m0) + 2 * f0 + 2 * inner(floor_log2(m)),
            sent=floor_log2(m0) + f0 + inner(ceil_log2(m))),
        "lane_census": Algorithm(
            hierarchical_census.allreduce, params={"k": 8}, variants=RADICES, exact_only=True,
            hierarchical=True,
            rounds=Relation(hierarchical_census.rounds, "≥",
                            LANE_ROUNDS * (1 + floor_log2(LANES))),
            sent=Relation(hierarchical_census.sent_vectors, "≥",
                          LANE_ROUNDS * (1 + floor_log2(LANES)))),
        "multi_leader": Algorithm(rails.multi_leader, blocks=nblocks, params={"leaders": 2},
                                  variants=OWNERS, hierarchical=True),
        "crossing": Algorithm(
            rails.doubling_across, blocks=ROOTED_SHARES, hierarchical=True,
            rounds=floor_log2(m0) + 2 * f0 + 2 * inner(ceil_log2(m)),
            sent=floor_log2(m0) + f0 + 2 * (g - 1)),
        "rails": Algorithm(
            rails.allreduce, blocks=SHARES, hierarchical=True,
            rounds=2 * (ceil_log2(m0) + inner(ceil_log2(m))), sent=2 * (p_equal - 1)),
    },
    "reduce_scatter": {
        "ring": Algorithm(ring.reduce_scatter, chain=True, picks=(LARGE,),
                          rounds=p - 1, sent=p - 1),
        "linear": Algorithm(pairwise.linear_reduce_scatter, rank_order=True, chain=True,
                            rounds=number(1), sent=p - 1),
        "pairwise": Algorithm(pairwise.reduce_scatter, chain=True, rounds=p - 1, sent=p - 1),
        "recursive_halving": Algorithm(recursive_halving.reduce_scatter, picks=(SMALL,),
                                       rounds=floor_log2(p) + 2 * f, sent=p - 1 + f),
        "butterfly": Algorithm(
            recursive_halving.butterfly, rank_order=True, reproducible=(SMALL, LARGE),
            rounds=floor_log2(p) + f + more_than(p, 2), sent=p - 1 + more_than(p, 2)),
        "circulant": Algorithm(circulant.reduce_scatter, rounds=ceil_log2(p), sent=p - 1),
        "pat": Algorithm(pat.reduce_scatter, rounds=ceil_log2(p), sent=p - 1),
        "swing": Algorithm(swing.reduce_scatter, rounds=ceil_log2(even), sent=p - 1),
        "leader": Algorithm(leader.reduce_scatter, hierarchical=True,
                            rounds=ceil_log2(m0) + 2 * inner(floor_log2(m))),
        "rails": Algorithm(rails_blocks.reduce_scatter, hierarchical=True,
                           rounds=ceil_log2(m0) + inner(ceil_log2(m)), sent=p_equal - 1),
    },
    "allgather": {
        "ring": Algorithm(ring.allgather, picks=(LARGE,), rounds=p - 1, sent=p - 1),
        "linear": Algorithm(pairwise.linear_allgather, rounds=number(1), sent=p - 1),
        "neighbor_exchange": Algorithm(neighbor_exchange.allgather,
                                       rounds=if_odd(p - 1, p / 2), sent=p - 1),
        "recursive_doubling": Algorithm(
            recursive_doubling.allgather, picks=(SMALL,), rounds=floor_log2(p) + 2 * f,
            sent=P - 1 + doubling_sum(least(d, p - P)) + f * (p - 1)),
        "bruck": Algorithm(bruck.allgather, params={"k": 2}, variants=RADICES, picks=(SMALL,),
                           rounds=ceil_log(k, p), sent=p - 1),
        "circulant": Algorithm(circulant.allgather, rounds=ceil_log2(p), sent=p - 1),
        "pat": Algorithm(pat.allgather, rounds=ceil_log2(p), sent=p - 1),
        "swing": Algorithm(swing.allgather, rounds=ceil_log2(even), sent=p - 1),
        "leader": Algorithm(leader.allgather, hierarchical=True,
                            rounds=ceil_log2(m0) + 2 * inner(floor_log2(m)),
                            sent=p_equal - g + p * inner(ceil_log2(m))),
        "lane_bruck": Algorithm(
            hierarchical_bruck.allgather, hierarchical=True,
            rounds=Relation(hierarchical_bruck.rounds, "=",
                            RANK_ROUNDS + (RANK_ROUNDS + 1) * ceil_log2(g)),
            sent=Relation(hierarchical_bruck.sent_vectors, "=", p - 1)),
        "rails": Algorithm(rails_blocks.allgather, hierarchical=True,
                           rounds=ceil_log2(m0) + inner(ceil_log2(m)), sent=p_equal - 1),
    },
    "alltoall": {
        "linear": Algorithm(pairwise.linear_alltoall, picks=(SMALL,),
                            rounds=number(1), sent=p - 1),
        "pairwise": Algorithm(pairwise.alltoall, picks=(LARGE,), rounds=p - 1, sent=p - 1),
        "scattered": Algorithm(pairwise.scattered_alltoall, params={"batch": 4}, variants=BATCHES,
                               rounds=ceil_div(p - 1, batch), sent=p - 1),
        "bruck": Algorithm(
            bruck.alltoall, params={"k": 2}, variants=RADICES, uniform=True, picks=(SMALL,),
            rounds=ceil_log(k, p),
            sent=Relation(bruck.alltoall_sent, "≤", floor_div((k - 1) * p, k) * ceil_log(k, p))),
        "circulant": Algorithm(
            circulant.alltoall, uniform=True, rounds=ceil_log2(p),
            sent=Relation(circulant.alltoall_sent, "≤", floor_div(p, 2) * ceil_log2(p))),
        "leader": Algorithm(alltoall.leader, uniform=True, hierarchical=True,
                            rounds=m0 - 1 + 2 * inner(floor_log2(m))),
        "two_phase": Algorithm(alltoall.two_phase, uniform=True, hierarchical=True,
                               rounds=m0 - 1 + inner(m - 1), sent=p - p / m0 + inner(p - p / m)),
    },
    "scan": {
        "linear": Algorithm(scan.linear_scan, rank_order=True, chain=True, picks=(LARGE,),
                            rounds=p - 1, sent=number(1)),
        "recursive_doubling": Algorithm(
            scan.scan, rank_order=True, reproducible=(SMALL, LARGE), picks=(SMALL,),
            rounds=ceil_log2(p), sent=ceil_log2(p)),
        "census": Algorithm(census.scan, rank_order=True,
                            rounds=ceil_log2(p), sent=ceil_log2(p)),
    },
    "exscan": {
        "linear": Algorithm(scan.linear_exscan, rank_order=True, chain=True, picks=(LARGE,),
                            rounds=p - 1, sent=number(1)),
        "recursive_doubling": Algorithm(
            scan.exscan, rank_order=True, reproducible=(SMALL, LARGE), picks=(SMALL,),
            rounds=ceil_log2(p), sent=ceil_log2(p)),
        "census": Algorithm(census.exscan, rank_order=True,
                            rounds=ceil_log2(p), sent=ceil_log2(p)),
    },
    "barrier": {
        "dissemination": Algorithm(dissemination.barrier, params={"k": 2}, variants=RADICES,
                                   picks=(SMALL, LARGE), rounds=ceil_log(k, p)),
        "tree": Algorithm(knomial.barrier, params={"k": 2}, variants=RADICES,
                          rounds=2 * floor_log(k, (k - 1) * p)),
        "recursive_doubling": Algorithm(recursive_doubling.barrier,
                                        rounds=floor_log2(p) + 2 * f),
        "linear": Algorithm(linear.barrier, rounds=number(2)),
        "leader": Algorithm(leader.barrier, hierarchical=True,
                            rounds=ceil_log2(m0) + 2 * inner(floor_log2(m))),
    },
    "bcast": {
        "linear": Algorithm(linear.bcast, rounds=number(1), sent=p - 1),
        "binomial": Algorithm(knomial.bcast, picks=(SMALL,),
                              rounds=floor_log2(p), sent=ceil_log2(p)),
        "knomial": Algorithm(knomial.bcast, params={"k": 4}, variants=RADICES,
                             rounds=floor_log(k, (k - 1) * p),
                             sent=Relation(trees.degree, "≤", (k - 1) * ceil_log(k, p))),
        "chain": Algorithm(chain.bcast, picks=(LARGE,), rounds=p - 1, sent=number(1)),
        "binary": Algorithm(binary.bcast),
        "bine": Algorithm(bine.bcast, rounds=floor_log2(p),
                          sent=Relation(bine.degree, "=",
                                        floor_log2(3 * even) - 1 + (p - even))),
        "scatter_allgather": Algorithm(
            scatter_allgather.bcast, blocks=p, picks=(LARGE,),
            rounds=floor_log2(p) + floor_log2(floor_div(4 * p, 3))),
        "scatter_ring": Algorithm(scatter_allgather.bcast_ring, blocks=p,
                                  rounds=floor_log2(p) + p - 1),
        "double_tree": Algorithm(double_tree.bcast, blocks=number(2),
                                 rounds=ceil_log2(p), sent=number(2)),
        "circulant": Algorithm(
            circulant_broadcast.bcast, blocks=n, params={"n": 8}, variants=PIPELINED,
            rounds=n - 1 + ceil_log2(p), sent=n - 1 + ceil_log2(p)),
        "leader": Algorithm(leader.bcast, hierarchical=True,
                            rounds=floor_log2(m0) + inner(floor_log2(m)),
                            sent=ceil_log2(m0) + inner(ceil_log2(m))),
        "rails": Algorithm(
            rails.bcast, blocks=ROOTED_SHARES, hierarchical=True,
            rounds=floor_log2(m0) + inner(floor_log2(m) + ceil_log2(m))),
    },
    "reduce": {
        "linear": Algorithm(linear.reduce, rank_order=True, chain=True,
                            rounds=ceil_div(p - 1, linear.FAN), sent=number(1)),
        "binomial": Algorithm(knomial.reduce, rank_order=True, picks=(SMALL,),
                              rounds=floor_log2(p), sent=number(1)),
        "knomial": Algorithm(knomial.reduce, params={"k": 4}, variants=RADICES, rank_order=True,
                             rounds=floor_log(k, (k - 1) * p), sent=number(1)),
        "chain": Algorithm(chain.reduce, chain=True, picks=(LARGE,),
                           rounds=p - 1, sent=number(1)),
        "rabenseifner": Algorithm(
            recursive_halving.reduce, blocks=P, rank_order=True, reproducible=(SMALL, LARGE),
            picks=(LARGE,), rounds=2 * floor_log2(p) + f, sent=P - 1 + floor_div(P, 2)),
        "in_order_binary": Algorithm(binary.reduce, rank_order=True, sent=number(1)),
        "bine": Algorithm(bine.reduce, rounds=floor_log2(p), sent=number(1)),
        "double_tree": Algorithm(double_tree.reduce, blocks=number(2),
                                 rounds=ceil_log2(p), sent=number(2)),
        "circulant": Algorithm(
            circulant_broadcast.reduce, blocks=n, params={"n": 8}, variants=PIPELINED,
            rounds=n - 1 + ceil_log2(p), sent=n),
        "leader": Algorithm(leader.reduce, rank_order=True, hierarchical=True,
                            rounds=floor_log2(m0) + inner(floor_log2(m)), sent=number(1)),
        "rails": Algorithm(
            rails.reduce, blocks=ROOTED_SHARES, hierarchical=True,
            rounds=floor_log2(m0) + inner(floor_log2(m) + ceil_log2(m))),
    },
    "gather": {
        "linear": Algorithm(linear.gather, own_blocks=True, picks=(LARGE,),
                            rounds=number(1), sent=number(1)),
        "binomial": Algorithm(knomial.gather, picks=(SMALL,),
                              rounds=floor_log2(p), sent=floor_div(p, 2)),
    },
    "scatter": {
        "linear": Algorithm(linear.scatter, own_blocks=True, picks=(LARGE,),
                            rounds=number(1), sent=p - 1),
        "binomial": Algorithm(knomial.scatter, picks=(SMALL,),
                              rounds=floor_log2(p), sent=p - 1),
    },
}


def algorithm_names() -> dict[str, tuple[str, ...]]:
    """Return the names of all algorithms by collective: the table's, then those of packages.

    >>> "ring" in algorithm_names()["allreduce"]
    True
    """
    return {collective: (*table, *(name for name in outside.installed_algorithms(collective)
                                   if name not in table))
            for collective, table in ALGORITHMS.items()}


def is_ours(collective: str, name: str) -> bool:
    """Return True if the table has an algorithm, which tests then prove."""
    return name in ALGORITHMS.get(collective, ())


def find(collective: str, name: str) -> Algorithm:
    """Find an algorithm in the table, in installed packages, or as ``FILE.py:NAME``.

    Raises:
        ArgumentError: unknown collective or name; the message lists the valid ones.
    """
    if collective not in ALGORITHMS:
        raise ArgumentError.unknown_word("collective", collective, ALGORITHMS)
    if name in ALGORITHMS[collective]:
        return ALGORITHMS[collective][name]
    entry = outside.find(collective, name)
    if entry is None:
        raise ArgumentError.unknown_word("algorithm", name, algorithm_names()[collective],
                                         f"{collective} has no algorithm {name!r}")
    return entry


def picks(collective: str, large: bool) -> tuple[str, ...]:
    """Return the algorithms of a short comparison, by length of messages."""
    length = LARGE if large else SMALL
    return tuple(name for name, entry in ALGORITHMS[collective].items() if length in entry.picks)


def reproducible(collective: str) -> tuple[str, ...]:
    """Return the algorithms with one order of all elements: for short and for long messages."""
    return tuple(dict.fromkeys(name for length in (SMALL, LARGE)
                               for name, entry in ALGORITHMS[collective].items()
                               if length in entry.reproducible))
