"""What would run for a call, what else could, and why: the text behind ``comm.explain``."""

from __future__ import annotations

from typing import Mapping

from mpi4py import MPI

from hpccoll.algorithms import ALGORITHMS, schedule
from hpccoll.calls import Call
from hpccoll.collective import COLLECTIVES
from hpccoll.config import NATIVE
from hpccoll.errors import ArgumentError
from hpccoll.explain import as_text
from hpccoll.schedule import Schedule
from hpccoll.topology import Topology
from hpccoll.tune.choose import Choice, choose, objection

#: Up to this many ranks the chosen schedule is explained in full.
EXPLAINED = 16


def describe(collective: str, nbytes: int, size: int, wish: Choice | None,
             from_environment: bool, topology: Topology | None) -> str:
    """Explain the choice for a sum of float32 of ``nbytes`` bytes on ``size`` ranks.

    Raises:
        ArgumentError: unknown collective, or a size that makes no sense.
    """
    if collective not in COLLECTIVES:
        raise ArgumentError("collective", f"{collective!r} is unknown",
                            f"choose from {', '.join(COLLECTIVES)}")
    if isinstance(nbytes, bool) or not isinstance(nbytes, int) or nbytes < 0:
        raise ArgumentError("nbytes", f"expected a number of bytes, got {nbytes!r}")
    reduces = COLLECTIVES[collective].reduces
    call = Call(collective, collective, datatype=MPI.FLOAT, op=MPI.SUM if reduces else None,
                nbytes=nbytes)
    chosen = choose(call, size, wish, from_environment)
    lines = [f"{collective}, {nbytes} bytes, {size} ranks: {_name(chosen)} ({chosen.reason})", "",
             f"{'candidate':24}{'rounds':>8}{'sent':>14}   may it serve"]
    for name, entry in ALGORITHMS[collective].items():
        made = schedule(collective, name, size, topology=topology if entry.hierarchical else None)
        lines.append(f"{name:24}{_text(made.rounds):>8}{_sent(made, nbytes):>14}   "
                     f"{objection(Choice(name), call, size) or 'yes'}")
    library = MPI.Get_library_version().splitlines()[0].split(",")[0]
    lines.append(f"{NATIVE:24}{'?':>8}{'?':>14}   yes ({' '.join(library.split())})")
    if not chosen.is_native and size <= EXPLAINED:
        lines += ["", as_text(_schedule(chosen, collective, size, topology), nbytes).rstrip()]
    return "\n".join(lines) + "\n"


def _schedule(choice: Choice, collective: str, size: int, topology: Topology | None) -> Schedule:
    if isinstance(choice.algorithm, Schedule):
        return choice.algorithm
    hierarchical = (isinstance(choice.algorithm, str)
                    and ALGORITHMS[collective][choice.algorithm].hierarchical)
    return schedule(collective, choice.algorithm, size,
                    topology=topology if hierarchical else None, **choice.params)


def _name(choice: Choice) -> str:
    if isinstance(choice.algorithm, str):
        params: Mapping[str, int] = choice.params
        return choice.algorithm + "".join(f", {k}={v}" for k, v in params.items())
    return getattr(choice.algorithm, "algorithm", None) or getattr(
        choice.algorithm, "__name__", "custom")


def _sent(made: Schedule, nbytes: int) -> str:
    """Bytes sent by the busiest rank, by the closed form."""
    if made.sent is None or made.collective.payload == "none":
        return "?" if made.sent is None else "0"
    blocks = made.nblocks if made.collective.payload == "vector" else made.size
    return str(made.sent * nbytes // blocks)


def _text(number: int | None) -> str:
    return "?" if number is None else str(number)
