"""Text of ``comm.explain``: the algorithm of a call, its alternatives, and the reason.

Short by default; with ``detail`` every candidate and the schedule.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf
from shutil import get_terminal_size
from textwrap import wrap
from typing import Any, NamedTuple

import numpy

from hpccoll.algorithms import ALGORITHMS, Algorithm, schedule
from hpccoll.arrays.binned import FORMATS
from hpccoll.calls.facts import CallFacts
from hpccoll.config import ANY_P, NATIVE, NCCL, NCCL_LEADER, NCCL_RAILS, QUEUED
from hpccoll.errors import ArgumentError
from hpccoll.explain import as_text
from hpccoll.explain.columns import NARROWEST, WIDTH, FittedTable, Header
from hpccoll.ir.collectives import COLLECTIVES, collective_named
from hpccoll.ir.schedule import Schedule
from hpccoll.ir.topology import Topology
from hpccoll.machine.discovery import Place
from hpccoll.machine.identity import library_name
from hpccoll.runtime.planning.choice import Choice
from hpccoll.tune.choose import Conditions, decide, obstacle
from hpccoll.tune.cost_model import terms
from hpccoll.tune.loading import JobTimes
from hpccoll.tune.rules import is_measured
from hpccoll.tune.table import Candidate
from hpccoll.units import byte_count, count_text, size_text, time_text

#: Largest number of ranks with a full explanation of the chosen schedule.
EXPLAINED = 16
#: Bytes of the integers of a reproducible sum of float32.
LANES_BYTES = 8 * FORMATS["float32"].fold
#: Candidates with times in a short explanation, and the largest error factor of a usable model.
FEW, POOR = 4, 4.0
COLUMNS = (Header("candidate", right=False), Header("rounds"), Header("sent"), Header("predicted"),
           Header("measured"), Header("supported", right=False))


def describe(collective: str, nbytes: int | str, conditions: Conditions,
             topology: Topology | None, place: Place | None = None, detail: bool = False) -> str:
    """Explain the choice for a sum of float32.

    Args:
        collective, nbytes: the call, and its bytes: a number, or for example ``"1M"``.
        place: the system of the job; ``None`` before its discovery.
    """
    collective = collective_named(collective)
    if collective not in COLLECTIVES:
        raise ArgumentError.unknown_word("collective", collective, COLLECTIVES)
    nbytes = byte_count("nbytes", nbytes)
    size, tuned = conditions.size, conditions.tuned
    facts = CallFacts(collective, collective, nbytes)
    if COLLECTIVES[collective].reduces:
        facts = facts._replace(operator="sum", exact=False, dtype=numpy.dtype("f4"), kind="f",
                               itemsize=4)
    note = []
    if conditions.determinism == ANY_P and facts.reduces:
        nbytes *= LANES_BYTES // facts.itemsize
        facts = facts._replace(nbytes=nbytes, exact=True, dtype=numpy.dtype("i8"), kind="i",
                               itemsize=8)
        note = [f"determinism '{ANY_P}': a float32 sum is sent as {LANES_BYTES} bytes of integers, "
                "after the maximum of one byte"]
    chosen = decide(facts, conditions, place)
    times = _times(facts, tuned)
    model = tuned.model(collective, size, topology) if tuned else None
    width = _width()
    known = place is not None or size == 1 or not chosen.reason.startswith("rule")
    first = f"{collective} of {size_text(nbytes)}, {count_text(size, 'rank')}: " + (
        f"{_name(chosen)} ({chosen.reason})" if known else
        "not known yet; read comm.layout on all ranks first")
    if chosen.is_queued:
        note += _wrap(_describe_nccl(chosen, topology), width)
    lines = [*_wrap(first, width), *note, *_wrap(
        f"measured times: {_source(facts, conditions, place, bool(times))}", width)]
    if model and model.miss > POOR:
        lines.append("predicted times: none; the measured times are too noisy for a model, with "
                     f"errors up to {model.miss:.1f}x")
        model = None
    elif model:
        lines.append(f"predicted times: {model}; up to {model.miss:.1f} times as long")
    rows = [_row(candidate, facts, conditions, topology, times, model)
            for candidate in _candidates(collective, times, conditions.preference, chosen)]
    rows.sort(key=lambda row: (not row.serves, row.measured, row.predicted))
    if not detail:
        return "\n".join([*lines, *_brief(rows, chosen.name if known else "", width)]) + "\n"
    table = FittedTable(COLUMNS, [row.cells for row in rows], width)
    lines += ["", *table.lines(n for n, row in enumerate(rows) if row.candidate.name == chosen.name
                               and dict(row.candidate.params).items() >= chosen.params.items()),
              "* selected"]
    if not (chosen.is_native or chosen.is_queued) and size <= EXPLAINED:
        lines += ["", as_text(_schedule(chosen, collective, size, topology), nbytes,
                              width=width).rstrip()]
    return "\n".join(lines) + "\n"


class DescribedCandidate(NamedTuple):
    """Candidate for a call.

    Attributes:
        candidate, serves: the candidate, and True if it may run the call.
        measured, predicted: seconds; infinite if unknown.
    """

    candidate: Candidate
    serves: bool
    measured: float
    predicted: float
    cells: list[str]


def _candidates(collective: str, times: Mapping[Candidate, float], preference: Choice | None,
                chosen: Choice) -> Iterable[Candidate]:
    """Return all candidates; NCCL only if the user or a rule has selected it."""
    queued = [name for name in QUEUED if collective in QUEUED[name] and (
        preference is not None and preference.is_queued or name == chosen.name)]
    return dict.fromkeys((*map(Candidate, (NATIVE, *queued, *ALGORITHMS[collective])), *times))


def _row(candidate: Candidate, facts: CallFacts, conditions: Conditions,
         topology: Topology | None, times: Mapping[Candidate, float], model: Any
         ) -> DescribedCandidate:
    collective, nbytes, size = facts.collective, facts.nbytes or 0, conditions.size
    rounds, sent, yes = "-", "-", library_name()
    choice = Choice(candidate.name, dict(candidate.params), candidate.segment_bytes)
    if choice.is_queued:
        yes = "on arrays of GPUs"
    elif not choice.is_native:
        shown = _schedule(choice, collective, size, topology)
        rounds, sent, yes = _text(shown.rounds), _sent_text(shown, nbytes), ""
    problem = obstacle(choice, facts, conditions)
    expected = terms(collective, candidate, size, nbytes, topology) if model else None
    predicted = model.seconds(expected) if model and expected is not None else None
    return DescribedCandidate(
        candidate, not problem, times.get(candidate, inf), inf if predicted is None else predicted,
        [candidate.label, rounds, sent, _time(predicted), _time(times.get(candidate)),
         f"no: {problem}" if problem else yes])


def _brief(rows: Sequence[DescribedCandidate], chosen: str, width: int) -> list[str]:
    """Return the lines of the alternatives, with times if any were measured."""
    timed = [row for row in rows if row.serves and row.measured < inf][:FEW]
    others = [row.candidate.label for row in rows if row.serves and row.candidate.name != chosen]
    lines = []
    if timed:
        lines.append("fastest: " + ", ".join(
            f"{row.candidate.label} {_time(row.measured)}" for row in timed))
    else:
        lines += _wrap(f"{'other ' if chosen else ''}candidates: {', '.join(others)}", width)
    return [*lines, "detail=True shows every candidate, and the schedule as text"]


def _describe_nccl(chosen: Choice, topology: Topology | None) -> str:
    where, ours = f"inside each node of {topology or 'one'}", "across nodes by hpccoll's schedules"
    how = {NCCL: "one NCCL call, queued on the caller's stream",
           NCCL_RAILS: f"reduce-scatter by NCCL {where}, allreduce of each rank's part {ours}, "
                       "allgather by NCCL",
           NCCL_LEADER: f"reduce by NCCL to the first rank {where}, allreduce of these ranks "
                        f"{ours}, broadcast by NCCL"}
    return (f"on GPU arrays, one GPU per rank: {how[chosen.name]}; other arrays raise an error, or "
            "ignore the request if it comes from the environment")


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else time_text(seconds, 3)


def _times(facts: CallFacts, tuned: JobTimes | None) -> Mapping[Candidate, float]:
    if tuned is None:
        return {}
    return {candidate: seconds for candidate, seconds, predicted
            in tuned.ranking(facts.collective, True, facts.nbytes or 0) if not predicted}


def _width() -> int:
    """Return the characters of a line of the terminal, if Python knows them."""
    return max(get_terminal_size((WIDTH, 0)).columns, NARROWEST)


def _wrap(text: str, width: int) -> list[str]:
    """Wrap text to a width; file names are not broken, so that they can be copied."""
    return wrap(text, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def _source(facts: CallFacts, conditions: Conditions, place: Place | None, measured: bool) -> str:
    """Return the source of times, or why there are none."""
    tuned, kind = conditions.tuned, (facts.collective, True)
    if tuned is None:
        return "loaded at the first collective"
    if tuned.note:
        return f"none; {tuned.note}"
    if tuned.online:
        return "online, in this job" if measured else "online, at the first call"
    if not measured and (place is None or is_measured(conditions.size, place)):
        return "none; run 'hpccoll tune'"
    if not measured:
        return ("none, nor do the rules know such a place: a long job measures while it runs, "
                "'hpccoll tune' takes ten minutes, with --quick one")
    if kind in tuned.curves:
        return f"from {tuned.source}"
    if kind not in tuned.probed:
        return f"of a few candidates, by a job while it ran, from {tuned.source or 'this job'}"
    return f"of a few candidates, by a probe, from {tuned.source}; run 'hpccoll tune' for all"


def _schedule(choice: Choice, collective: str, size: int, topology: Topology | None) -> Schedule:
    if isinstance(choice.algorithm, Schedule):
        return choice.algorithm
    entry = choice.entry(collective)
    return schedule(collective, choice.algorithm, size,
                    topology=topology if entry and entry.hierarchical else None, **choice.params)


def _name(choice: Choice) -> str:
    if isinstance(choice.algorithm, str):
        params: Mapping[str, int] = choice.params
        return choice.algorithm + "".join(f", {k}={v}" for k, v in params.items())
    if isinstance(choice.algorithm, Algorithm):
        return str(choice.algorithm)
    return str(getattr(choice.algorithm, "algorithm", None)
               or getattr(choice.algorithm, "__name__", "custom"))


def _sent_text(shown: Schedule, nbytes: int) -> str:
    """Return the bytes sent by the busiest rank, by the closed form."""
    if shown.sent is None or shown.collective.payload == "none":
        return "-" if shown.sent is None else "0 B"
    blocks = shown.nblocks if shown.collective.payload == "vector" else shown.size
    return size_text(shown.sent * nbytes // blocks)


def _text(number: int | None) -> str:
    return "-" if number is None else str(number)
