"""Which algorithm serves a call, and why.

The rules use only what every rank knows - collective, operator, size of the communicator,
bytes - so every rank makes the same choice without talking. What they say:

* A choice made with ``comm.using`` or ``HPCCOLL_ALGORITHM`` wins wherever it can serve. Where
  it cannot (an order-changing algorithm and an operator that does not commute, say), the
  environment's choice gives way to ``native``, and ``using`` raises.
* Otherwise small messages go to the MPI library (``native``), large reductions to ours.
"""

from __future__ import annotations

from typing import Any, Mapping, NamedTuple

from mpi4py import MPI

from hpccoll.algorithms import ALGORITHMS, Algorithm
from hpccoll.buffers import element_type
from hpccoll.calls import Call
from hpccoll.config import AUTO, NATIVE
from hpccoll.errors import ArgumentError
from hpccoll.reduce import is_exact
from hpccoll.schedule import Schedule

#: (collective, from how many bytes, algorithm): the first row that fits wins.
RULES: tuple[tuple[str, int, str], ...] = (
    ("allreduce", 64 << 10, "ring"),
    ("reduce_scatter", 64 << 10, "ring"),
)


class Choice(NamedTuple):
    """An algorithm with its parameters, and the reason it was chosen.

    ``algorithm`` is a name of the table, ``native``, a builder, or a finished schedule;
    ``segment_bytes`` is 0 where the configuration decides.
    """

    algorithm: Any
    params: Mapping[str, int] = {}
    segment_bytes: int = 0
    reason: str = ""

    @property
    def is_native(self) -> bool:
        """Tell whether the MPI library serves the call."""
        return isinstance(self.algorithm, str) and self.algorithm == NATIVE


def choose(call: Call, size: int, wanted: Choice | None, from_environment: bool) -> Choice:
    """Choose for one call; ``wanted`` is the user's wish for this collective, if any.

    Raises:
        ArgumentError: the wish cannot serve this call, and came from ``comm.using``.
    """
    if wanted is not None and not (isinstance(wanted.algorithm, str)
                                   and wanted.algorithm == AUTO):
        problem = objection(wanted, call, size)
        if not problem:
            return wanted
        if from_environment:
            return Choice(NATIVE, reason=f"{wanted.algorithm} was asked for, but {problem}")
        raise ArgumentError("algorithm", f"{wanted.algorithm} cannot serve this "
                                         f"{call.name}: {problem}",
                            f"choose one that can, '{AUTO}' or '{NATIVE}'")
    if size > 1 and call.nbytes is not None:
        for collective, nbytes, name in RULES:
            choice = Choice(name, reason=f"rule: {collective} from {nbytes} bytes on")
            if (collective == call.collective and call.nbytes >= nbytes
                    and not objection(choice, call, size)):
                return choice
    return Choice(NATIVE, reason="rule: no row of hpccoll's table fits")


def objection(choice: Choice, call: Call, size: int) -> str:
    """Why a choice cannot serve a call; empty when it can."""
    if choice.is_native:
        return ""
    if isinstance(choice.algorithm, Schedule):
        return _mismatch(choice.algorithm, call, size)
    if not isinstance(choice.algorithm, str):
        return ""
    entry: Algorithm = ALGORITHMS[call.collective][choice.algorithm]
    if call.op is not None and not entry.rank_order and not commutes(call.op):
        return "it does not keep rank order, which an operator that does not commute needs"
    if entry.exact_only and call.op is not None and not is_exact(
            call.op, element_type(call.datatype)):
        return "its results may differ between ranks unless the operator is exact on the type"
    if entry.uniform and not call.uniform:
        return "it needs blocks of one size"
    return ""


def commutes(op: MPI.Op) -> bool:
    """Tell whether an operator commutes."""
    return bool(op.Is_commutative())


def _mismatch(schedule: Schedule, call: Call, size: int) -> str:
    if schedule.collective.name != call.collective:
        return f"it is a schedule for {schedule.collective}"
    if schedule.size != size:
        return f"it is for {schedule.size} ranks, the communicator has {size}"
    if schedule.collective.rooted and schedule.root != call.root:
        return f"it is for root {schedule.root}, the call has root {call.root}"
    if schedule.uniform and not call.uniform:
        return "it needs blocks of one size"
    return ""
