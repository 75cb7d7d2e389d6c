"""Stamps: hashes of a call that distinguish its messages from those of other calls.

Each rank computes the stamp from the fields that must be equal on all ranks. It is stored in the
bits above a tag. Each transport adds it to messages without extra bytes: shared memory mixes it
with the size in its words, MPI gets as many bits as fit into its tags. Stamp 0 means no stamp.

    stamp = more bits of the hash | kind of element | first bits of the hash

If elements are only moved, some ranks may describe them as bytes: kind 0, equal to every kind.
"""

from __future__ import annotations

#: Bits of a tag below its stamp.
TAG_BITS = 32
#: Bits of a stamp, and bits that are mixed into words: sizes in words leave one bit free.
STAMP_BITS, MIX_BITS = 48, 23
MIX = (1 << MIX_BITS) - 1
#: Position and mask of the kind of element among the mixed bits.
KIND_SHIFT, KIND = 20, 7 << 20


def stamp_of_amount(form: int, amount: int) -> int:
    """Return the stamp of a call from the stamp of its form and its amount of data.

    The executor in C does the same for sizes that it has not seen before.

    >>> stamp_of_amount(form=7 << 40, amount=2) == stamp_of_amount(form=7 << 40, amount=3)
    False
    """
    full, top = (1 << 64) - 1, 1 << STAMP_BITS - 1
    bits = form & ~KIND ^ (amount + 1) * 0x9E3779B97F4A7C15 & full
    bits = (bits ^ bits >> 29) * 0xBF58476D1CE4E5B9 & full
    bits ^= bits >> 32
    return bits & top - 1 & ~KIND | form & KIND | top


def tag_with_stamp(tag: int, stamp: int) -> int:
    """Return a tag with a stamp.

    >>> split(tag_with_stamp(5, 99))
    (5, 99)
    """
    return stamp << TAG_BITS | tag


def split(tag: int) -> tuple[int, int]:
    """Split a value into tag and stamp."""
    return tag & ((1 << TAG_BITS) - 1), tag >> TAG_BITS


def agree(one: int, other: int) -> bool:
    """Return True if messages with these stamps may belong to the same call.

    >>> agree(7, 7 | 3 << KIND_SHIFT), agree(7 | 1 << KIND_SHIFT, 7 | 3 << KIND_SHIFT), agree(7, 8)
    (True, False, False)
    """
    if one == other:
        return True
    return not (one ^ other) & ~KIND and not (one & KIND and other & KIND)
