"""From a name in the table, or a builder that a user brings, to a schedule."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hpccoll.algorithms.entry import Algorithm
from hpccoll.algorithms.formula import ClosedForm
from hpccoll.algorithms.table import find
from hpccoll.errors import ArgumentError, ArgumentTypeError
from hpccoll.ir.collectives import COLLECTIVES, Collective, slot_keys
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
    where: int | Topology = size
    if entry.hierarchical:
        topology = topology or Topology(size)
        where = topology.plain
    else:
        topology = None
    rooted = (root,) if kind.rooted else ()
    cut = entry.blocks(where, **params) if nblocks is None else nblocks

    def build(rank: int) -> Program:
        return entry.build(rank, where, *rooted, **params)

    if topology and topology.order:
        program_of = _by_position(entry, kind, topology, rooted, params)
    else:
        program_of = build
    return Schedule(kind, name, size, program_of, root if rooted else 0, 1 if cut is None else cut,
                    tuple(params.items()), topology, entry.uniform,
                    _closed_form(entry.rounds, where, params),
                    _closed_form(entry.sent, where, params))


def _closed_form(form: ClosedForm | None, where: int | Topology,
                 params: Mapping[str, int]) -> int | None:
    value = form(where, **params) if form else None
    # One rank sends nothing, whatever a formula for two and more says.
    one = where == 1 or isinstance(where, Topology) and where.size == 1
    return 0 if one and value is not None else value


def _by_position(entry: Algorithm, kind: Collective, topology: Topology, rooted: tuple[int, ...],
                 params: Mapping[str, int]) -> Callable[[int], Program]:
    """A builder for ranks with an order of their own.

    A rank runs the program of its position; peers, and blocks that belong to ranks, are renamed.
    """
    order, positions, size = topology.ranks, topology.positions, topology.size
    position_of_root = [positions[root] for root in rooted]

    def build(rank: int) -> Program:
        program = entry.build(positions[rank], topology.plain, *position_of_root, **params)
        if kind.payload not in ("blocks", "pairs"):
            return relabelled(program, order)
        slots = slot_keys(kind, rank, size, *rooted)
        buffers = {buffer for buffer, keys in slots.items() if len(keys) == size}
        if kind.payload == "blocks":
            return relabelled(program, order, order.__getitem__, buffers)
        return relabelled(program, order, lambda key: order[key // size] * size + order[key % size],
                          buffers)

    return build


def _entry(collective: str, algorithm: str | Callable[..., Program] | Algorithm,
           params: Mapping[str, int]) -> Algorithm:
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
