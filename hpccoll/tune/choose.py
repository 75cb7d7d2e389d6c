"""Which algorithm serves a call, and why.

The choice depends only on what every rank knows - collective, operator, size of the communicator,
bytes, the place - so every rank makes the same one without talking:

* A choice made with ``comm.using`` or ``HPCCOLL_ALGORITHM`` wins wherever it can serve. Where
  it cannot (an order-changing algorithm and an operator that does not commute, say), the
  environment's choice gives way to ``native``, and ``using`` raises.
* Otherwise the fastest of what ``hpccoll tune`` has measured on machines like this; or of what a
  probe has, or makes expect.
* Where nothing was measured, the rules of :mod:`hpccoll.tune.rules`; where none fits, the MPI
  library (``native``).
* A class of determinism leaves only what keeps its promise, see :mod:`hpccoll.tune.determinism`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from mpi4py import MPI

from hpccoll.algorithms import ALGORITHMS, Algorithm
from hpccoll.arrays.kernels import is_exact
from hpccoll.calls.resolve import Call, lacks_mpi_type
from hpccoll.calls.specification import element_type
from hpccoll.config import AUTO, NATIVE
from hpccoll.errors import ArgumentError
from hpccoll.ir.schedule import Schedule
from hpccoll.runtime.choice import Choice
from hpccoll.tune.determinism import (
    NONE,
    applies,
    excludes_native,
    inaccurate,
    reproducible_algorithm,
    violation,
)
from hpccoll.tune.loading import Tuned
from hpccoll.tune.online import MOST, MOST_TRIALS, Trial, shape_of
from hpccoll.tune.pruning import plausible
from hpccoll.tune.rules import RULES, Place, vendor
from hpccoll.tune.table import Candidate
from hpccoll.units import time_text

#: More bytes than any call has.
EVERY = sys.maxsize


def choose(call: Call, size: int, wanted: Choice | None, from_environment: bool,
           tuned: Tuned | None = None, determinism: str = NONE,
           where: Callable[[], Place | None] = lambda: None) -> Choice:
    """Choose for one call.

    Args:
        call, size: what is to be served, on how many ranks.
        wanted: the user's wish for this collective, if any.
        from_environment: it is the environment's.
        tuned: measured times of this job, if there are any.
        determinism: what the bits of the result must not depend on.
        where: tells the place, if it is known; asked only where a rule depends on it, which all
            ranks find alike.

    Raises:
        ArgumentError: the wish cannot serve this call, and came from ``comm.using``.
    """
    if wanted is not None and not (isinstance(wanted.algorithm, str)
                                   and wanted.algorithm == AUTO):
        problem = obstacle(wanted, call, size, determinism)
        if not problem:
            return wanted
        if from_environment:
            ours = size > 1 and excludes_native(determinism, call)
            fallback = Choice(reproducible_algorithm(call) if ours else NATIVE)
            return fallback._replace(reason=f"{wanted.algorithm} was asked for, but {problem}")
        raise ArgumentError("algorithm", f"{wanted.algorithm} cannot serve this "
                                         f"{call.name}: {problem}",
                            f"choose one that can, '{AUTO}' or '{NATIVE}'")
    if size == 1 or call.nbytes is None:
        return Choice(NATIVE, reason="one rank" if size == 1 else "not all ranks know the size")
    bound = excludes_native(determinism, call)
    turn = tried(call, size, tuned) if tuned is not None and tuned.online and not bound else None
    if turn is not None:
        return turn
    fastest = measured(call, size, tuned, determinism)
    if fastest is not None:
        return fastest
    for rule in RULES:
        if rule.fits(call.collective, call.nbytes, size, vendor()):
            choice = Choice(rule.algorithm, {}, rule.segment_bytes, f"rule: {rule}")
            place = where() if _suits(choice, call, size, determinism) else None
            if place is not None and rule.fits_in(place):
                return choice
    if bound:
        return Choice(reproducible_algorithm(call), reason=f"determinism '{determinism}'" if applies(
            determinism, call) else "the MPI library has no such type")
    return Choice(NATIVE, reason="rule: none names an algorithm of hpccoll's")


def native_below(collective: str, size: int, wanted: Choice | None, tuned: Tuned | None,
                 determinism: str, place: Place | None) -> int:
    """Bytes below which :func:`choose` surely says native, whatever the operator and the type.

    Args:
        collective, size: the calls, and on how many ranks.
        wanted: the user's wish for this collective, if any.
        tuned, determinism: as for :func:`choose`.
        place: the place, where it is known; else rules for all places count.
    """
    if size == 1:
        return EVERY
    if determinism != NONE or tuned is not None and tuned.online:
        return 0
    if wanted is not None and wanted.algorithm != AUTO:
        return EVERY if wanted.is_native else 0
    end = tuned.native_below(collective) if tuned is not None else None
    if end is not None:
        return end
    starts = [(rule, max(rule.nbytes[0], rule.block * size)) for rule in RULES
              if place is None or rule.fits_in(place)]
    return min((start for rule, start in starts
                if rule.fits(collective, start, size, vendor())), default=EVERY)


def obstacle(choice: Choice, call: Call, size: int, determinism: str = NONE) -> str:
    """Why a choice cannot serve a call, or would break a promise; empty when it may serve."""
    problem = objection(choice, call, size)
    if not problem and size > 1 and applies(determinism, call):
        problem = violation(choice.algorithm, call, determinism)
    return problem


def _suits(choice: Choice, call: Call, size: int, determinism: str = NONE) -> bool:
    """Tell whether a choice that nobody asked for by name may serve."""
    return not (obstacle(choice, call, size, determinism)
                or inaccurate(choice.algorithm, call, size))


def measured(call: Call, size: int, tuned: Tuned | None, determinism: str = NONE
             ) -> Choice | None:
    """The fastest candidate that can serve a call; ``None`` where nothing was measured."""
    if tuned is None:
        return None
    ranking = tuned.ranking(call.collective, call.op is None or commutes(call.op), call.nbytes)
    for candidate, seconds, predicted in ranking:
        choice = Choice(candidate.name, dict(candidate.params), candidate.segment_bytes,
                        f"{'predicted' if predicted else 'measured'}: {time_text(seconds, 3)} "
                        f"{'by' if predicted else 'in'} {tuned.source}")
        if _suits(choice, call, size, determinism):
            return choice
    return None


def tried(call: Call, size: int, tuned: Tuned) -> Choice | None:
    """What online tuning has found to be fastest, or whose turn it is; ``None`` if not tried."""
    key = shape_of(call)
    trial = tuned.trials.get(key)
    if trial is None:
        # Those that had a turn are the same on all ranks; who asks for an explanation starts none.
        if sum(other.turn > 0 for other in tuned.trials.values()) >= MOST_TRIALS:
            return None
        names = plausible(call.collective, size, call.nbytes, tuned.hierarchical)
        able = [name for name in names if _suits(Choice(name), call, size)]
        if not able:
            return None
        trial = tuned.trials[key] = Trial(list(map(Candidate, (NATIVE, *able[:MOST]))))
    if trial.verdict is None:
        turn = f"online: call {trial.turn + 1} of {trial.times.size} that try candidates"
        return Choice(trial.candidates[trial.place[1]].name, reason=turn,
                      trial=None if trial.running else trial)
    took = time_text(trial.seconds[trial.verdict], 3)
    return Choice(trial.verdict.name,
                  reason=f"online: {took}, the best of {len(trial.candidates)}")


def objection(choice: Choice, call: Call, size: int) -> str:
    """Why a choice cannot serve a call; empty when it can."""
    if choice.is_native:
        return ("the MPI library cannot combine elements of this type"
                if call.op is not None and size > 1 and lacks_mpi_type(call) else "")
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
