"""From a name in the table, or a builder that a user brings, to a schedule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hpccoll.algorithms.table import Algorithm, find
from hpccoll.errors import ArgumentError, ArgumentTypeError
from hpccoll.ir.collectives import COLLECTIVES, slot_keys
from hpccoll.ir.passes import relabelled
from hpccoll.ir.schedule import Program, Schedule
from hpccoll.ir.topology import Topology


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
