"""Every algorithm, in one literal table: (collective, name) -> builder and its conditions."""

from __future__ import annotations

from typing import Any, Callable, Mapping, NamedTuple

from hpccoll.algorithms import doubling, ring
from hpccoll.collective import COLLECTIVES
from hpccoll.errors import ArgumentError, ArgumentTypeError
from hpccoll.schedule import Program, Schedule
from hpccoll.topology import Topology


def _floor_log2(p: int) -> int:
    return p.bit_length() - 1


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
        rank_order: keeps rank order, so serves operators that do not commute.
        exact_only: ranks may associate differently; offered only where that cannot show.
        uniform: needs blocks of one size.
        hierarchical: builds from a topology of at least two levels.
        rounds, sent: closed forms in (size, **params), confirmed by every proof.
    """

    build: Callable[..., Program]
    blocks: Callable[..., int] = lambda size, **params: 1
    params: Mapping[str, int] = {}
    rank_order: bool = False
    exact_only: bool = False
    uniform: bool = False
    hierarchical: bool = False
    rounds: Callable[..., int] | None = None
    sent: Callable[..., int] | None = None


#: THE table. A name means the same idea in every collective.
ALGORITHMS: dict[str, dict[str, Algorithm]] = {
    "allreduce": {
        "ring": Algorithm(ring.allreduce, blocks=lambda p: p,
                          rounds=lambda p: 2 * (p - 1), sent=lambda p: 2 * (p - 1)),
        "recursive_doubling": Algorithm(
            doubling.allreduce, rank_order=True,
            rounds=lambda p: _floor_log2(p) + 2 * _folded(p),
            sent=lambda p: _floor_log2(p) + _folded(p)),
    },
    "reduce_scatter": {
        "ring": Algorithm(ring.reduce_scatter, rounds=lambda p: p - 1, sent=lambda p: p - 1),
    },
    "allgather": {
        "ring": Algorithm(ring.allgather, rounds=lambda p: p - 1, sent=lambda p: p - 1),
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
        topology: layout, for hierarchical algorithms.
        nblocks: blocks a vector is cut into; the algorithm's own choice if omitted.
        params: the algorithm's parameters, such as ``k=4``.

    Raises:
        ArgumentError: an unknown name, parameter or value; the message lists what is valid.
    """
    name = algorithm if isinstance(algorithm, str) else getattr(algorithm, "__name__", "custom")
    entry = _entry(collective, algorithm, params)
    if topology is not None:
        topology = Topology.parse(topology, size)
        size = topology.size
    if size is None or isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise ArgumentError("size", f"expected a number of ranks, got {size!r}")
    if not isinstance(root, int) or isinstance(root, bool) or not 0 <= root < size:
        raise ArgumentError("root", f"{root!r} is not a rank of 0..{size - 1}")
    params = {**entry.params, **params}
    where: Any = size
    if entry.hierarchical:
        where = topology = topology or Topology(size)
    rooted = (root,) if COLLECTIVES[collective].rooted else ()

    def build(rank: int) -> Program:
        return entry.build(rank, where, *rooted, **params)

    return Schedule(
        COLLECTIVES[collective], name, size, build, root if rooted else 0,
        nblocks if nblocks is not None else entry.blocks(where, **params),
        tuple(params.items()), topology if entry.hierarchical else None, entry.uniform,
        entry.rounds and entry.rounds(where, **params), entry.sent and entry.sent(where, **params))


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
