"""The plan of buckets: every array once, limits kept, the order followed."""

import random

import pytest

from hpccoll.training.buckets import ArraySpec, fitting_bucket_bytes, plan_buckets


def specs_of(counts, dtypes=("float32",)):
    sizes = {"float32": 4, "float64": 8, "int8": 1}
    return [ArraySpec(str(index), (count,), dtypes[index % len(dtypes)],
                      sizes[dtypes[index % len(dtypes)]]) for index, count in enumerate(counts)]


@pytest.mark.parametrize("counts", [[], [0], [1], [5, 0, 7], list(range(50))])
@pytest.mark.parametrize("limit", [0, 1, 64, 10 ** 9])
@pytest.mark.parametrize("dtypes", [("float32",), ("float32", "float64", "int8")])
def test_every_array_is_in_one_bucket_of_its_type(counts, limit, dtypes):
    specs = specs_of(counts, dtypes)
    order = list(range(len(specs)))
    random.Random(limit).shuffle(order)
    plan = plan_buckets(specs, limit, limit // 2, order)
    assert sorted(index for bucket in plan for index in bucket.members) == sorted(order)
    for bucket in plan:
        assert {specs[index].dtype for index in bucket.members} == {bucket.dtype}
        assert bucket.count == sum(specs[index].count for index in bucket.members)
        assert bucket.nbytes == sum(specs[index].nbytes for index in bucket.members)
        ends = [start + specs[index].count for start, index in zip(bucket.starts, bucket.members)]
        assert (0, *ends[:-1]) == bucket.starts and ends[-1] == bucket.count
        # In the order given, and closed as soon as it holds enough.
        assert list(bucket.members) == [index for index in order if index in bucket.members]
        held = sum(specs[index].nbytes for index in bucket.members[:-1])
        assert held < max(limit, 1) or not held


def test_the_first_bucket_is_small_and_the_last_arrays_come_first():
    plan = plan_buckets(specs_of([10] * 10), 120, 40)
    assert [bucket.members for bucket in plan] == [(9,), (8, 7, 6), (5, 4, 3), (2, 1, 0)]


def test_a_limit_of_nothing_gives_every_array_its_own():
    assert [len(bucket.members) for bucket in plan_buckets(specs_of([3, 0, 5]), 0, 0)] == [1, 1, 1]


def test_scalars_have_one_element():
    assert ArraySpec("s", ()).count == 1 and ArraySpec("s", (), "float64", 8).nbytes == 8


@pytest.mark.parametrize(("mebibytes", "limit"), [
    (0, 25), (1, 1), (31, 1), (64, 2), (320, 10), (800, 25), (8000, 25)])
def test_buckets_that_fit(mebibytes, limit):
    specs = [ArraySpec(str(number), (mebibytes, 1 << 10)) for number in range(256)]
    assert fitting_bucket_bytes(specs) == limit << 20
