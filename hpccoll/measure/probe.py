"""A probe: a few seconds of measuring inside a job, for a place that no table knows.

``HPCCOLL_TUNING=probe`` asks for it. All ranks of the communicator measure together, and rank 0
adds the times to the table in the default place, where ``hpccoll tune`` replaces them later. A job
never fails because they cannot be kept: then they serve its own communicators, with one warning.
Nor does it measure a place again: see :mod:`hpccoll.tune.loading`.
"""

from __future__ import annotations

from mpi4py import MPI

from hpccoll.errors import TuningError
from hpccoll.measure import survey_plan
from hpccoll.measure.survey import survey
from hpccoll.measure.wrapping import Wrap
from hpccoll.runtime.context import Context
from hpccoll.tune.store import add
from hpccoll.tune.table import Curves, Fingerprint, parse, render
from hpccoll.units import count_text

#: Where times come from that no file holds.
UNKEPT = "a probe of this job"


def probe(context: Context, machine: Fingerprint, path: str,
          wrap: Wrap) -> tuple[Curves, str, list[str]]:
    """Measure, and keep the times, if there are any; collective, and the same on all ranks.

    Args:
        context: what hpccoll keeps about the communicator.
        machine: what the times will hold for.
        path: the table that rank 0 adds them to.
        wrap: the class of communicators that is timed.

    Returns:
        The times, which may be none; the file that holds them now; on rank 0, what is to be
        warned of.
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
            # As a later job reads them, which chooses alike.
            (curves,) = parse(render({machine: curves}), path).values()
            try:
                add(path, machine, curves)
            except TuningError as error:
                source = UNKEPT
                problems.append(f"only this job uses the measurements of the probe: {error}")
    curves, source = MPI.Intracomm.bcast(context.comm, (curves, source))
    return curves, source, problems
