"""Candidates of a comparison, and the cases that each one supports."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

from hpccoll.algorithms import ALGORITHMS, algorithm_names, schedule
from hpccoll.algorithms.outside import is_reference, load, split
from hpccoll.algorithms.table import picks
from hpccoll.calls import resolve
from hpccoll.calls.call import Call, lacks_mpi_type
from hpccoll.calls.facts import facts_of
from hpccoll.config import AUTO, NATIVE, QUEUED, Config
from hpccoll.errors import ArgumentError
from hpccoll.ir.methods import METHODS
from hpccoll.machine.discovery import Place
from hpccoll.measure.buffers import CaseBuffers
from hpccoll.measure.cases import Case
from hpccoll.runtime.planning.choice import Choice
from hpccoll.tune.choose import Conditions, decide, objection
from hpccoll.tune.cost_model import plausible_algorithms
from hpccoll.tune.loading import JobTimes
from hpccoll.tune.table import Candidate

#: The native method as ``hpccoll.Comm`` calls it: the native time that ``auto`` can reach.
FORWARDED = "forwarded"
#: Placeholders for all algorithms that support the case, and for those of ``hpccoll tune``.
ALL, PLAUSIBLE = "all", "plausible"
#: Placeholder for the default candidates.
USUAL = "usual"
#: Names that are not algorithms.
WORDS = (NATIVE, FORWARDED, AUTO, ALL, PLAUSIBLE, USUAL, *QUEUED)
#: Minimum bytes at which the table's algorithms for large messages are compared.
LARGE = 64 << 10


def parse(text: str) -> list[Candidate]:
    """Parse ``native,auto,ring:segment=65536,my.py:torus:x=2``; empty for the default."""
    known = {*WORDS, *(name for table in algorithm_names().values() for name in table)}
    candidates: list[Candidate] = []
    for entry in filter(None, map(str.strip, text.split(","))):
        name, settings = split(entry)
        candidate = Candidate.read(entry)
        if is_reference(name):
            load(name)
        elif name not in known:
            raise ArgumentError.unknown_word("--algorithm", name,
                                             (*WORDS, *sorted(known - set(WORDS))))
        if candidate is None or settings and name in WORDS:
            raise ArgumentError("--algorithm", f"cannot read {entry!r}",
                                "write parameters of an algorithm like knomial:k=8")
        if candidate in candidates:
            raise ArgumentError("--algorithm", f"{entry} is given twice")
        candidates.append(candidate)
    return candidates


def check(wanted: Iterable[Candidate], collectives: Iterable[str], size: int) -> None:
    """Raise unless every candidate can be built for at least one of the collectives."""
    bases = dict.fromkeys(METHODS[c] for c in collectives)
    for candidate in wanted:
        if candidate.name in WORDS:
            continue
        fitting = [base for base in bases if _is_known(base, candidate.name)]
        if not fitting:
            known = algorithm_names()
            names = dict.fromkeys(name for base in bases for name in known[base])
            raise ArgumentError.unknown_word("--algorithm", candidate.name, (*WORDS, *names),
                                             f"{', '.join(bases)}: no algorithm {candidate.name!r}")
        for base in fitting:
            parameters: dict[str, Any] = dict(candidate.params)
            schedule(base, candidate.name, size, **parameters)


def expand(wanted: Sequence[Candidate], collective: str, size: int, nbytes: int,
           hierarchical: bool) -> list[Candidate]:
    """Replace ``all``, ``plausible`` and an empty list by names."""
    base = METHODS[collective]
    usual = [NATIVE, AUTO, *picks(base, nbytes >= LARGE)]
    words = {
        USUAL: usual,
        ALL: [name for name, entry in ALGORITHMS[base].items()
              if hierarchical or not entry.hierarchical],
        PLAUSIBLE: plausible_algorithms(base, size, nbytes, hierarchical)}
    named = [map(Candidate, words[c.name]) if c.name in words else [c]
             for c in wanted or [Candidate(USUAL)]]
    return list(dict.fromkeys(chain.from_iterable(named)))


def select(wanted: Sequence[Candidate], case: Case, memory: CaseBuffers,
           hierarchical: bool) -> tuple[list[Candidate], dict[str, str]]:
    """Return the candidates of one case, and the reasons why others do not support it.

    Args:
        wanted: the user's candidates; empty for the default.
        hierarchical: True if ``all`` and ``plausible`` include hierarchical algorithms.
    """
    named = expand(wanted, case.collective, case.size, case.nbytes, hierarchical)
    call = _call(case, memory)
    refused = {c.label: problem for c in named
               if (problem := _objection(c, call, case, memory.on_device))}
    return [c for c in named if c.label not in refused], refused


def serves(candidate: Candidate, case: Case, memory: CaseBuffers, config: Config,
           tuned: JobTimes | None = None, place: Place | None = None) -> str:
    """Return the algorithm that runs; for ``auto``, its choice under the environment's settings."""
    if candidate.name != AUTO:
        return candidate.label
    preference = config.algorithm.get(METHODS[case.collective])
    facts = facts_of(_call(case, memory))
    conditions = Conditions(case.size, Choice(*preference) if preference else None, True, tuned,
                            config.determinism)
    choice = decide(facts, conditions, place)
    return Candidate(choice.name, tuple(choice.params.items()), choice.segment_bytes).label


def _call(case: Case, memory: CaseBuffers) -> Call:
    return getattr(resolve, case.collective)(case.size, memory.rank, *memory.arguments)


def _objection(candidate: Candidate, call: Call, case: Case, on_device: bool) -> str:
    if candidate.name in (NATIVE, FORWARDED) and lacks_mpi_type(call):
        return f"mpi4py cannot pass {case.dtype}"
    if candidate.name in (NATIVE, FORWARDED, AUTO):
        return ""
    if candidate.name in QUEUED:
        return ("" if on_device else "it requires GPU arrays: --device cuda") or objection(
            Choice(candidate.name), facts_of(call), case.size)
    if not _is_known(call.collective, candidate.name):
        return f"{call.collective} has no such algorithm"
    return objection(Choice(candidate.name, dict(candidate.params)), facts_of(call), case.size)


def _is_known(collective: str, name: str) -> bool:
    """Return True if a name or reference is an algorithm of the collective."""
    if is_reference(name):
        return load(name).collective in ("", collective)
    return name in algorithm_names()[collective]
