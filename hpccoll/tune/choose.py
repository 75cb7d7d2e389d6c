"""Which algorithm serves a call, and why: a pure function of what every rank knows.

All ranks have the same facts of a call and the same conditions, so all make the same choice without
talking. The sources of a choice, in order of precedence (:func:`sources`):

1. What the user asked for, with ``comm.using`` or ``HPCCOLL_ALGORITHM``. Where that cannot
   serve a call (it changes the order of operands, say, and the operator does not commute), the
   environment's wish gives way, and ``using`` raises.
2. For nonblocking and persistent calls that nobody asked for, the MPI library (decision 0003);
   who asks for 'auto' by the name of the method has them chosen as blocking ones (decision 0003).
3. On one rank, or where not all ranks know the size, the MPI library.
4. Measured times: candidates tried in this job, ``hpccoll tune``, or a probe.
5. The rules of :mod:`hpccoll.tune.rules`.
6. The MPI library; or, where a promise or the type excludes it, the reproducible algorithm.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from hpccoll.algorithms import ALGORITHMS
from hpccoll.calls.facts import CallFacts
from hpccoll.config import AUTO, NATIVE, NONE, QUEUED
from hpccoll.cuda import nccl_lacks
from hpccoll.errors import ArgumentError
from hpccoll.ir.schedule import Schedule
from hpccoll.machine.discovery import Place
from hpccoll.runtime.planning.choice import Choice
from hpccoll.tune.cost_model import plausible
from hpccoll.tune.determinism import (
    applies,
    excludes_native,
    inaccurate,
    reproducible_algorithm,
    violation,
)
from hpccoll.tune.loading import Tuned
from hpccoll.tune.online import MOST, MOST_TRIALS, Trial, signature_of
from hpccoll.tune.rules import BLOCKING, NONBLOCKING, RULES, Rule, is_ruled, vendor
from hpccoll.tune.table import Candidate
from hpccoll.units import time_text


class Conditions(NamedTuple):
    """What a choice depends on beside the call; the same on every rank.

    Attributes:
        size: ranks of the communicator.
        wish: what the user asked for, if anything.
        from_environment: the wish is the environment's.
        tuned: measured times of this job, if there are any.
        determinism: what the bits of results must not depend on.
        form: of the call.
        progresses: hpccoll can move nonblocking collectives on in this process.
        barred: why NCCL serves no call here; empty where it may.
    """

    size: int
    wish: Choice | None = None
    from_environment: bool = False
    tuned: Tuned | None = None
    determinism: str = NONE
    form: str = BLOCKING
    progresses: bool = True
    barred: str = ""


def choose(facts: CallFacts, conditions: Conditions, place: Place | None = None) -> Choice | None:
    """Choose for one call.

    Args:
        facts: what is to be served.
        conditions: on what ranks, and what was asked for or measured.
        place: where the job runs, if that is known.

    Returns:
        The choice; ``None`` where the place decides and is not known.

    Raises:
        ArgumentError: the wish cannot serve this call, and came from ``comm.using``; or nothing
            that can serve this nonblocking call can make progress.
    """
    if conditions.form != BLOCKING and not conditions.progresses:
        _check_progress(facts, conditions)
    for source in sources(conditions, place):
        if isinstance(source, _Rules) and place is None and source.depends_on_place(facts):
            return None
        choice = source.choice(facts)
        if choice is not None:
            return choice
    return fallback(facts, conditions)


def decide(facts: CallFacts, conditions: Conditions, place: Place | None) -> Choice:
    """Choose as :func:`choose` does; where the place is not known, as if no rule held there."""
    return choose(facts, conditions, place) or fallback(facts, conditions)


def before_setup(facts: CallFacts, conditions: Conditions, staged: bool) -> Choice:
    """Choose for a nonblocking call on a communicator that no other collective has set up.

    Set-up waits for all ranks, which a nonblocking call must not do: MPI-4.1, section 6.12. So the
    MPI library serves the call, if it can.

    Args:
        facts, conditions: as for :func:`choose`.
        staged: the call's memory is a device's, and the MPI library cannot move it.
    """
    choice = decide(facts, conditions, None)
    if choice.is_native or staged or excludes_native(conditions.determinism, facts):
        return choice
    return Choice(NATIVE, reason="no blocking collective has initialised the communicator yet")


def fallback(facts: CallFacts, conditions: Conditions) -> Choice:
    """The choice where no source has one."""
    if conditions.size == 1 or not excludes_native(conditions.determinism, facts):
        return Choice(NATIVE, reason="rule: no rule selects an algorithm of hpccoll")
    return Choice(reproducible_algorithm(facts), reason=(
        f"determinism '{conditions.determinism}'" if applies(conditions.determinism, facts)
        else "the MPI library has no such type"))


def instead_of_native(facts: CallFacts, conditions: Conditions, reason: str) -> Choice | None:
    """An algorithm for a call that the MPI library cannot serve as it should be served.

    Args:
        facts, conditions: as for :func:`choose`.
        reason: why it cannot.

    Returns:
        ``None`` for a call without data, for what the user gave to the MPI library, and where
        nothing suits.
    """
    wish = conditions.wish
    if facts.collective == "barrier" or wish is not None and (wish.is_native or wish.is_queued):
        return None
    names = plausible(facts.collective, conditions.size, facts.nbytes or 0, False)
    for name in (*names, *ALGORITHMS[facts.collective]):
        choice = Choice(name, reason=reason)
        if _suits(choice, facts, conditions):
            return choice
    return None


class Source(Protocol):
    """Something that choices come from."""

    def choice(self, facts: CallFacts) -> Choice | None:
        """What it chooses for a call; ``None`` where it has nothing to say."""

def sources(conditions: Conditions, place: Place | None) -> Iterator[Source]:
    """Where choices come from, in order of precedence."""
    blocking, wish = conditions.form == BLOCKING, conditions.wish
    if wish is not None and not wish.is_auto and (blocking or conditions.progresses):
        yield _Wish(conditions, wish)
    if not blocking and not (wish is not None and wish.is_auto and conditions.progresses):
        yield _Unasked(conditions)
        return
    yield _Alone(conditions)
    if conditions.tuned is not None and conditions.tuned.online:
        if blocking:  # who times a nonblocking call times the work beside it too
            yield _Trials(conditions, conditions.tuned)
    elif conditions.tuned is not None:
        yield _Times(conditions, conditions.tuned)
    yield _Rules(conditions, place)


class _Wish:
    """What the user asked for."""

    def __init__(self, conditions: Conditions, wish: Choice):
        self.conditions, self.wish = conditions, wish

    def choice(self, facts: CallFacts) -> Choice | None:
        asked = self.wish
        problem = obstacle(asked, facts, self.conditions)
        if not problem:
            return asked
        name = asked.name or asked.algorithm
        if self.conditions.from_environment:
            instead = fallback(facts, self.conditions)
            return instead._replace(reason=f"{name} was requested, but {problem}")
        method = self.conditions.form.format(facts.method)
        raise ArgumentError("algorithm", f"{name} cannot run this {method}: {problem}",
                            f"choose {_able(facts, self.conditions)}")


class _Unasked:
    """Calls that must not wait, and that nobody asked hpccoll to serve."""

    def __init__(self, conditions: Conditions):
        self.conditions = conditions

    def choice(self, facts: CallFacts) -> Choice | None:
        if self.conditions.size > 1 and excludes_native(self.conditions.determinism, facts):
            return None
        return Choice(NATIVE, reason="no other algorithm is requested")


class _Alone:
    """One rank, or ranks that do not all know the size."""

    def __init__(self, conditions: Conditions):
        self.conditions = conditions

    def choice(self, facts: CallFacts) -> Choice | None:
        if self.conditions.size > 1 and facts.nbytes is not None:
            return None
        return Choice(NATIVE, reason="one rank" if self.conditions.size == 1
                      else "not all ranks have the size")


class _Trials:
    """Candidates tried in the job itself."""

    def __init__(self, conditions: Conditions, tuned: Tuned):
        self.conditions, self.tuned = conditions, tuned

    def choice(self, facts: CallFacts) -> Choice | None:
        if excludes_native(self.conditions.determinism, facts):
            return None
        signature = signature_of(facts)
        trial = trial_of(facts, self.conditions, self.tuned)
        if trial is None:
            return None
        if trial.verdict is None:
            return Choice(trial.candidate.name, trial=signature, reason=(
                f"online: call {trial.turn + 1} of {trial.times.size} that measure candidates"))
        return Choice(trial.verdict.name, reason=(
            f"online: {time_text(trial.seconds[trial.verdict], 3)}, the fastest of "
            f"{len(trial.candidates)}"))


class _Times:
    """Times that were measured, or are expected by those of a probe."""

    def __init__(self, conditions: Conditions, tuned: Tuned):
        self.conditions, self.tuned = conditions, tuned

    def choice(self, facts: CallFacts) -> Choice | None:
        ranking = self.tuned.ranking(facts.collective, facts.commutes, facts.nbytes or 0)
        for candidate, seconds, predicted in ranking:
            choice = Choice(candidate.name, dict(candidate.params), candidate.segment_bytes,
                            f"{'predicted' if predicted else 'measured'}: {time_text(seconds, 3)} "
                            f"{'by' if predicted else 'in'} {self.tuned.source}")
            if _suits(choice, facts, self.conditions):
                return choice
        return None


class _Rules:
    """Rules from measurements elsewhere."""

    def __init__(self, conditions: Conditions, place: Place | None):
        self.conditions, self.place = conditions, place

    def choice(self, facts: CallFacts) -> Choice | None:
        for rule, choice in self._suitable(facts):
            if self.place is not None and rule.fits_in(self.place):
                return choice
        return None

    def depends_on_place(self, facts: CallFacts) -> bool:
        """Tell whether some rule suits a call in some place."""
        return next(self._suitable(facts), None) is not None

    def _suitable(self, facts: CallFacts) -> Iterator[tuple[Rule, Choice]]:
        for rule in RULES:
            if (rule.fits(facts.collective, facts.nbytes or 0, self.conditions.size, vendor())
                    and self.conditions.form in rule.forms
                    and not (rule.compiled and not facts.has_tape)
                    and is_ruled(facts)):
                choice = Choice(rule.algorithm, {}, rule.segment_bytes, f"rule: {rule}")
                if _suits(choice, facts, self.conditions):
                    yield rule, choice


def trial_of(facts: CallFacts, conditions: Conditions, tuned: Tuned) -> Trial | None:
    """The trial of a call: the one under way, or a new one; ``None`` if there is to be none."""
    trial = tuned.trials.get(signature_of(facts))
    if trial is None and len(tuned.trials) < MOST_TRIALS:
        names = plausible(facts.collective, conditions.size, facts.nbytes or 0, tuned.hierarchical)
        able = [name for name in names if _suits(Choice(name), facts, conditions)]
        if able:
            return Trial([Candidate(name) for name in (NATIVE, *able[:MOST])])
    return trial


#: Why an algorithm does not serve an operator of the program's.
CUTS = ("it splits vectors, which the operator may not support; if it does, create it with "
        "hpccoll.Op.Create(function, elementwise=True)")


def _able(facts: CallFacts, conditions: Conditions) -> str:
    """Who may serve a call, for an error's remedy."""
    able = [name for name in (NATIVE, *ALGORITHMS[facts.collective])
            if not obstacle(Choice(name), facts, conditions)]
    return f"'{AUTO}', or one of: {', '.join(able)}" if able else f"'{AUTO}'"


def obstacle(choice: Choice, facts: CallFacts, conditions: Conditions) -> str:
    """Why a choice cannot serve a call, or would break a promise; empty when it may serve."""
    problem = objection(choice, facts, conditions.size)
    if choice.is_queued and not problem:
        problem = conditions.barred if conditions.form == BLOCKING else (
            "it supports blocking calls only")
    if not problem and conditions.size > 1 and applies(conditions.determinism, facts):
        problem = violation(choice, facts, conditions.determinism)
    if not (problem or choice.is_native) and (
            conditions.form == NONBLOCKING and facts.counts_at_root):
        entry = choice.entry(facts.collective)
        if not (entry and entry.own_blocks):
            problem = "only the root has all counts"
    return problem


def objection(choice: Choice, facts: CallFacts, size: int) -> str:
    """Why a choice can never serve a call on so many ranks; empty when it can."""
    if choice.is_native:
        return ("the MPI library cannot reduce elements of this type"
                if facts.reduces and size > 1 and not facts.has_mpi_type else "")
    if choice.is_queued:
        if choice.params or choice.segment_bytes:
            return "it has no parameters and no segments"
        if facts.collective not in QUEUED[choice.name]:
            return f"it has no {facts.collective}"
        return nccl_lacks(facts.method, facts.operator, facts.dtype)
    if isinstance(choice.algorithm, Schedule):
        return _mismatch(choice.algorithm, facts, size)
    entry = choice.entry(facts.collective)
    if entry is None:
        return ""
    if not entry.rank_order and not facts.commutes:
        return "it does not keep rank order, which a non-commutative operator requires"
    if facts.whole and facts.collective != "reduce_scatter" and not entry.keeps_vectors_whole:
        return CUTS
    if entry.exact_only and not facts.exact:
        return "its results may differ between ranks unless the operator is exact on the type"
    if entry.uniform and not facts.uniform:
        return "it requires blocks of the same size"
    return ""


def _suits(choice: Choice, facts: CallFacts, conditions: Conditions) -> bool:
    """Tell whether a choice that nobody asked for by name may serve."""
    return not (obstacle(choice, facts, conditions)
                or inaccurate(choice, facts, conditions.size))


def _check_progress(facts: CallFacts, conditions: Conditions) -> None:
    """Raise where only hpccoll can serve a call that must not wait, and cannot move it on."""
    if conditions.size == 1 or not excludes_native(conditions.determinism, facts):
        return
    method, determinism = conditions.form.format(facts.method), conditions.determinism
    argument, what = (("determinism", f"'{determinism}' is not available in {method}")
                      if applies(determinism, facts) else
                      ("op", f"only hpccoll can reduce this type in {method}"))
    raise ArgumentError(argument, f"{what}: MPI was initialised without MPI.THREAD_MULTIPLE",
                        "set mpi4py.rc.thread_level, choose progress='calls', or call the blocking "
                        "collective")


def _mismatch(schedule: Schedule, facts: CallFacts, size: int) -> str:
    if schedule.collective.name != facts.collective:
        return f"it is a schedule for {schedule.collective}"
    if schedule.size != size:
        return f"it is for {schedule.size} ranks, the communicator has {size}"
    if schedule.collective.rooted and schedule.root != facts.root:
        return f"it is for root {schedule.root}, the call has root {facts.root}"
    if schedule.uniform and not facts.uniform:
        return "it requires blocks of the same size"
    if facts.whole and facts.collective != "reduce_scatter" and schedule.nblocks > 1:
        return CUTS
    return ""
