"""Selection of the algorithm of a call, as a pure function of data that every rank has.

All ranks have the same facts and conditions of a call, so all make the same choice without
communication. The sources of a choice, in order of precedence (:func:`sources`):

1. The user's choice, by ``comm.using`` or ``HPCCOLL_ALGORITHM``. If it cannot run a call (for
   example it reorders operands of an operator that does not commute), a choice of the environment
   is ignored, and ``using`` raises.
2. For nonblocking and persistent calls without a user choice, the MPI library (decision 0003).
   'auto' under the name of the method selects like for blocking calls.
3. If all ranks pass device arrays, the rules of :mod:`hpccoll.tune.device_rules`.
4. On one rank, or if not all ranks have the size, the MPI library.
5. Measured times: of ``hpccoll tune``, of this or an earlier job while it ran, or of a probe.
6. The rules of :mod:`hpccoll.tune.rules`.
7. The MPI library; or the reproducible algorithm, if a guarantee or the type excludes the library.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from hpccoll.algorithms import ALGORITHMS
from hpccoll.calls.any_size import NO_LIMIT
from hpccoll.calls.facts import CallFacts
from hpccoll.config import AUTO, NATIVE, NONE, QUEUED
from hpccoll.cuda import nccl_lacks
from hpccoll.errors import ArgumentError
from hpccoll.ir.methods import BLOCKING, NONBLOCKING
from hpccoll.ir.schedule import Schedule
from hpccoll.machine.discovery import Place
from hpccoll.runtime.planning.choice import Choice
from hpccoll.tune.cost_model import plausible_algorithms
from hpccoll.tune.determinism import (
    LONG,
    excludes_native,
    inaccurate,
    reproducible_algorithm,
    restricts_choice,
    violation,
)
from hpccoll.tune.device_rules import DevicePlace, device_bounds, device_choices
from hpccoll.tune.loading import JobTimes
from hpccoll.tune.online import may_be_measured
from hpccoll.tune.rules import (
    PAIRS,
    PAIRS_ELSEWHERE,
    RULES,
    Rule,
    is_ruled,
    vendor,
)
from hpccoll.units import time_text


class Conditions(NamedTuple):
    """Inputs of a choice, except the call; the same on every rank.

    Attributes:
        preference: the user's choice, if any.
        from_environment: True if that choice is from the environment.
        tuned: measured times of this job, if any.
        determinism: the requested reproducibility of results.
        form: the form of the call.
        progresses: True if hpccoll can progress nonblocking collectives in this process.
        barred: why NCCL cannot run calls here; empty if it can.
        device: the data paths, if all ranks pass device arrays.
    """

    size: int
    preference: Choice | None = None
    from_environment: bool = False
    tuned: JobTimes | None = None
    determinism: str = NONE
    form: str = BLOCKING
    progresses: bool = True
    barred: str = ""
    device: DevicePlace | None = None


def choose(facts: CallFacts, conditions: Conditions, place: Place | None = None) -> Choice | None:
    """Choose the algorithm of one call.

    Args:
        place: the system of the job, if known.

    Returns:
        The choice; ``None`` if it depends on the place and that is unknown.
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


def range_of_choice(facts: CallFacts, conditions: Conditions, place: Place | None
                    ) -> tuple[int, int] | None:
    """Return a range of bytes around those of a call for which the choice is the same.

    ``None`` if every call may get another one, because each kind of call is measured.
    """
    tuned, nbytes = conditions.tuned, facts.nbytes or 0
    if tuned is not None and tuned.online:
        return None
    bounds = {1, LONG, PAIRS.get(vendor(), PAIRS_ELSEWHERE), *device_bounds(conditions.device)}
    for rule in RULES:
        if rule.collective == facts.collective:
            bounds.update((*rule.nbytes, rule.block * conditions.size))
    if tuned is not None and tuned.has_times:
        bits = nbytes.bit_length()
        edges = {part << power >> 3 for power in range(max(bits - 3, 0), bits + 3)
                 for part in range(8, 16)}  # of ``round_size``
        bounds.update(*((size, size + 1) for size in tuned.sizes(facts.collective)))
        bounds = edges | {bound for bound in bounds if min(edges) < bound < max(edges)}
    chosen = decide(facts, conditions, place).key

    def same(other: int) -> bool:
        return decide(facts._replace(nbytes=other), conditions, place).key == chosen

    below = sorted((bound for bound in bounds if bound <= nbytes), reverse=True)
    above = sorted(bound for bound in bounds if bound > nbytes)
    if tuned is None or not tuned.has_times:
        below, above = [*below, 0], [*above, NO_LIMIT]
    return (next((bound for bound in below if not bound or not same(bound - 1)), below[-1]),
            next((bound for bound in above if bound == NO_LIMIT or not same(bound)), above[-1]))


def wants_times(facts: CallFacts, conditions: Conditions) -> bool:
    """Return True if measured times could decide about a blocking call, and there are none."""
    tuned, preference = conditions.tuned, conditions.preference
    return (tuned is not None and conditions.size > 1 and conditions.device is None
            and (preference is None or preference.is_auto)
            and not excludes_native(conditions.determinism, facts)
            and may_be_measured(facts, tuned.online)
            and not tuned.covers(facts.collective, facts.nbytes or 0))


def round_size(nbytes: int) -> int:
    """Round down to four significant bits: so measured times decide for ranges of sizes.

    >>> round_size(15), round_size(1000), round_size(1 << 20)
    (15, 960, 1048576)
    """
    shift = max(nbytes.bit_length() - 4, 0)
    return nbytes >> shift << shift


def decide(facts: CallFacts, conditions: Conditions, place: Place | None) -> Choice:
    """Choose like :func:`choose`; ignore the rules if the place is unknown."""
    return choose(facts, conditions, place) or fallback(facts, conditions)


def before_setup(facts: CallFacts, conditions: Conditions, staged: bool) -> Choice:
    """Choose for a nonblocking call on a communicator before its set-up.

    Set-up waits for all ranks, which a nonblocking call must not do: MPI-4.1, section 6.12. So the
    MPI library runs the call, if it can.

    Args:
        staged: True if the call uses device memory that the MPI library cannot move.
    """
    choice = decide(facts, conditions, None)
    if choice.is_native or staged or excludes_native(conditions.determinism, facts):
        return choice
    return Choice(NATIVE, reason="no blocking collective has initialised the communicator yet")


def fallback(facts: CallFacts, conditions: Conditions) -> Choice:
    """Return the choice if no source has one."""
    if conditions.size == 1 or not excludes_native(conditions.determinism, facts):
        return Choice(NATIVE, reason="rule: no rule selects an algorithm of hpccoll")
    return Choice(reproducible_algorithm(facts), reason=(
        f"determinism '{conditions.determinism}'" if restricts_choice(conditions.determinism, facts)
        else "the MPI library has no such type"))


def instead_of_native(facts: CallFacts, conditions: Conditions, reason: str) -> Choice | None:
    """Return an algorithm for a call that the MPI library cannot run as required.

    Returns:
        ``None`` for a call without data, for a call that the user assigned to the MPI library, and
        if no algorithm fits.
    """
    preference = conditions.preference
    if facts.collective == "barrier" or preference is not None and (preference.is_native
                                                                    or preference.is_queued):
        return None
    names = plausible_algorithms(facts.collective, conditions.size, facts.nbytes or 0, False)
    for name in (*names, *ALGORITHMS[facts.collective]):
        choice = Choice(name, reason=reason)
        if _suits(choice, facts, conditions):
            return choice
    return None


class Source(Protocol):
    """Source of choices."""

    def choice(self, facts: CallFacts) -> Choice | None:
        """Return the choice for a call; ``None`` to leave it to the next source."""

def sources(conditions: Conditions, place: Place | None) -> Iterator[Source]:
    """Yield the sources of choices, in order of precedence."""
    blocking, preference = conditions.form == BLOCKING, conditions.preference
    if preference is not None and not preference.is_auto and (blocking or conditions.progresses):
        yield _Preference(conditions, preference)
    if not blocking and not (preference is not None and preference.is_auto
                             and conditions.progresses):
        yield _DefaultChoice(conditions)
        return
    if conditions.device is not None and conditions.size > 1:
        yield _DeviceRules(conditions, conditions.device)
    yield _SingleRankChoice(conditions)
    if conditions.tuned is not None:
        yield _Times(conditions, conditions.tuned)
    yield _Rules(conditions, place)


class _Preference:
    """Choices of the user."""

    def __init__(self, conditions: Conditions, preference: Choice):
        self.conditions, self.preference = conditions, preference

    def choice(self, facts: CallFacts) -> Choice | None:
        asked = self.preference
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


class _DefaultChoice:
    """Nonblocking and persistent calls without a user choice."""

    def __init__(self, conditions: Conditions):
        self.conditions = conditions

    def choice(self, facts: CallFacts) -> Choice | None:
        if self.conditions.size > 1 and excludes_native(self.conditions.determinism, facts):
            return None
        return Choice(NATIVE, reason="no other algorithm is requested")


class _DeviceRules(NamedTuple):
    """Rules for device arrays on all ranks."""

    conditions: Conditions
    place: DevicePlace

    def choice(self, facts: CallFacts) -> Choice | None:
        return next((choice for choice in device_choices(facts, self.place)
                     if _suits(choice, facts, self.conditions)), None)


class _SingleRankChoice:
    """Calls on one rank, or without a size that all ranks have."""

    def __init__(self, conditions: Conditions):
        self.conditions = conditions

    def choice(self, facts: CallFacts) -> Choice | None:
        if self.conditions.size > 1 and facts.nbytes is not None:
            return None
        return Choice(NATIVE, reason="one rank" if self.conditions.size == 1
                      else "not all ranks have the size")


class _Times:
    """Times that were measured, or predicted from a probe."""

    def __init__(self, conditions: Conditions, tuned: JobTimes):
        self.conditions, self.tuned = conditions, tuned

    def choice(self, facts: CallFacts) -> Choice | None:
        nbytes = facts.nbytes or 0
        if nbytes not in self.tuned.sizes(facts.collective):
            nbytes = round_size(nbytes)
        ranking = self.tuned.ranking(facts.collective, facts.commutes, nbytes,
                                     may_be_measured(facts, self.tuned.online))
        for candidate, seconds, predicted in ranking:
            choice = Choice(candidate.name, dict(candidate.params), candidate.segment_bytes,
                            f"{'predicted' if predicted else 'measured'}: {time_text(seconds, 3)} "
                            f"{'by' if predicted else 'in'} {self.tuned.source or 'this job'}")
            if _suits(choice, facts, self.conditions):
                return choice
        return None


class _Rules:
    """Rules from measurements on other systems."""

    def __init__(self, conditions: Conditions, place: Place | None):
        self.conditions, self.place = conditions, place

    def choice(self, facts: CallFacts) -> Choice | None:
        return next((choice for rule, choice in self._suitable(facts)
                     if self.place is not None and rule.fits_in(self.place)), None)

    def depends_on_place(self, facts: CallFacts) -> bool:
        return next(self._suitable(facts), None) is not None

    def _suitable(self, facts: CallFacts) -> Iterator[tuple[Rule, Choice]]:
        for rule in RULES:
            if (rule.fits(facts.collective, facts.nbytes or 0, self.conditions.size, vendor())
                    and self.conditions.form in rule.forms
                    and not (rule.compiled and not facts.has_plan)
                    and is_ruled(facts)):
                choice = Choice(rule.algorithm, {}, rule.segment_bytes, f"rule: {rule}")
                if _suits(choice, facts, self.conditions):
                    yield rule, choice


#: Why an algorithm does not support a user operator.
CUTS = ("it splits vectors, which the operator may not support; if it does, create it with "
        "hpccoll.Op.Create(function, elementwise=True)")


def _able(facts: CallFacts, conditions: Conditions) -> str:
    """Return the algorithms that can run a call, for an error's remedy."""
    able = [name for name in (NATIVE, *ALGORITHMS[facts.collective])
            if not obstacle(Choice(name), facts, conditions)]
    return f"'{AUTO}', or one of: {', '.join(able)}" if able else f"'{AUTO}'"


def obstacle(choice: Choice, facts: CallFacts, conditions: Conditions) -> str:
    """Return why a choice cannot run a call or breaks a guarantee; empty if it may."""
    problem = objection(choice, facts, conditions.size)
    if choice.is_queued and not problem:
        problem = conditions.barred if conditions.form == BLOCKING else (
            "it supports blocking calls only")
    if not problem and conditions.size > 1 and restricts_choice(conditions.determinism, facts):
        problem = violation(choice, facts, conditions.determinism)
    if not (problem or choice.is_native) and (
            conditions.form == NONBLOCKING and facts.counts_at_root):
        entry = choice.entry(facts.collective)
        if not (entry and entry.own_blocks):
            problem = "only the root has all counts"
    return problem


def objection(choice: Choice, facts: CallFacts, size: int) -> str:
    """Return why a choice can never run a call on ``size`` ranks; empty if it can."""
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
    """Return True if a choice may be used without a request by name."""
    return not (obstacle(choice, facts, conditions)
                or inaccurate(choice, facts, conditions.size))


def _check_progress(facts: CallFacts, conditions: Conditions) -> None:
    """Raise an error if only hpccoll can run a nonblocking call, but cannot progress it."""
    if conditions.size == 1 or not excludes_native(conditions.determinism, facts):
        return
    method, determinism = conditions.form.format(facts.method), conditions.determinism
    argument, what = (("determinism", f"'{determinism}' is not available in {method}")
                      if restricts_choice(determinism, facts) else
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
