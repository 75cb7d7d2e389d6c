"""Every algorithm, in one literal table: (collective, name) -> builder and its conditions."""

from __future__ import annotations

from typing import Any, Callable, Mapping, NamedTuple

from hpccoll.algorithms import (
    binary, bine, bruck, chain, circulant, circulant_broadcast, dissemination, double_tree,
    doubling, halving, hierarchy_alltoall, hierarchy_bruck, hierarchy_lanes, hierarchy_leader,
    hierarchy_rails, hierarchy_window, knomial, linear, multiplying, neighbor, pairwise, pat,
    prefix, ring, routes, scatter_allgather, swing, trees, window)
from hpccoll.algorithms.hierarchy import regular
from hpccoll.algorithms.shares import nblocks, rooted_nblocks
from hpccoll.collective import COLLECTIVES, slot_keys
from hpccoll.errors import ArgumentError, ArgumentTypeError
from hpccoll.passes import relabelled
from hpccoll.schedule import Program, Schedule
from hpccoll.topology import Topology


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
            doubling.allreduce, rank_order=True,
            rounds=lambda p: _floor_log2(p) + 2 * _folded(p),
            sent=lambda p: _floor_log2(p) + _folded(p)),
        "recursive_multiplying": Algorithm(
            multiplying.allreduce, params={"k": 4}, rank_order=True,
            rounds=multiplying.rounds, sent=multiplying.sent),
        "rabenseifner": Algorithm(
            halving.allreduce, blocks=_power, rank_order=True,
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
            rounds=lambda p: 2 * routes.rounds(p), sent=lambda p: 2 * (p - 1)),
        "window": Algorithm(window.allreduce, exact_only=True, rounds=_ceil_log2, sent=_ceil_log2),
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
            hierarchy_leader.allreduce, rank_order=True, hierarchical=True,
            rounds=lambda t: regular(t, lambda m: _floor_log2(m) + 2 * _folded(m),
                                     lambda m: 2 * _floor_log2(m)),
            sent=lambda t: regular(t, lambda m: _floor_log2(m) + _folded(m), _ceil_log2)),
        "lane_window": Algorithm(
            hierarchy_window.allreduce, params={"k": 8}, exact_only=True, hierarchical=True,
            rounds=hierarchy_window.rounds, sent=hierarchy_window.sent),
        "multi_leader": Algorithm(
            hierarchy_rails.multi_leader, blocks=nblocks,
            params={"leaders": 2}, hierarchical=True),
        "crossing": Algorithm(
            hierarchy_rails.crossing, blocks=rooted_nblocks, hierarchical=True,
            rounds=lambda t: regular(t, lambda m: _floor_log2(m) + 2 * _folded(m),
                                     lambda m: 2 * _ceil_log2(m)),
            sent=lambda t: regular(
                t, lambda m: _floor_log2(m) + _folded(m) + 2 * (t.size // m - 1), lambda m: 0)),
        "rails": Algorithm(
            hierarchy_rails.allreduce, blocks=nblocks, hierarchical=True,
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
            halving.reduce_scatter, rounds=lambda p: _floor_log2(p) + 2 * _folded(p),
            sent=lambda p: p - 1 + _folded(p)),
        "butterfly": Algorithm(
            halving.butterfly, rank_order=True, sent=lambda p: p - (p < 3),
            rounds=lambda p: _floor_log2(p) + _folded(p) + (p > 2)),
        "circulant": Algorithm(circulant.reduce_scatter, rounds=_ceil_log2, sent=lambda p: p - 1),
        "pat": Algorithm(pat.reduce_scatter, rounds=_ceil_log2, sent=lambda p: p - 1),
        "swing": Algorithm(swing.reduce_scatter, rounds=routes.rounds, sent=lambda p: p - 1),
        "leader": Algorithm(
            hierarchy_leader.reduce_scatter, hierarchical=True,
            rounds=lambda t: regular(t, _ceil_log2, lambda m: 2 * _floor_log2(m))),
        "rails": Algorithm(
            hierarchy_lanes.reduce_scatter, hierarchical=True,
            rounds=lambda t: regular(t, _ceil_log2),
            sent=lambda t: regular(t, lambda m: t.size - 1, lambda m: 0)),
    },
    "allgather": {
        "ring": Algorithm(ring.allgather, rounds=lambda p: p - 1, sent=lambda p: p - 1),
        "linear": Algorithm(pairwise.linear_allgather,
                            rounds=lambda p: int(p > 1), sent=lambda p: p - 1),
        "neighbor_exchange": Algorithm(
            neighbor.allgather, rounds=lambda p: p - 1 if p % 2 else p // 2,
            sent=lambda p: p - 1),
        "recursive_doubling": Algorithm(
            doubling.allgather, rounds=lambda p: _floor_log2(p) + 2 * _folded(p),
            sent=doubling.allgather_sent),
        "bruck": Algorithm(bruck.allgather, params={"k": 2},
                           rounds=lambda p, k: len(bruck.powers(p, k)), sent=lambda p, k: p - 1),
        "circulant": Algorithm(circulant.allgather, rounds=_ceil_log2, sent=lambda p: p - 1),
        "pat": Algorithm(pat.allgather, rounds=_ceil_log2, sent=lambda p: p - 1),
        "swing": Algorithm(swing.allgather, rounds=routes.rounds, sent=lambda p: p - 1),
        "leader": Algorithm(
            hierarchy_leader.allgather, hierarchical=True,
            rounds=lambda t: regular(t, _ceil_log2, lambda m: 2 * _floor_log2(m)),
            sent=lambda t: regular(t, lambda m: t.size - t.size // m,
                                   lambda m: t.size * _ceil_log2(m))),
        "lane_bruck": Algorithm(hierarchy_bruck.allgather, hierarchical=True,
                                rounds=hierarchy_bruck.rounds, sent=hierarchy_bruck.sent),
        "rails": Algorithm(
            hierarchy_lanes.allgather, hierarchical=True,
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
            hierarchy_alltoall.leader, uniform=True, hierarchical=True,
            rounds=lambda t: regular(t, lambda m: m - 1, lambda m: 2 * _floor_log2(m))),
        "two_phase": Algorithm(
            hierarchy_alltoall.two_phase, uniform=True, hierarchical=True,
            rounds=lambda t: regular(t, lambda m: m - 1),
            sent=lambda t: regular(t, lambda m: t.size - t.size // m)),
    },
    "scan": {
        "linear": Algorithm(prefix.linear_scan, rank_order=True,
                            rounds=lambda p: p - 1, sent=lambda p: int(p > 1)),
        "recursive_doubling": Algorithm(prefix.scan, rank_order=True,
                                        rounds=_ceil_log2, sent=_ceil_log2),
        "window": Algorithm(window.scan, rank_order=True, rounds=_ceil_log2, sent=_ceil_log2),
    },
    "exscan": {
        "linear": Algorithm(prefix.linear_exscan, rank_order=True,
                            rounds=lambda p: p - 1, sent=lambda p: int(p > 1)),
        "recursive_doubling": Algorithm(prefix.exscan, rank_order=True,
                                        rounds=_ceil_log2, sent=_ceil_log2),
        "window": Algorithm(window.exscan, rank_order=True, rounds=_ceil_log2, sent=_ceil_log2),
    },
    "barrier": {
        "dissemination": Algorithm(dissemination.barrier, params={"k": 2},
                                   rounds=lambda p, k: len(dissemination.distances(p, k))),
        "tree": Algorithm(knomial.barrier, params={"k": 2},
                          rounds=lambda p, k: 2 * trees.depth(p, k)),
        "recursive_doubling": Algorithm(
            doubling.barrier, rounds=lambda p: _floor_log2(p) + 2 * _folded(p)),
        "linear": Algorithm(linear.barrier, rounds=lambda p: 2 * (p > 1)),
        "leader": Algorithm(
            hierarchy_leader.barrier, hierarchical=True,
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
            hierarchy_leader.bcast, hierarchical=True,
            rounds=lambda t: regular(t, _floor_log2), sent=lambda t: regular(t, _ceil_log2)),
        "rails": Algorithm(
            hierarchy_rails.bcast, blocks=rooted_nblocks, hierarchical=True,
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
            halving.reduce, blocks=_power, rank_order=True,
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
            hierarchy_leader.reduce, rank_order=True, hierarchical=True,
            rounds=lambda t: regular(t, _floor_log2), sent=lambda t: int(t.size > 1)),
        "rails": Algorithm(
            hierarchy_rails.reduce, blocks=rooted_nblocks, hierarchical=True,
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


def algorithms() -> dict[str, tuple[str, ...]]:
    """Names of all algorithms, by collective.

    >>> "ring" in algorithms()["allreduce"]
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


def schedule(collective: str, algorithm: str | Callable[..., Program] | Algorithm = "ring",
             size: int | None = None, *, root: int = 0,
             topology: str | Topology | None = None, nblocks: int | None = None,
             **params: int) -> Schedule:
    """Make a schedule from the table, or from a builder of your own.

    Args:
        collective: MPI name in lower case.
        algorithm: a name, or ``build(rank, size[, root], **params) -> Program``.
        size: number of ranks; may be left out when ``topology`` tells it.
        root: root rank of rooted collectives.
        topology: layout, for hierarchical algorithms. On one with an order of ranks of its own,
            reductions do not keep rank order.
        nblocks: blocks a vector is cut into, for a builder of your own; 1 if omitted.
        params: the algorithm's parameters, such as ``k=4``.

    Raises:
        ArgumentError: an unknown name, parameter or value; the message lists what is valid.
    """
    name = algorithm if isinstance(algorithm, str) else getattr(algorithm, "__name__", "custom")
    entry = _entry(collective, algorithm, params)
    if nblocks is not None and isinstance(algorithm, str):
        raise ArgumentError("nblocks", f"{algorithm} cuts vectors its own way",
                            "give nblocks only with a builder of your own")
    if topology is not None:
        topology = Topology.parse(topology, size)
        size = topology.size
    if size is None or isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise ArgumentError("size", f"expected a number of ranks, got {size!r}")
    if not isinstance(root, int) or isinstance(root, bool) or not 0 <= root < size:
        raise ArgumentError("root", f"{root!r} is not a rank of 0..{size - 1}")
    params = {**entry.params, **params}
    kind = COLLECTIVES[collective]
    where: Any = size
    if entry.hierarchical:
        topology = topology or Topology(size)
        where = topology.plain
    rooted = (root,) if kind.rooted else ()

    def build(rank: int) -> Program:
        return entry.build(rank, where, *rooted, **params)

    def placed(rank: int) -> Program:
        """The program of the rank's position, in terms of ranks."""
        at = topology.positions
        program = entry.build(at[rank], where, *(at[r] for r in rooted), **params)
        return _relabelled(program, made, rank, topology.order)

    made = Schedule(
        kind, name, size, placed if entry.hierarchical and topology.order else build,
        root if rooted else 0, nblocks if nblocks is not None else entry.blocks(where, **params),
        tuple(params.items()), topology if entry.hierarchical else None, entry.uniform,
        entry.rounds and entry.rounds(where, **params), entry.sent and entry.sent(where, **params))
    return made


def _relabelled(program: Program, made: Schedule, rank: int, order: tuple[int, ...]) -> Program:
    """Put a program of positions into terms of ranks: peers, and blocks that belong to ranks."""
    size, payload = made.size, made.collective.payload
    if payload not in ("blocks", "pairs"):
        return relabelled(program, order)
    slots = slot_keys(made.collective, rank, size, made.root)
    buffers = {buffer for buffer, keys in slots.items() if len(keys) == size}
    if payload == "blocks":
        return relabelled(program, order, order.__getitem__, buffers)
    return relabelled(program, order,
                      lambda key: order[key // size] * size + order[key % size], buffers)


def _entry(collective: str, algorithm, params: Mapping[str, int]) -> Algorithm:
    if isinstance(algorithm, Algorithm):
        return algorithm
    if callable(algorithm):
        if collective not in COLLECTIVES:
            raise ArgumentError("collective", f"{collective!r} is unknown",
                                f"choose from {', '.join(COLLECTIVES)}")
        return Algorithm(algorithm, params=params)
    if not isinstance(algorithm, str):
        raise ArgumentTypeError("algorithm", f"expected a name or a builder, got {algorithm!r}")
    entry = find(collective, algorithm)
    for key, value in params.items():
        if key not in entry.params:
            known = ", ".join(entry.params) or "none"
            raise ArgumentError(key, f"{collective} {algorithm} has no such parameter",
                                f"it takes: {known}")
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ArgumentError(key, f"expected a positive integer, got {value!r}")
    return entry
