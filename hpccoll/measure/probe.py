"""Probe: a few seconds of measurement inside a job, for a place without a tuning table.

``HPCCOLL_TUNING=probe`` enables it. All ranks of the communicator measure together, and rank 0
adds the times to the table in the default place, where ``hpccoll tune`` replaces them later. If
the table cannot be written, the job continues with one warning, and its own communicators use the
times. A place is not measured twice: see :mod:`hpccoll.tune.loading`.
"""

from __future__ import annotations

from hpccoll.errors import TuningError
from hpccoll.measure import survey_plan
from hpccoll.measure.survey import survey
from hpccoll.measure.wrapping import Wrap
from hpccoll.runtime.context import Context
from hpccoll.tune.store import add
from hpccoll.tune.table import Curves, Fingerprint, parse, render
from hpccoll.units import count_text

#: Source name of times that are not in a file.
UNKEPT = "a probe of this job"


def probe(context: Context, machine: Fingerprint, path: str,
          wrap: Wrap) -> tuple[Curves, str, list[str]]:
    """Measure the candidates and store their times; collective.

    Args:
        context: hpccoll's state of the communicator.
        machine: the machine that the times are valid for.
        path: the table that rank 0 adds them to.
        wrap: the class of communicators that is timed.

    Returns:
        The times, which may be empty, and their file, both equal on all ranks; and on rank 0 the
        lines of a warning.
    """
    outcome = survey(context.comm, survey_plan.PROBE, wrap, topology=context.topology)
    curves, source = outcome.curves, path
    problems: list[str] = []
    if context.rank == 0:
        problems += [f"the probe omits {name} {candidate.label}: {count} wrong elements"
                     for (name, candidate), count in outcome.failures.items()]
        spoilt = sum(not doubt.label for doubt in outcome.doubtful)
        if spoilt:
            problems.append(f"the probe omits {count_text(spoilt, 'size')}: other processes used "
                            "these cores")
        if not curves:
            source = UNKEPT
            problems.append("the probe measured nothing; this job does not repeat it")
        else:
            # Times of a table are rounded: this job must make the same choices as a later one.
            (curves,) = parse(render({machine: curves}), path).values()
            try:
                add(path, machine, curves)
            except TuningError as error:
                source = UNKEPT
                problems.append(f"only this job uses the measurements of the probe: {error}")
    curves, source = context.comm.bcast((curves, source))
    return curves, source, problems
