"""Construction of schedules from names of the table and from builders."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from hpccoll.algorithms.entry import Algorithm
from hpccoll.algorithms.formula import ClosedForm
from hpccoll.algorithms.outside import did_you_mean
from hpccoll.algorithms.table import find, is_ours
from hpccoll.errors import ArgumentError, ArgumentTypeError
from hpccoll.ir.collectives import COLLECTIVES, Collective, collective_named, slot_keys
from hpccoll.ir.passes import relabel_ranks
from hpccoll.ir.schedule import Program, Schedule
from hpccoll.ir.topology import Topology


def schedule(collective: str, algorithm: str | Callable[..., Program] | Algorithm = "ring",
             size: int | None = None, *, root: int = 0,
             topology: str | Topology | None = None, nblocks: int | None = None,
             **params: int) -> Schedule:
    """Build a schedule from the table, or from a builder of your own.

    Args:
        collective: its name, as ``allreduce``, or as MPI spells it.
        algorithm: a name, ``FILE.py:NAME``, an :class:`~hpccoll.algorithms.entry.Algorithm`, or
            ``build(rank, size[, root], **params) -> Program``.
        size: number of ranks; may be omitted with ``topology``.
        root: root rank of rooted collectives.
        topology: layout, for hierarchical algorithms. If it has its own order of ranks, reductions
            do not keep rank order.
        nblocks: number of blocks of a vector, for a builder of your own; by default that of its
            ``Algorithm``, or 1.
        params: the algorithm's parameters, such as ``k=4``.

    Raises:
        ArgumentError: an unknown or missing name, parameter or value, or an unsupported number of
            ranks; the message lists the valid ones.
    """
    collective = collective_named(collective) if isinstance(collective, str) else collective
    entry = _entry(collective, algorithm)
    ours = isinstance(algorithm, str) and is_ours(collective, algorithm)
    name = str(algorithm) if ours else entry.label
    params = _parameters(collective, entry, name, params, ours)
    if nblocks is not None and ours:
        raise ArgumentError("nblocks", f"{algorithm} defines its own number of blocks",
                            "pass nblocks only with your own builder")
    if topology is not None:
        topology = Topology.parse(topology, size)
        size = topology.size
    if size is None or isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise ArgumentError("size", f"expected a number of ranks, got {size!r}")
    if not isinstance(root, int) or isinstance(root, bool) or not 0 <= root < size:
        raise ArgumentError("root", f"{root!r} is not a rank of 0..{size - 1}")
    kind = COLLECTIVES[collective]
    where: int | Topology = size
    if entry.hierarchical:
        topology = topology or Topology(size)
        where = topology.plain
    else:
        topology = None
    rooted = (root,) if kind.rooted else ()
    if entry.fits is not None and not _property_of(name, "fits", entry.fits, where, params):
        given = "".join(f", {key}={value!r}" for key, value in params.items())
        raise ArgumentError("size", f"{name} does not support {where} ranks{given}",
                            "use other parameters, or another number of ranks")
    cut = _property_of(name, "blocks", entry.blocks, where, params) if nblocks is None else nblocks

    def build(rank: int) -> Program:
        return entry.build(rank, where, *rooted, **params)

    if topology and topology.order:
        program_of = _by_position(entry, kind, topology, rooted, params)
    else:
        program_of = build
    return Schedule(kind, name, size, program_of, root if rooted else 0, 1 if cut is None else cut,
                    tuple(params.items()), topology, entry.uniform,
                    _closed_form(name, "rounds", entry.rounds, where, params),
                    _closed_form(name, "sent", entry.sent, where, params))


def _property_of(name: str, what: str, function: Any, where: int | Topology,
                 params: Mapping[str, int]) -> Any:
    """Return a property of an algorithm for a number of ranks."""
    try:
        return function(where, **params)
    except TypeError as error:
        words = ", ".join(["topology" if isinstance(where, Topology) else "size", *params])
        raise ArgumentError("algorithm", f"{what} of {name} failed: {error}",
                            f"hpccoll calls it as {what}({words})") from error


def _closed_form(name: str, what: str, form: ClosedForm | None, where: int | Topology,
                 params: Mapping[str, int]) -> int | None:
    value: int | None = _property_of(name, what, form, where, params) if form else None
    # One rank sends nothing; formulas are for two ranks and more.
    one = where == 1 or isinstance(where, Topology) and where.size == 1
    return 0 if one and value is not None else value


def _by_position(entry: Algorithm, kind: Collective, topology: Topology, rooted: tuple[int, ...],
                 params: Mapping[str, int]) -> Callable[[int], Program]:
    """Return a builder for a topology with its own order of ranks.

    A rank runs the program of its position, with renamed peers and blocks.
    """
    order, positions, size = topology.ranks, topology.positions, topology.size
    position_of_root = [positions[root] for root in rooted]

    def build(rank: int) -> Program:
        program = entry.build(positions[rank], topology.plain, *position_of_root, **params)
        if kind.payload not in ("blocks", "pairs"):
            return relabel_ranks(program, order)
        slots = slot_keys(kind, rank, size, *rooted)
        buffers = {buffer for buffer, keys in slots.items() if len(keys) == size}
        if kind.payload == "blocks":
            return relabel_ranks(program, order, order.__getitem__, buffers)
        return relabel_ranks(program, order,
                             lambda key: order[key // size] * size + order[key % size],
                             buffers)

    return build


def _entry(collective: str, algorithm: str | Callable[..., Program] | Algorithm) -> Algorithm:
    if isinstance(algorithm, str):
        return find(collective, algorithm)
    if not callable(algorithm) and not isinstance(algorithm, Algorithm):
        raise ArgumentTypeError("algorithm", f"expected a name or a builder, got {algorithm!r}")
    if collective not in COLLECTIVES:
        raise ArgumentError.unknown_word("collective", collective, COLLECTIVES)
    entry = algorithm if isinstance(algorithm, Algorithm) else Algorithm(algorithm)
    if entry.collective not in ("", collective):
        raise ArgumentError("collective", f"{entry} implements {entry.collective}, not "
                                          f"{collective}")
    return entry


def takes(entry: Algorithm, collective: str) -> dict[str, Any]:
    """Return the parameters of a builder outside the table, with their defaults by name.

    A parameter without a default has ``inspect.Parameter.empty``; ``**`` means any others.
    """
    try:
        taken = list(inspect.signature(entry.build).parameters.values())
    except (TypeError, ValueError):  # written in C
        return {"**": None, **entry.params}
    fixed = ["rank", "topology" if entry.hierarchical else "size",
             *["root"] * COLLECTIVES[collective].rooted]
    room = [each for each in taken if each.kind in (each.POSITIONAL_ONLY,
                                                    each.POSITIONAL_OR_KEYWORD)]
    if len(room) < len(fixed) and not any(each.kind == each.VAR_POSITIONAL for each in taken):
        raise ArgumentTypeError("algorithm", f"the builder {entry.label} takes "
                                f"({', '.join(each.name for each in room)})",
                                f"{collective} passes it ({', '.join(fixed)})")
    known: dict[str, Any] = {}
    for parameter in taken[2 + COLLECTIVES[collective].rooted:]:
        if parameter.kind == parameter.VAR_KEYWORD:
            known["**"] = None
        elif parameter.kind != parameter.VAR_POSITIONAL:
            known[parameter.name] = parameter.default
    return {**known, **entry.params}


def _parameters(collective: str, entry: Algorithm, name: str, given: Mapping[str, int],
                ours: bool) -> dict[str, int]:
    """Return all parameters in the order of the algorithm: the given ones and defaults.

    Raises:
        ArgumentError: a parameter is unknown, missing, or not a positive number.
    """
    known = dict(entry.params) if ours else takes(entry, collective)
    free = known.pop("**", entry) is None
    for key, value in given.items():
        if key not in known and not free:
            raise ArgumentError(key, f"{collective} {name} has no such parameter",
                                f"its parameters are: {', '.join(known) or 'none'}"
                                + did_you_mean(key, known))
        if ours and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise ArgumentError(key, f"expected a positive integer, got {value!r}")
    params = {**known, **given}
    missing = [key for key, value in params.items() if value is inspect.Parameter.empty]
    if missing:
        example = ", ".join(f"{key!r}: 2" for key in missing)
        words = " ".join(f"-p {key}=2" for key in missing)
        raise ArgumentError(missing[0], f"{collective} {name} requires {', '.join(missing)}",
                            f"pass {'it' if len(missing) == 1 else 'them'} like {words} on the "
                            f"command line, or as (algorithm, {{{example}}}) to comm.using")
    return params
