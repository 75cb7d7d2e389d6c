"""Call hashes in tags, in words, and in MPI's tags."""

import random

import pytest

from hpccoll.transport.call_hashes import HASH_BITS, KIND, MIX, agree, split, tag_with_hash
from hpccoll.transport.mpi import FIRST_TAG, Tags
from hpccoll.transport.shm.channels import ELSEWHERE

BOUNDS = [32767, (1 << 20) - 1, 536870911, 2147483647]


def call_hashes(count):
    draw = random.Random(1)
    return [draw.getrandbits(HASH_BITS) for _ in range(count)]


@pytest.mark.parametrize("bound", BOUNDS)
def test_tags_that_differ_stay_apart_whatever_their_call_hashes(bound):
    """And none is larger than MPI allows."""
    tags = Tags(bound)
    plain = [*range(FIRST_TAG), *range(FIRST_TAG, FIRST_TAG + tags.turns, 997)]
    seen = {}
    for tag in plain:
        for call_hash in (0, *call_hashes(20)):
            found = tags.of(tag_with_hash(tag, call_hash))
            assert 0 <= found <= bound
            assert seen.setdefault(found, tag) == tag
        assert tags.of(tag) == tags.of(tag_with_hash(tag, KIND))  # kinds are not told by tags


def test_most_calls_that_disagree_have_tags_of_their_own():
    tags, many = Tags(536870911), call_hashes(1000)
    assert len({tags.of(tag_with_hash(0, call_hash)) for call_hash in many}) > 990
    one, other = (tag_with_hash(1, call_hash) for call_hash in many[:2])
    assert tags.foreign(tags.of(one), other) and not tags.foreign(tags.of(one), one)
    assert not tags.foreign(tags.of(tag_with_hash(0, many[0])), other)
    one, other, next_one = (tag_with_hash(tag, call_hash)
                            for tag, call_hash in zip((24, 24, 32), many))
    assert tags.foreign(tags.of(one), other) and not tags.foreign(tags.of(next_one), other)
    assert not tags.foreign(tags.of(many[0] << 32), one)


def test_a_mixed_size_is_never_what_says_elsewhere():
    for call_hash in (0, *call_hashes(100), MIX, (1 << HASH_BITS) - 1):
        for nbytes in (0, 1, (1 << 19), (1 << 20) - 1):
            assert 0 <= nbytes ^ call_hash & MIX < ELSEWHERE


def test_what_agrees():
    one = call_hashes(1)[0] & ~KIND
    assert agree(one, one) and agree(one, one | 1 << 20) and agree(one | 1 << 20, one)
    assert not agree(one | 1 << 20, one | 2 << 20) and not agree(one, one ^ 1)
    assert split(tag_with_hash(3, one)) == (3, one)
