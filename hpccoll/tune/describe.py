"""What would run for a call, what else could, and why: the text behind ``comm.explain``."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

import numpy

from hpccoll.algorithms import ALGORITHMS, schedule
from hpccoll.calls.facts import CallFacts
from hpccoll.config import NATIVE
from hpccoll.errors import ArgumentError
from hpccoll.explain import as_text
from hpccoll.ir.collectives import COLLECTIVES
from hpccoll.ir.schedule import Schedule
from hpccoll.ir.topology import Topology
from hpccoll.machine.discovery import Place
from hpccoll.machine.identity import library_name
from hpccoll.runtime.choice import Choice
from hpccoll.tune.choose import Conditions, decide, obstacle
from hpccoll.tune.cost_model import terms
from hpccoll.tune.loading import Tuned
from hpccoll.tune.online import signature_of
from hpccoll.tune.table import Candidate
from hpccoll.units import time_text

#: Up to this many ranks the chosen schedule is explained in full.
EXPLAINED = 16


def describe(collective: str, nbytes: int, conditions: Conditions, topology: Topology | None,
             place: Place | None = None) -> str:
    """Explain the choice for a sum of float32.

    Args:
        collective, nbytes: the call, and its bytes.
        conditions: what else the choice depends on.
        topology: layout for hierarchical algorithms.
        place: where the job runs; ``None`` where nobody has looked yet.

    Raises:
        ArgumentError: unknown collective, or a size that makes no sense.
    """
    if collective not in COLLECTIVES:
        raise ArgumentError("collective", f"{collective!r} is unknown",
                            f"choose from {', '.join(COLLECTIVES)}")
    if isinstance(nbytes, bool) or not isinstance(nbytes, int) or nbytes < 0:
        raise ArgumentError("nbytes", f"expected a number of bytes, got {nbytes!r}")
    size, tuned = conditions.size, conditions.tuned
    facts = CallFacts(collective, collective, nbytes)
    if COLLECTIVES[collective].reduces:
        facts = facts._replace(operator="sum", exact=False, dtype=numpy.dtype("f4"), kind="f",
                               itemsize=4)
    chosen = decide(facts, conditions, place)
    times = _times(facts, tuned)
    model = tuned.model(collective, size, topology) if tuned else None
    lines = [f"{collective}, {nbytes} bytes, {size} ranks: {_name(chosen)} ({chosen.reason})",
             f"measured times: {_source(tuned, collective, bool(times))}"]
    lines += [f"predicted times: {model}; up to {model.miss:.1f} times as long"] if model else []
    lines.append("")
    names = dict.fromkeys(map(Candidate, (*ALGORITHMS[collective], NATIVE)))
    candidates = sorted({**names, **times}, key=lambda c: times.get(c, inf))
    width = max(len(candidate.label) for candidate in candidates)
    lines.append(f"{'candidate':{width}}{'rounds':>8}{'sent':>12}{'predicted':>12}{'measured':>12}"
                 "   may it serve")
    for candidate in candidates:
        rounds, sent, yes = "?", "?", f"yes ({library_name()})"
        choice = Choice(candidate.name, dict(candidate.params), candidate.segment_bytes)
        if candidate.name != NATIVE:
            shown = _schedule(choice, collective, size, topology)
            rounds, sent, yes = _text(shown.rounds), _sent(shown, nbytes), "yes"
        verdict = obstacle(choice, facts, conditions) or yes
        expected = terms(collective, candidate, size, nbytes, topology) if model else None
        predicted = model.seconds(expected) if model and expected is not None else None
        lines.append(f"{candidate.label:{width}}{rounds:>8}{sent:>12}"
                     f"{_time(predicted):>12}"
                     f"{_time(times.get(candidate)):>12}   {verdict}")
    if not chosen.is_native and size <= EXPLAINED:
        lines += ["", as_text(_schedule(chosen, collective, size, topology), nbytes).rstrip()]
    return "\n".join(lines) + "\n"


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else time_text(seconds, 3)


def _times(facts: CallFacts, tuned: Tuned | None) -> Mapping[Candidate, float]:
    """Measured times of the candidates for a call."""
    if tuned is None:
        return {}
    if tuned.online:
        trial = tuned.trials.get(signature_of(facts))
        return trial.seconds if trial else {}
    return {candidate: seconds for candidate, seconds, predicted
            in tuned.ranking(facts.collective, True, facts.nbytes or 0) if not predicted}


def _source(tuned: Tuned | None, collective: str, measured: bool) -> str:
    """Where times come from, or why there are none."""
    if tuned is None:
        return "looked for at the first collective"
    if tuned.note:
        return f"none; {tuned.source} is not used: {tuned.note}"
    if tuned.online:
        return "online, in this job" if measured else "online, not decided yet"
    if not measured:
        return "none; 'hpccoll tune' makes them"
    if (collective, True) in tuned.curves:
        return f"from {tuned.source}"
    return f"of a few candidates, by a probe, from {tuned.source}; 'hpccoll tune' makes them all"


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
    return str(getattr(choice.algorithm, "algorithm", None)
               or getattr(choice.algorithm, "__name__", "custom"))


def _sent(shown: Schedule, nbytes: int) -> str:
    """Bytes sent by the busiest rank, by the closed form."""
    if shown.sent is None or shown.collective.payload == "none":
        return "?" if shown.sent is None else "0"
    blocks = shown.nblocks if shown.collective.payload == "vector" else shown.size
    return str(shown.sent * nbytes // blocks)


def _text(number: int | None) -> str:
    return "?" if number is None else str(number)
