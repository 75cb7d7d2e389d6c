"""What every rank has to agree on about a call, in words and as a stamp of its messages.

A description is a pure function of what all ranks know, made once for a plan. Whether a call is in
place, where its buffers lie, and counts that only some ranks know are no part of it: there ranks
may differ.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import NamedTuple

import numpy

from hpccoll.calls.call import Call
from hpccoll.calls.facts import facts_of
from hpccoll.ir.collectives import COLLECTIVES
from hpccoll.ir.schedule import Schedule
from hpccoll.transport.stamps import KIND, KIND_SHIFT, STAMP_BITS

#: Elements that only move, by kind and bytes; others, as well as mere bytes, are told by nobody.
#: What is 0 goes with any other.
KINDS = {"f8": 1, "f4": 2, "i8": 3, "i4": 4, "u8": 3, "u4": 4, "f2": 5, "i2": 6, "u2": 6, "c8": 7,
         "c16": 7, "f16": 7, "c32": 7}
#: Letters of a field that are shown.
MOST_LETTERS = 60


class Description(NamedTuple):
    """A call as every rank must make it.

    Attributes:
        collective: the method's name in lower case.
        count: elements of what is reduced, bytes of what is moved; empty where not all ranks know.
        dtype: of the elements.
        operator: MPI's name, or ``user``; empty where nothing is reduced.
        root: the root rank, where there is one.
        algorithm: its name and parameters, and how blocks are cut.
        layout: nodes and ranks, where the algorithm goes by them.
    """

    collective: str
    count: str = ""  # type: ignore[assignment]  # MPI's word; tuple.count is not used
    dtype: str = ""
    operator: str = ""
    root: str = ""
    algorithm: str = ""
    layout: str = ""

    def stamp(self) -> int:
        """The stamp of this call's messages; never 0.

        >>> Description("bcast").stamp() == Description("bcast", root="1").stamp()
        False
        """
        return _stamp(self)


@lru_cache
def _stamp(one: Description) -> int:
    # What only moves may be known as bytes on some ranks: its type is no part of the hash.
    told = one if one.operator else one._replace(dtype="")
    text = "\0".join(told).encode()
    bits = int.from_bytes(hashlib.blake2b(text, digest_size=STAMP_BITS // 8).digest(), "little")
    kind = 0 if one.operator else KINDS.get(one.dtype, 0)
    return bits & ~KIND | kind << KIND_SHIFT | 1 << STAMP_BITS - 1


def element_of(call: Call) -> str:
    """The type of a call's elements as a letter and its bytes; empty where it is not known.

    MPI lets a buffer without elements have any type. So may pairs of ranks that move nothing: where
    a rank moves nothing to or from another one, it cannot tell that both have the same type.
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
    """Describe a call for the MPI library; one that only it understands, by its name alone."""
    if call is None:
        return Description(method, algorithm="native")
    return _description(call, "native", "", COLLECTIVES[call.collective].rooted)


def describe(call: Call, schedule: Schedule, segment_bytes: int) -> Description:
    """Describe a call.

    Args:
        call: what is called.
        schedule: what was chosen for it.
        segment_bytes: asked for by the user; 0 where the machine's limits decide.
    """
    words = [schedule.algorithm, *(f"{name}={value}" for name, value in schedule.params)]
    words += [f"in segments of {segment_bytes} bytes"] if segment_bytes else []
    return _description(call, " ".join(words)[:MOST_LETTERS],
                        str(schedule.topology or "")[:MOST_LETTERS], schedule.collective.rooted)


def _description(call: Call, algorithm: str, layout: str, rooted: bool) -> Description:
    facts = facts_of(call)
    # A rank that has learnt the counts of the root does not know more than one that need not.
    known = facts.nbytes and not facts.counts_at_root
    count = f"{facts.nbytes} bytes" if known else ""
    if facts.reduces and facts.nbytes is not None:
        count = str(facts.nbytes // facts.itemsize)
    return Description(call.name, count, element_of(call), facts.operator,
                       str(call.root) if rooted else "", algorithm, layout)
