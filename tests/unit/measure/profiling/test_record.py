"""Records of profiles, from the ring of events, and their files."""

import json

import numpy
import pytest

from hpccoll.measure.profiling.record import (
    CallRecord,
    CallSums,
    CommName,
    ordered_kinds,
    read,
    records_of,
    save,
)
from hpccoll.runtime.events.ring import EventRing, events

from .made import ALLREDUCE, BCAST, STARTED, noting, rank_record


@pytest.fixture(autouse=True)
def forgotten():
    """A ring of a test is not that of the process."""
    yield
    events.cache_clear()


def same(one, other):
    """Whether two records are equal; ``==`` of arrays is none."""
    return one.as_json() == other.as_json()


def test_overwritten_calls_stay_in_the_sums():
    """Starts of persistent requests come in any order: only the others are numbered."""
    ring = EventRing(4)
    ordered, other = (ring.kind((0, kind)) for kind in (ALLREDUCE, STARTED))
    ring.add_call(1, ring.kind((1, BCAST)), 5, 9, True)
    for number in range(11):
        start = number * 10 ** 9
        ring.add_call(0, (ordered, other)[number % 2], start, start + 5 * 10 ** 8, not number % 2)
    mine, others = records_of(ring, [CommName("A", (0, 1)), CommName("B", (0,))], {})
    assert mine.sums == [CallSums(6, 3.0), CallSums(5, 2.5)] and others.sums == [
        CallSums(1, 4e-9)] and not len(others.calls) and others.ordered == 1
    assert mine.calls.tolist() == [
        [1, 7, 7.5], [0, 8, 8.5], [1, 9, 9.5], [0, 10, 10.5]]
    assert mine.ordered == 4 and ordered_kinds(mine.kinds).tolist() == [True, False]


def test_the_last_calls_of_a_record():
    [record] = rank_record(0, [(ALLREDUCE, 1.0, 2.0), (BCAST, 3.0, 3.5), (STARTED, 4, 5)]
                           ).communicators
    cut = record.last(1)
    assert cut.calls.tolist() == [[2, 4, 5]] and cut.ordered == 2 and cut.sums == record.sums
    assert same(record.last(9), record)


def test_plain_data_and_back():
    [record] = rank_record(0, [(ALLREDUCE, 1.0, 2.0), (BCAST, 3.0, 3.5)], waited=[(STARTED, 0.5)],
                           phases=noting()).communicators
    again = CallRecord.from_json(json.loads(json.dumps(record.as_json())))
    assert again.sums == record.sums and again.kinds == record.kinds
    assert numpy.array_equal(again.calls, record.calls) and same(again, record)


def test_written_and_read_again(tmp_path):
    for rank in range(2):
        save(str(tmp_path), rank_record(rank, [(ALLREDUCE, 1.0, 2.0), (BCAST, 3.0, 3.1234567891)],
                                        ahead=[(0.5, 1e-6)], phases=noting()), "job", 3)
    records, ranks = read(tmp_path)
    assert ranks == 3 and [record.rank for record in records] == [0, 1]
    assert records[1].ahead == ((0.5, 1e-6),)
    [found] = records[1].communicators
    assert found.calls.tolist() == [[0, 1, 2], [1, 3, 3.123456789]]
    assert found.kinds == [ALLREDUCE, BCAST] and found.phases == noting()
