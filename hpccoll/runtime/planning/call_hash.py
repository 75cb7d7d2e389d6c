"""Descriptions of resolved calls, computed once per plan; :mod:`.description` has their class."""

from __future__ import annotations

import numpy

from hpccoll.calls.call import Call
from hpccoll.calls.facts import facts_of
from hpccoll.ir.collectives import COLLECTIVES
from hpccoll.ir.schedule import Schedule
from hpccoll.runtime.planning.description import Description

#: Maximum number of characters of a field.
MOST_LETTERS = 60


def element_of(call: Call) -> str:
    """Return the type of a call's elements as a letter and its bytes; empty if unknown.

    MPI allows any type for a buffer without elements, and for a pair of ranks without data. A rank
    without data for another rank cannot know that both have the same type.
    """
    if call.op is not None:
        return _name(call.dtype)
    buffers = [one for one in (call.source, call.sink) if one is not None]
    if call.name in ("alltoallv", "alltoallw") and any(0 in one.counts for one in buffers):
        return ""
    known = {_name(one.dtype) for one in buffers if one.dtype is not None and one.count}
    return known.pop() if len(known) == 1 else ""


def _name(dtype: numpy.dtype) -> str:
    return dtype.name if dtype.kind == "V" and dtype.name == "bfloat16" else (
        f"{dtype.kind}{dtype.itemsize}")


def describe_native(call: Call | None, method: str) -> Description:
    """Describe a native call; ``call`` is ``None`` if only the MPI library supports it."""
    if call is None:
        return Description(method, algorithm="native")
    return _description(call, "native", "", COLLECTIVES[call.collective].rooted)


def describe(call: Call, schedule: Schedule, segment_bytes: int) -> Description:
    """Describe a call that a schedule runs.

    Args:
        call: the call.
        schedule: the selected schedule.
        segment_bytes: segment size that the user set, in bytes; 0 for the default.
    """
    words = [schedule.algorithm, *(f"{name}={value}" for name, value in schedule.params)]
    words += [f"in segments of {segment_bytes} bytes"] if segment_bytes else []
    return _description(call, " ".join(words)[:MOST_LETTERS],
                        str(schedule.topology or "")[:MOST_LETTERS], schedule.collective.rooted)


def _description(call: Call, algorithm: str, layout: str, rooted: bool) -> Description:
    facts = facts_of(call)
    # Counts that only the root has are omitted: the other ranks may not have received them.
    known = facts.nbytes and not facts.counts_at_root
    count = f"{facts.nbytes} bytes" if known else ""
    if facts.reduces and facts.nbytes is not None:
        count = str(facts.nbytes // facts.itemsize)
    return Description(call.name, count, element_of(call), facts.operator,
                       str(call.root) if rooted else "", algorithm, layout)
