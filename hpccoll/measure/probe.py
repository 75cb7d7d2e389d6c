"""Probe: a few seconds of measurement inside a job, for a place without a tuning table.

``HPCCOLL_TUNING=probe`` enables it. All ranks of the communicator measure together, and rank 0
adds the times to the table in the default place, where ``hpccoll tune`` replaces them later. If
the table cannot be written, the job continues with one warning, and its own communicators use the
times. A place is not measured twice: see :mod:`hpccoll.tune.loading`.
"""

from __future__ import annotations

from hpccoll.errors import TuningError
from hpccoll.measure import rounds
from hpccoll.measure.survey import survey
from hpccoll.measure.wrapping import Wrap
from hpccoll.runtime.context import Context
from hpccoll.tune.online import MOST, SECONDS
from hpccoll.tune.store import add
from hpccoll.tune.table import Curve, Curves, Fingerprint, parse, render
from hpccoll.units import count_text

#: Source name of times that are not in a file.
UNKEPT = "a probe of this job"


def probe(context: Context, machine: Fingerprint, path: str,
          wrap: Wrap) -> tuple[Curves, str, list[str]]:
    """Measure the candidates and store their times; collective.

    Args:
        path: the table that rank 0 adds them to.

    Returns:
        The times, which may be empty, and their file, both equal on all ranks; and on rank 0 the
        lines of a warning.
    """
    outcome = survey(context.comm, rounds.PROBE, wrap, topology=context.topology)
    problems: list[str] = []
    if context.rank == 0:
        problems += [f"the probe omits {name} {candidate.label}: {count} wrong elements"
                     for (name, candidate), count in outcome.failures.items()]
        spoilt = sum(not doubt.label for doubt in outcome.doubtful)
        if spoilt:
            problems.append(f"the probe omits {count_text(spoilt, 'size')}: other processes used "
                            "these cores")
        if not outcome.curves:
            problems.append("the probe measured nothing; this job does not repeat it")
    curves, problem = _store(context, machine, outcome.curves, path)
    if problem:
        problems.append(f"only this job uses the measurements of the probe: {problem}")
    source = context.comm.bcast(path if curves and not problem else UNKEPT)
    return curves, source, problems


def measure_call(context: Context, collective: str, nbytes: int, path: str, wrap: Wrap) -> Curve:
    """Measure a few candidates for calls of one size, and store their times; collective.

    Args:
        context, path, wrap: as for :func:`probe`; without a path nothing is stored.

    Returns:
        The times, equal on all ranks; empty if nothing could be measured.
    """
    plan = rounds.SurveyPlan((collective,), (nbytes,), SECONDS, thorough=False, most=MOST)
    outcome = survey(context.comm, plan, wrap, topology=context.topology)
    # Under the size of the call: that of the measurement is a multiple of the blocks.
    curves: Curves = {kind: tuple((nbytes, times) for _, times in curve)
                      for kind, curve in outcome.curves.items()}
    # A table that cannot be written is no fault of this job.
    curves, _ = _store(context, outcome.machine._replace(online=True), curves, path)
    return curves.get((collective, True), ())


def _store(context: Context, machine: Fingerprint, curves: Curves, path: str
           ) -> tuple[Curves, TuningError | None]:
    """Add the times of rank 0 to a table; return them on all ranks, and the problem on rank 0."""
    problem = None
    if curves and context.rank == 0:
        # Times of a table are rounded: this job must make the same choices as a later one.
        (curves,) = parse(render({machine: curves}), path).values()
        try:
            if path:
                add(path, machine, curves)
        except TuningError as error:
            problem = error
    return context.comm.bcast(curves), problem
