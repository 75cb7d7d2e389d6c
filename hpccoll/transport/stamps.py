"""Stamps: what tells a message of one call from that of another, without a byte more to send.

A stamp is a number that every rank makes of what it must agree on with the others. It stands in
the bits of a tag above the tag itself, and each transport writes it on messages in its own way: in
the words of shared memory, mixed with the size; in MPI's tags, as far as these reach. A stamp of 0
says nothing, and is the same as none.

    stamp = more of the hash | kind of element | the hash's first bits

Where elements only move, some ranks may know them as mere bytes. Their kind is 0, which goes with
any other one.
"""

from __future__ import annotations

#: Bits of a tag below its stamp.
TAG_BITS = 32
#: Bits of a stamp, and those that are mixed into words; sizes in words leave one bit free.
STAMP_BITS, MIX_BITS = 48, 23
MIX = (1 << MIX_BITS) - 1
#: The kind of element, among the bits that are mixed, and how far up it stands.
KIND_SHIFT, KIND = 20, 7 << 20


def stamped(tag: int, stamp: int) -> int:
    """A tag with a stamp.

    >>> split(stamped(5, 99))
    (5, 99)
    """
    return stamp << TAG_BITS | tag


def split(tag: int) -> tuple[int, int]:
    """A tag, and its stamp."""
    return tag & ((1 << TAG_BITS) - 1), tag >> TAG_BITS


def agree(one: int, other: int) -> bool:
    """Tell whether messages with these stamps may be of the same call.

    >>> agree(7, 7 | 3 << KIND_SHIFT), agree(7 | 1 << KIND_SHIFT, 7 | 3 << KIND_SHIFT), agree(7, 8)
    (True, False, False)
    """
    if one == other:
        return True
    return not (one ^ other) & ~KIND and not (one & KIND and other & KIND)
