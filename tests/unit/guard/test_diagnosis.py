"""Which ranks are named, and with what, from the ranks' records alone."""

import numpy
import pytest

from hpccoll.errors.contract import ContractError
from hpccoll.guard.diagnosis import groups, judge, unexpected_message_error
from hpccoll.runtime.events.call_log import LOG_BYTES, NUMBER, REMEMBERED, Log, LogRecord
from hpccoll.runtime.planning.description import Description

SUM = Description("allreduce", "100", "f8", "sum", algorithm="ring")
ODD = {"collective": SUM._replace(collective="scan"), "count": SUM._replace(count="99"),
       "dtype": SUM._replace(dtype="i8"), "operator": SUM._replace(operator="max"),
       "algorithm": SUM._replace(algorithm="linear"), "layout": SUM._replace(layout="2x2"),
       "root": SUM._replace(root="1")}


def record(calls, report=None, first=1):
    """What a rank's log says after some calls."""
    log = Log(numpy.zeros(LOG_BYTES, "u1"))
    log.words[NUMBER] = first - 1
    for call in calls:
        log.describe(call.call_hash(), call)
        number = log.words[NUMBER] + 1
        log.write_start(number, call.call_hash())
        log.words[NUMBER] = number
    if report is not None:
        log.write_report({"number": log.words[NUMBER], "tag": 0, "title": "t", "site": "",
                          "when": "",
                          "reason": "", "fields": None, "heard": False, **report})
    made = log.record()
    return LogRecord.unpack(made.pack()) if len(calls) % 2 else made  # both ways say the same


@pytest.mark.parametrize("size", range(3, 9))
@pytest.mark.parametrize("field", ODD)
def test_the_minority_is_named_wherever_it_is(field, size):
    for odd in range(size):
        records = {rank: record([SUM, ODD[field] if rank == odd else SUM],
                                {"site": f"train.py:{7 if rank == odd else 5}"})
                   for rank in range(size)}
        error = judge(records, size)
        assert (error.ranks, error.field, error.absent) == ((odd,), field, ())
        assert [group.sites for group in error.groups] == [("train.py:5",), ("train.py:7",)]
        text = str(error)
        assert f"ranks disagree on {field} in blocking call 2:\n  rank {odd}: " in text
        assert (getattr(ODD[field], field) or "?") in text and "train.py:7" in text


@pytest.mark.parametrize("size", [2, 4, 8])
def test_halves_are_both_shown_and_nobody_is_blamed(size):
    error = judge({rank: record([SUM if rank % 2 else ODD["operator"]]) for rank in range(size)},
                  size)
    assert error.ranks == () and len(error.groups) == 2
    assert "max" in str(error) and "sum" in str(error)


def test_three_ways_to_differ():
    error = judge({0: record([SUM]), 1: record([ODD["count"]]), 2: record([ODD["dtype"]]),
                   3: record([SUM])}, 4)
    assert error.ranks == (1, 2) and error.fields == ("count", "dtype") and error.field == "count"


def test_ranks_that_agree_are_not_accused():
    assert judge({rank: record([SUM, SUM]) for rank in range(3)}, 3) is None
    assert judge({0: record([SUM, SUM]), 1: record([SUM])}, 2) is None


def test_the_first_difference_counts_and_the_late_rank_is_absent():
    error = judge({0: record([SUM, ODD["count"], SUM]), 1: record([SUM, SUM, ODD["dtype"]]),
                   2: record([SUM])}, 3)
    assert error.field == "count" and error.absent == (2,) and error.ranks == ()
    assert "blocking call 2" in str(error) and "no report from rank 2" in str(error)


def test_only_the_last_calls_are_remembered():
    many = [SUM] * 200
    error = judge({0: record(many), 1: record([*many[:-1], ODD["operator"]])}, 2)
    assert "blocking call 200" in str(error)
    assert len(record(many).call_hashes) == REMEMBERED - 1


def test_bytes_go_with_any_type_that_only_moves():
    moved = Description("bcast", "800 bytes", "f8", root="0", algorithm="chain")
    call_hashes = {rank: one.call_hash() for rank, one in enumerate(
        [moved, moved._replace(dtype=""), moved._replace(dtype="u1"), moved])}
    assert groups(call_hashes) == [[0, 1, 2, 3]]
    call_hashes[1] = moved._replace(dtype="i8").call_hash()
    assert groups(call_hashes) == [[0, 2, 3], [1]]


def test_requests_are_judged_by_what_failed():
    records = {rank: record([SUM], {"tag": 24, "number": 0,
                                    "fields": SUM if rank else ODD["operator"]})
               for rank in range(3)}
    error = judge(records, 3)
    assert error.ranks == (0,) and error.field == "operator"
    assert "a nonblocking or persistent call" in str(error)


def test_a_message_whose_sender_tells_nothing():
    error = unexpected_message_error(record([SUM], {"site": "train.py:5"}), 0, 2, 3)
    assert isinstance(error, ContractError) and error.field == "call" and not error.ranks
    assert "rank 2: another" in str(error) and error.absent == (1,)


def test_long_words_fit_a_log():
    long = SUM._replace(algorithm="x" * 400)
    made = record([long, long], {"reason": "y" * 9000})
    assert made.descriptions[long.call_hash()].operator == "sum"
    assert made.report["reason"].startswith("yyy")


def test_every_field_changes_the_call_hash():
    call_hashes = {SUM.call_hash(), *(one.call_hash() for one in ODD.values())}
    assert len(call_hashes) == 1 + len(ODD) and all(call_hashes)
