"""The collectives of a traced job: summed up, as events, drawn."""

import json
from dataclasses import replace

import pytest
from unit.measure.profiling.made import ALLREDUCE, BCAST, moment, noting, rank_record

from hpccoll.measure.profiling.merge import join
from hpccoll.runtime.events.phase_events import Activity
from hpccoll.tools.call_trace import draw, events, header_fields, lines, summary, totals


def ranks(late, size=3, clock="one", ahead=0.0):
    """Ranks of which one comes late to two of three calls; the last one's clock runs ahead."""
    found = []
    for rank in range(size):
        off = ahead if rank == size - 1 else 0.0
        starts = [number + (0.25 if rank == late and number < 2 else 0.01 * rank)
                  for number in range(3)]
        found.append(rank_record(
            rank, [(kind, start + off, number + 0.5 + off)
                   for number, (kind, start) in enumerate(zip((ALLREDUCE, BCAST, ALLREDUCE),
                                                              starts))],
            size, clock if rank == size - 1 else "one",
            ((0.0, -off), (9.0, -off)))._replace(began=off, ended=5 + off))
    return found


def test_a_summary_says_who_was_waited_for():
    found = summary(join(ranks(1)), 4)
    assert [row.title for row in found.profile.details] == ["allreduce", "bcast"]
    assert found.profile.details[0].calls == 2 and found.profile.details[1].last == (1, 1.0)
    assert found.profile.details[0].skew == pytest.approx((0.25 + 0.02) / 2)
    assert found.waits[1] == pytest.approx(2 * (0.25 + 0.23)) and next(iter(found.waits)) == 1
    assert found.sentences() == [
        "3 ranks; no trace of 1 rank.",
        "Rank 1 is the slowest: others waited 960 ms for it in total.",
        "On WORLD, rank 1 was last in 67% of 3 calls, on average 170 ms after the first rank, at "
        "most 250 ms; others waited 960 ms for it in total.", "All ranks use the same clock."]
    assert json.loads(json.dumps(found.as_json()))["rows"][0]["title"] == "allreduce"


def test_clocks_of_several_nodes_are_set_right_and_that_is_said():
    one, several = (summary(join(found), 3) for found in (
        ranks(1), ranks(1, clock="two", ahead=100.0)))
    skews, others = ([row.skew for row in found.profile.details] for found in (one, several))
    assert skews == pytest.approx(others)
    assert several.sentences()[-1] == (
        "Clocks of several nodes, synchronised by round-trip messages, 2 times, by up to 100 s.")
    assert header_fields(join(ranks(1, clock="two", ahead=100.0)),
                         several)["seconds ahead"] == {"2": -100.0}


def test_events_are_spans_of_calls_with_their_waits_inside():
    found = list(events(join(ranks(1))))
    spans = [event for event in found if event["ph"] == "X" and event["pid"] == 0]
    assert [event["name"] for event in spans] == [
        "Allreduce 1K", "waiting", "Bcast 64", "waiting", "Allreduce 1K", "waiting"]
    assert spans[0]["ts"] == 0 and spans[0]["dur"] == 500_000
    assert spans[1]["ts"] == 0 and spans[1]["dur"] == pytest.approx(250_000)
    assert spans[0]["args"]["served by"] == "ring"
    # Who comes last waits for nobody.
    assert [event["name"] for event in found if event["ph"] == "X" and event["pid"] == 1][:2] == [
        "Allreduce 1K", "Bcast 64"]


def with_phases(records):
    """Records whose first call, of half a second or so, reduced for 50 ms."""
    found = []
    for record in records:
        [one] = record.communicators
        start = one.calls[0, 1]
        found.append(record._replace(communicators=(replace(one, phases=noting(
            moment(start + 0.1, Activity.WAITING), moment(start + 0.15, Activity.REDUCING),
            moment(start + 0.2, Activity.OVER))),)))
    return found


def test_spans_of_training_have_lines_of_their_own():
    spans = [(0, "bucket", "in flight", 1.0, 1.5, 8, 4.5), (0, "step", "step", 0.5, 2.5, 0, 0.0)]
    found = list(events(join([one._replace(spans=spans) for one in ranks(1)])))
    [flight] = [one for one in found if one["name"] == "in flight" and one["pid"] == 1]
    assert (flight["ts"], flight["dur"], flight["args"]["nbytes"]) == (1e6, 5e5, 8)
    [named] = [one for one in found if one["name"] == "thread_name" and one["pid"] == 1
               and one["tid"] == flight["tid"]]
    assert named["args"] == {"name": "bucket"}


def test_events_have_phases_on_lines_below():
    found = list(events(join(with_phases(ranks(1)))))
    lines = {event["tid"]: event["args"]["name"] for event in found
             if event["name"] == "thread_name" and event["pid"] == 2}
    assert lines == {0: "WORLD", 1: "WORLD, phases"}
    order = {event["tid"]: event["args"]["sort_index"] for event in found
             if event["name"] == "thread_sort_index"}
    assert order[0] < order[1]
    spans = [event for event in found if event["ph"] == "X" and event["pid"] == 2 and event["tid"]]
    assert [event["name"] for event in spans] == ["phase 0", "waiting for rank 2", "reducing"]
    assert spans[0]["args"] == {"of": "a plan", "to": [0], "from": [2]}
    assert spans[2]["ts"] == pytest.approx(170_000) and spans[2]["dur"] == pytest.approx(50_000)


def test_a_summary_says_what_was_reduced_where_that_is_known():
    allreduce, bcast = summary(join(with_phases(ranks(1))), 3).profile.details
    assert allreduce.reduces == pytest.approx(0.05) and bcast.reduces is None


@pytest.mark.parametrize("inside", [False, True])
def test_a_table_fits_its_columns(inside):
    rows = lines(summary(join(with_phases(ranks(1)) if inside else ranks(1)), 3))
    text = "\n".join(rows)
    assert all(len(line) <= 100 for line in rows)
    if inside:  # waits 0.51 of 2.7 s, reductions 50 of 450 ms
        assert rows[1].split()[4:8] == ["ms", "19%", "70%", "11%"]
    assert ("rank 1 (50%)" in text) == ("skew" in text) == (not inside)
    assert ("reduces" in text) == ("messages" in text) == inside


def test_nothing_traced_is_a_summary_too(tmp_path):
    empty = [rank_record(rank, [])._replace(communicators=()) for rank in range(2)]
    joined = join(empty)
    found = summary(joined, 2)
    assert not found.profile.rows and not found.waits and not lines(found)
    draw(joined, found, tmp_path / "empty.svg")
    assert totals(empty) == "0 calls on 0 B of buffers"


@pytest.mark.parametrize("inside", [False, True])
def test_a_picture_shows_all_ranks(tmp_path, inside):
    joined = join(with_phases(ranks(1)) if inside else ranks(1))
    draw(joined, summary(joined, 3), tmp_path / "calls.svg")
    assert "</svg>" in (tmp_path / "calls.svg").read_text()
    assert totals(joined.records) == "9 calls on 6.188 KiB of buffers"
