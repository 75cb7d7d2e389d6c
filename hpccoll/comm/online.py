"""Measurements while a job runs; :mod:`hpccoll.tune.online` says when.

All ranks take part, because all make the same calls: the last of them had the same number on every
rank (:func:`measure_after`), or none of them has times for the next one (:func:`measure_first`).
"""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy

from hpccoll.calls.facts import CallFacts, facts_of
from hpccoll.comm.uncached.conditions import conditions_of, resolve_call
from hpccoll.config import NONE, OFF, PROBE
from hpccoll.errors import cause_of
from hpccoll.runtime.context import Context
from hpccoll.runtime.progress.waiting import Meeting
from hpccoll.tune.choose import wants_times
from hpccoll.tune.loading import JobTimes, default_path
from hpccoll.tune.online import next_check
from hpccoll.tune.rules import is_measured
from hpccoll.tune.table import Curves, Fingerprint

if TYPE_CHECKING:
    from hpccoll.comm.base import Base
    from hpccoll.comm.methods import Method
    from hpccoll.measure.wrapping import Wrap

TITLE = "online tuning"


def probe(wrap: Wrap, context: Context, machine: Fingerprint, path: str
          ) -> tuple[Curves, str, list[str]]:
    """Measure some candidates of every collective; see :func:`hpccoll.measure.probe.probe`."""
    from hpccoll.measure.probe import probe as run_probe  # only jobs that measure load it
    return run_probe(context, machine, path, wrap)


def start(comm: Base, context: Context, tuned: JobTimes) -> None:
    """Let calls be measured later, where rules were not; the same on all ranks."""
    config = comm._config
    if not (tuned.online or config.tuning in (OFF, PROBE) or config.determinism != NONE
            or is_measured(context.size, context.place)):
        context.library.check_after(next_check(context.guard.number))


def measure_after(method: Method, comm: Base, *args: Any, **options: Any) -> None:
    """Measure the kind of a native call that has just ended, if that is worth its time."""
    context, tuned = comm._private(), comm._check_usable().tuned
    context.library.check_after(next_check(context.guard.number))
    call = resolve_call(comm, method, method.positional(args, options))
    if call is not None and tuned is not None:
        facts = facts_of(call)
        if wants_times(facts, conditions_of(comm, method)):
            _measure(comm, context, facts, tuned)


def measure_first(comm: Base, method: Method, facts: CallFacts, tuned: JobTimes) -> None:
    """Measure a kind of call before its first call, if the user has asked for it."""
    if tuned.online and wants_times(facts, conditions_of(comm, method)):
        _measure(comm, comm._private(), facts, tuned)


def _measure(comm: Base, context: Context, facts: CallFacts, tuned: JobTimes) -> None:
    """Measure candidates for calls of a size, if rank 0 permits it; collective."""
    nbytes, allowance = facts.nbytes or 0, tuned.allowance
    permitted = numpy.array(tuned.online or allowance.permits(nbytes, context.size))
    try:
        Meeting(context.comm, TITLE).wait(context.comm.Ibcast(permitted, 0), *context.timeouts)
    except BaseException as error:
        context.abandoned.append(permitted)  # the library may still write to it
        raise context.fail(error, TITLE) from cause_of(error)
    if permitted:
        from hpccoll.measure.probe import measure_call  # only jobs that measure load it
        start = perf_counter()
        path = "" if tuned.online else comm._config.tuning or default_path()
        measure = context.library.watch_blocking(measure_call, TITLE)
        curve = measure(context, facts.collective, nbytes, path, comm._unobserved_class())
        if curve or tuned.online:  # otherwise it was disturbed, and a later check repeats it
            tuned.add_tried(facts.collective, nbytes, curve)
        allowance.spent += perf_counter() - start
        comm._check_alive().forget_calls()
