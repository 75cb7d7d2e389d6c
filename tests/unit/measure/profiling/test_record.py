"""Records of profiles and their files."""

import json
from array import array
from types import SimpleNamespace

import numpy

from hpccoll.measure.profiling import record as module
from hpccoll.measure.profiling.record import CallRecord, CallSums, ordered_kinds, read, save

from .made import ALLREDUCE, BCAST, STARTED, rank_record


# What a rank notes of its calls: kept singly, summed up, as plain data and back
def test_kinds_have_one_number_each():
    record = CallRecord("WORLD", (0, 1))
    assert [record.number_of(kind) for kind in (ALLREDUCE, BCAST, ALLREDUCE)] == [0, 1, 0]
    assert ordered_kinds([ALLREDUCE, STARTED]).tolist() == [True, False]


def test_old_calls_stay_in_the_sums(monkeypatch):
    monkeypatch.setattr(module, "KEPT", 2)
    record = CallRecord("WORLD", (0,))
    for number in range(11):
        record.add(record.number_of((ALLREDUCE, STARTED)[number % 2]), number, number + 0.5)
    assert len(record.calls()) <= 4
    assert record.sums() == {0: CallSums(6, 3.0), 1: CallSums(5, 2.5)}
    starts = record.calls()[:, 1]
    # Starts of persistent requests come in any order: only the others are numbered.
    assert record.ordered == sum(start < starts[0] for start in range(0, 11, 2))


def test_calls_of_machine_code_are_taken_in_their_order(monkeypatch):
    """When its rows are full they come by themselves; they are never asked for from there."""
    monkeypatch.setattr(module, "KEPT", 4)
    record = CallRecord("WORLD", (0,))
    kind = record.number_of(ALLREDUCE)

    class FullRows:
        waiting = b""

        def drain(self):
            data, self.waiting = self.waiting, b""
            return data

    record.rows = FullRows()
    for number in range(30):
        row = array("d", (kind, number, number + 1)).tobytes()
        if number % 3:
            record.rows.waiting += row
        else:
            record.absorb(record.rows.drain() + row)
    record.add(kind, 30, 31)
    starts = record.calls()[:, 1].tolist()
    assert starts == sorted(starts) and starts[-1] == 30 and len(starts) <= 8
    assert record.sums() == {0: CallSums(31, 31.0)}


def test_waits_for_requests_are_added_up():
    [record] = rank_record(0, [(STARTED, 1.0, 2.0)], waited=[(STARTED, 0.5), (STARTED, 1)]
                           ).communicators
    assert record.sums() == {0: CallSums(1, 1.0, 1.5), 1: CallSums(2, 1.5)}
    assert ordered_kinds(record.kinds).tolist() == [False, False]


def test_plain_data_and_back():
    [record] = rank_record(0, [(ALLREDUCE, 1.0, 2.0), (BCAST, 3.0, 3.5)],
                           waited=[(STARTED, 0.5)]).communicators
    record.forget(1)
    again = CallRecord.from_json(json.loads(json.dumps(record.as_json())))
    assert again.sums() == record.sums() and again.kinds == record.kinds
    assert numpy.array_equal(again.calls(), record.calls()) and again.ordered == 2


# Files of ranks: written, read again, and what is wrong with them
def test_written_and_read_again(tmp_path):
    for rank in range(2):
        save(str(tmp_path), rank_record(rank, [(ALLREDUCE, 1.0, 2.0), (BCAST, 3.0, 3.1234567891)],
                                        ahead=[(0.5, 1e-6)]), "job", 3)
    records, ranks = read(tmp_path)
    assert ranks == 3 and [record.rank for record in records] == [0, 1]
    assert records[1].ahead == ((0.5, 1e-6),)
    assert records[1].communicators[0].calls().tolist() == [[0, 1, 2], [1, 3, 3.123456789]]
    assert records[1].communicators[0].kinds == [ALLREDUCE, BCAST]


def test_moments_are_written_along(tmp_path):
    record = rank_record(0, [(ALLREDUCE, 1.0, 2.0)])
    record.communicators[0].moments = SimpleNamespace(as_json=lambda: {"rows": [1, 2, 3]})
    save(str(tmp_path), record, "job", 1)
    [found], _ = read(tmp_path)
    assert found.communicators[0].noted == {"rows": [1, 2, 3]}
