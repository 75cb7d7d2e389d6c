"""Call hashes, which distinguish the messages of a call from those of other calls.

Each rank computes the hash from the fields that must be equal on all ranks. The bits above a tag
hold it. Each transport adds it to messages without extra bytes: shared memory mixes it with the
size in its words, MPI gets as many bits as fit into its tags. 0 means no call hash.

    call hash = more bits of the hash | kind of element | first bits of the hash

If elements are only moved, some ranks may describe them as bytes: kind 0, equal to every kind.
"""

from __future__ import annotations

#: Bits of a tag below its call hash.
TAG_BITS = 32
#: Bits of a call hash, and bits that are mixed into words: sizes in words leave one bit free.
HASH_BITS, MIX_BITS = 48, 23
MIX = (1 << MIX_BITS) - 1
#: Position and mask of the kind of element among the mixed bits.
KIND_SHIFT, KIND = 20, 7 << 20


def hash_of_amount(form: int, amount: int) -> int:
    """Return the call hash of a call from the call hash of its form and its amount of data.

    The executor in C does the same for sizes that it has not seen before.

    >>> hash_of_amount(form=7 << 40, amount=2) == hash_of_amount(form=7 << 40, amount=3)
    False
    """
    full, top = (1 << 64) - 1, 1 << HASH_BITS - 1
    bits = form & ~KIND ^ (amount + 1) * 0x9E3779B97F4A7C15 & full
    bits = (bits ^ bits >> 29) * 0xBF58476D1CE4E5B9 & full
    bits ^= bits >> 32
    return bits & top - 1 & ~KIND | form & KIND | top


def tag_with_hash(tag: int, call_hash: int) -> int:
    """Return a tag with a call hash.

    >>> split(tag_with_hash(5, 99))
    (5, 99)
    """
    return call_hash << TAG_BITS | tag


def split(tag: int) -> tuple[int, int]:
    """Split a value into tag and call hash."""
    return tag & ((1 << TAG_BITS) - 1), tag >> TAG_BITS


def agree(one: int, other: int) -> bool:
    """Return True if messages with these call hashes may belong to the same call.

    >>> agree(7, 7 | 3 << KIND_SHIFT), agree(7 | 1 << KIND_SHIFT, 7 | 3 << KIND_SHIFT), agree(7, 8)
    (True, False, False)
    """
    if one == other:
        return True
    return not (one ^ other) & ~KIND and not (one & KIND and other & KIND)
