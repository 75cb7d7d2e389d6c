"""Descriptions of calls, which all ranks must agree on, and the call hashes of their messages.

A description is a pure function of data that all ranks have, computed once per plan. It excludes
in-place use, buffer locations, and counts of single ranks, because ranks may differ in these.
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
from hpccoll.transport.call_hashes import HASH_BITS, KIND, KIND_SHIFT, hash_of_amount

#: Codes of element types in the hash of a call without a reduction, by kind and bytes. Raw bytes
#: and other types have code 0, which matches every code.
KINDS = {"f8": 1, "f4": 2, "i8": 3, "i4": 4, "u8": 3, "u4": 4, "f2": 5, "i2": 6, "u2": 6, "c8": 7,
         "c16": 7, "f16": 7, "c32": 7}
#: Maximum number of characters of a field.
MOST_LETTERS = 60


class Description(NamedTuple):
    """Properties of a call that every rank must agree on.

    Attributes:
        collective: the method's name in lower case.
        count: elements of a reduction, bytes of other calls; empty if not all ranks have it.
        dtype: the type of the elements.
        operator: MPI's name, or ``user``; empty without a reduction.
        root: the root rank, if any.
        algorithm: its name, parameters and segment size.
        layout: nodes and ranks, if the algorithm depends on them.
    """

    collective: str
    count: str = ""  # type: ignore[assignment]  # MPI's word; tuple.count is not used
    dtype: str = ""
    operator: str = ""
    root: str = ""
    algorithm: str = ""
    layout: str = ""

    def call_hash(self) -> int:
        """Return the call hash of this call's messages; never 0.

        >>> Description("bcast").call_hash() == Description("bcast", root="1").call_hash()
        False
        """
        amount = self.amount
        if amount is None:
            return _hash(self)
        return hash_of_amount(_hash(self._replace(count="")), amount)

    @property
    def amount(self) -> int | None:
        """Number in the field ``count``; ``None`` if that is empty."""
        words = self.count.split()
        return int(words[0]) if words and words[0].isdecimal() else None

    def without_moved_type(self) -> Description:
        """Return the same without the type of data that only moves, which ranks may differ in."""
        return self if self.operator else self._replace(dtype="")

    def with_amount(self, amount: int) -> Description:
        """Return the description of a call of this form with another amount of data."""
        return self._replace(count=str(amount) if self.operator else f"{amount} bytes")


@lru_cache
def _hash(one: Description) -> int:
    # Some ranks may use bytes for data that is only moved: the hash excludes its type.
    fields = one if one.operator else one._replace(dtype="")
    text = "\0".join(fields).encode()
    bits = int.from_bytes(hashlib.blake2b(text, digest_size=HASH_BITS // 8).digest(), "little")
    kind = 0 if one.operator else KINDS.get(one.dtype, 0)
    return bits & ~KIND | kind << KIND_SHIFT | 1 << HASH_BITS - 1


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
