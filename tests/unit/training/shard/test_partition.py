"""Who owns what: every element has one owner, and shards are as equal as can be."""

import math

import pytest

from hpccoll.errors import ArgumentError
from hpccoll.training.buckets import ArraySpec
from hpccoll.training.shard.partition import WHOLE, check_units, part_sizes, plan_groups

SPECS = [ArraySpec(f"a{i}", shape) for i, shape in enumerate(
    [(3, 5), (), (0,), (2,), (41,), (1,), (8, 8)])]


@pytest.mark.parametrize("size", (1, 2, 3, 5, 7, 8))
@pytest.mark.parametrize("count", (0, 1, 4, 6, 8, 9, 101))
def test_parts_differ_by_one_and_make_the_whole(count, size):
    for turn in range(size):
        counts = part_sizes(count, size, turn)
        assert sum(counts) == count and max(counts) - min(counts) <= 1
        assert [counts[(turn + k) % size] for k in range(size)] == sorted(counts, reverse=True)


@pytest.mark.parametrize("size", (1, 2, 3, 5, 7, 8))
@pytest.mark.parametrize("options", [
    {}, {"bucket_bytes": 0, "first_bucket_bytes": 0}, {"bucket_bytes": 80},
    {"units": [[0, 1, 2], [3], [4, 5, 6]]},
    {"units": [[6], [5, 4], [3, 2, 1, 0]], "persistent": 5}], ids=str)
def test_every_element_has_one_owner_and_shards_are_equal(options, size):
    groups = plan_groups(SPECS, size, **{"bucket_bytes": 1 << 20, "first_bucket_bytes": 40,
                                         **options})
    owners = {}
    for group in groups:
        for rank in range(size):
            for index, elements, place in group.pieces(group.part(rank)):
                assert elements.stop - elements.start == place.stop - place.start
                for element in range(elements.start, elements.stop):
                    assert owners.setdefault((index, element), rank) == rank
                    where = group.starts[rank] + place.start + element - elements.start
                    place_of = dict(zip(group.bucket.members, group.bucket.starts))[index]
                    assert where == place_of + element
    assert len(owners) == sum(spec.count for spec in SPECS)
    shards = [sum(group.counts[rank] for group in groups) for rank in range(size)]
    assert max(shards) - min(shards) <= 1
    assert math.fsum(shards) == sum(spec.count for spec in SPECS)


def test_units_are_groups_from_the_last_to_the_first_and_small_arrays_come_at_the_end():
    groups = plan_groups(SPECS, 2, 0, 0, [[0, 1, 2], [3], [4, 5, 6]], persistent=3)
    assert [(group.unit, group.bucket.members) for group in groups] == [
        (2, (6, 4)), (0, (0,)), (WHOLE, (5, 3, 2, 1))]


def test_arrays_of_different_kinds_share_no_group():
    groups = plan_groups(SPECS, 2, 0, 0, [[0, 1, 2], [3], [4, 5, 6]], persistent=3,
                         kinds=[0, 1, 0, 1, 0, 0, -1])
    assert [(group.unit, group.bucket.members) for group in groups] == [
        (2, (6,)), (2, (4,)), (0, (0,)), (WHOLE, (5, 2)), (WHOLE, (3, 1))]


def test_a_unit_of_two_types_is_two_groups():
    specs = [ArraySpec("a", (4,)), ArraySpec("b", (4,), "float16", 2), ArraySpec("c", (4,))]
    groups = plan_groups(specs, 2, 0, 0, [[0, 1, 2]])
    assert [(group.unit, group.bucket.members) for group in groups] == [(0, (2, 0)), (0, (1,))]


@pytest.mark.parametrize("units, odd", [([[0, 1]], "2, 3, 4, 5, 6"), ([list(range(8))], "7"),
                                        ([list(range(7)), [3]], "3"), ([[*range(6), -1]], "-1, 6")])
def test_units_that_are_none(units, odd):
    with pytest.raises(ArgumentError, match=f"units: arrays {odd} "):
        check_units(units, len(SPECS))
