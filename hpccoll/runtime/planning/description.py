"""Description of a call, which all ranks must agree on, and the call hash of its messages.

A description is a pure function of data that all ranks have. It excludes in-place use, buffer
locations, and counts of single ranks, because ranks may differ in these.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from hpccoll.errors.agreement import hash_of_text
from hpccoll.transport.call_hashes import HASH_BITS, KIND, KIND_SHIFT, hash_of_amount

#: Codes of element types in the hash of a call without a reduction, by kind and bytes. Raw bytes
#: and other types have code 0, which matches every code.
KINDS = {"f8": 1, "f4": 2, "i8": 3, "i4": 4, "u8": 3, "u4": 4, "f2": 5, "i2": 6, "u2": 6, "c8": 7,
         "c16": 7, "f16": 7, "c32": 7}


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
    bits = hash_of_text("\0".join(fields), HASH_BITS // 8)
    kind = 0 if one.operator else KINDS.get(one.dtype, 0)
    return bits & ~KIND | kind << KIND_SHIFT | 1 << HASH_BITS - 1
