"""Checks of data over all ranks: non-finite inputs, and data that must be equal.

Each check is one exchange of a few bytes per rank, with the usual reports and time-outs.
"""

from __future__ import annotations

from typing import Any

import numpy

from hpccoll.calls.specification import Buffer, host_buffer
from hpccoll.errors import cause_of
from hpccoll.errors.agreement import ranks_by_value
from hpccoll.errors.checks import NonFiniteInput, UnequalError
from hpccoll.guard.call_sites import call_site
from hpccoll.runtime.context import Context
from hpccoll.runtime.progress.waiting import Meeting

#: Bytes of a digest, and of the text sent with it: type and shape.
DIGEST_BYTES, TOLD_BYTES = 16, 112


def gather_rows(context: Context, mine: numpy.ndarray, title: str) -> numpy.ndarray:
    """Gather one row of every rank; collective.

    Raises:
        CollectiveTimeout: some ranks are missing.
    """
    found = numpy.empty((context.size, *mine.shape), mine.dtype)
    request = context.comm.Iallgather(mine, found)
    try:
        Meeting(context.comm, title).wait(request, *context.timeouts)
    except BaseException as error:
        context.abandoned.append((request, mine, found))  # MPI may still write there
        diagnosis = context.fail(error, title)
        if diagnosis is not error:
            raise diagnosis from cause_of(error)
        raise
    return found


def check_finite(context: Context, buffer: Buffer | None, method: str) -> None:
    """Check the inputs of all ranks for NaN and infinity; raise on every rank. Collective.

    Args:
        context: of the communicator.
        buffer: this rank's input; ``None`` if it has none.
        method: the MPI method.

    Raises:
        NonFiniteInput: names the ranks, their values and positions.
    """
    mine = numpy.zeros(3, "i8")  # count, index of the first, 1 if that is NaN
    if buffer is not None:
        buffer = _load(buffer)
        array = numpy.concatenate([buffer.array[displ:displ + count]
                                   for count, displ in zip(buffer.counts, buffer.displs)])
        if array.dtype.kind not in "fc":  # bfloat16
            array = array.astype("f4")
        strange = numpy.flatnonzero(~numpy.isfinite(array))
        if len(strange):
            mine[:] = len(strange), strange[0], numpy.isnan(array[strange[0]])
    found = gather_rows(context, mine, f"census before {method}")
    found_in = {rank: f"{'NaN' if nan else 'infinity'} in element {first}"
                      + f", the first of {count}" * (count > 1)
                for rank, (count, first, nan) in enumerate(found.tolist()) if count}
    if found_in:
        raise NonFiniteInput(method, call_site(), found_in)


def check_equal(context: Context, array: numpy.ndarray, what: str) -> None:
    """Check that all ranks have equal bits, type and shape; raise on every rank. Collective.

    Raises:
        UnequalError: names the groups of ranks with equal data.
    """
    import hashlib
    text = f"{array.dtype.name} of shape {array.shape}".encode()[:TOLD_BYTES]
    digest = hashlib.blake2b(numpy.ascontiguousarray(array).view("u1").data
                             if array.size else b"", digest_size=DIGEST_BYTES).digest()
    mine = numpy.frombuffer(digest + text.ljust(TOLD_BYTES, b"\0"), "u1").copy()
    records = [bytes(row) for row in gather_rows(context, mine, f"comparison of {what}")]
    if len(set(records)) == 1:
        return
    kinds = {record[DIGEST_BYTES:] for record in records}
    groups = ranks_by_value(record if len(kinds) == 1 else record[DIGEST_BYTES:]
                            for record in records)
    raise UnequalError(
        f"{'bits' if len(kinds) == 1 else 'types or shapes'} in {what}",
        [(tuple(ranks), f"digest {key[:4].hex()}" if len(kinds) == 1
          else key.rstrip(b"\0").decode(errors="replace")) for key, ranks in groups.items()])


def result_of(call: Any) -> numpy.ndarray | None:
    """Return the result as one array; ``None`` if MPI does not make it equal on all ranks."""
    if call is None or call.collective not in ("allreduce", "allgather", "bcast"):
        return None
    sink = call.sink or call.source
    sink = sink and _load(sink)
    if sink is None or not isinstance(sink.array, numpy.ndarray):
        return None
    return numpy.concatenate([sink.array[displ:displ + count]
                              for count, displ in zip(sink.counts, sink.displs)] or [sink.array])


def _load(buffer: Buffer) -> Buffer:
    """Return a buffer with its data in host memory."""
    host = host_buffer(buffer)
    if host is not buffer and host.load is not None:
        host.load()
    return host
