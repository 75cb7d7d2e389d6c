"""A probe: a few seconds of measuring inside a job, for a place that no table knows.

``HPCCOLL_TUNING=probe`` asks for it. All ranks of the communicator measure together, and rank 0
adds the times to the table in the default place, where ``hpccoll tune`` replaces them later. A job
never fails because they cannot be kept: then they serve its own communicators, with one warning.
Nor does it measure a place again where nothing could be measured.
"""

from __future__ import annotations

import warnings

from mpi4py import MPI

from hpccoll.errors import TuningError
from hpccoll.runtime.context import Context
from hpccoll.tune.store import add
from hpccoll.tune.table import Curves, Fingerprint, parse, render

#: Where times come from that no file holds, and what is said where there are none.
UNKEPT, NOTHING = "a probe of this job", "it could measure nothing"
#: What this process has measured, and where it is kept; empty curves where there was nothing.
_found: dict[Fingerprint, tuple[Curves, str]] = {}


def earlier(machine: Fingerprint) -> tuple[Curves, str] | None:
    """What this process has measured on such a machine, and where that is kept."""
    return _found.get(machine)


def probe(context: Context, machine: Fingerprint, path: str) -> tuple[Curves, str]:
    """Measure, and keep the times, if there are any; collective, and the same on all ranks.

    Args:
        state: the private state of the communicator.
        machine: what the times will hold for.
        path: the table that rank 0 adds them to.
    """
    # The benchmark stands on a higher floor; only a job that asks for a probe goes there.
    from hpccoll.measure.survey import PROBE, survey

    outcome = survey(context.comm, PROBE, topology=context.topology)
    curves, source, problems = outcome.curves, path, []
    if context.rank == 0:
        problems += [f"the probe leaves {name} {candidate.label} out: {count} wrong elements"
                     for (name, candidate), count in outcome.failures.items()]
        if not curves:
            source = UNKEPT
            problems.append("the probe could measure nothing; this job asks for no other")
        else:
            # As a later job reads them, which chooses alike.
            (curves,) = parse(render({machine: curves}), path).values()
            try:
                add(path, machine, curves)
            except TuningError as error:
                source = UNKEPT
                problems.append(f"what the probe measured serves this job only: {error}")
    _found[machine] = MPI.Intracomm.bcast(context.comm, (curves, source))
    # Only now: where warnings are errors, the others have what they wait for.
    for problem in problems:
        warnings.warn(f"hpccoll: {problem}", RuntimeWarning, stacklevel=2)
    return _found[machine]
