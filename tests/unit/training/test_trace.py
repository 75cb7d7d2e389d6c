"""Reports, traces and pictures of training."""

import json
import sys
from types import SimpleNamespace

import pytest

from hpccoll.errors import ArgumentError, HpccollError
from hpccoll.training import trace
from hpccoll.training.picture import draw_step, new_figure, step_panel
from hpccoll.training.report import BucketTimes, report
from hpccoll.training.trace import (
    BLOCKED,
    COMPRESS,
    DONE,
    FLIGHT,
    PROGRAM,
    READY,
    STEP,
    WAIT,
    Recorder,
    StepTimeline,
    TimedSpan,
    read,
)
from support.threads import run_ranks


# Recorded spans: gathered in one time, written for Perfetto, read back
def recorded(rank):
    """One step of a rank that is two seconds behind the rank before it."""
    recorder, start = Recorder(rank), 100.0 + 2 * rank
    recorder.begin_step(start)
    recorder.add("w", READY, start + 1, start + 1, 400)
    recorder.add("bucket 0", WAIT, start + 1, start + 1.5, 400)
    recorder.add("bucket 0", COMPRESS, start + 1.5, start + 2, 400)
    recorder.add("bucket 0", FLIGHT, start + 2, start + 4, 400, 200.5)
    recorder.add("bucket 0", DONE, start + 4, start + 4, 400)
    recorder.record_blocked(start + 3, start + 4)
    recorder.end_step(start + 5)
    return recorder


@pytest.mark.parametrize("size", [1, 2, 5])
def test_all_ranks_are_gathered_on_rank_0_from_the_first_span_on(size):
    first, *others = run_ranks(size, lambda comm: recorded(comm.Get_rank()).gather(comm))
    assert list(first.tracks) == list(range(size))
    for rank, spans in first.tracks.items():
        assert [span.phase for span in spans] == [
            READY, WAIT, COMPRESS, FLIGHT, DONE, BLOCKED, STEP]
        assert spans[-1] == TimedSpan(PROGRAM, STEP, 2.0 * rank, 2.0 * rank + 5)
        assert spans[3] == TimedSpan("bucket 0", FLIGHT, 2.0 * rank + 2, 2.0 * rank + 4, 400, 200.5)
    assert all(not other.tracks for other in others)


def test_a_clock_that_runs_ahead_is_set_back(monkeypatch):
    """Ranks of other nodes ask rank 0 for the time; here each has a clock of its own."""
    def gathered(comm):
        recorder = recorded(comm.Get_rank())
        return recorder.gather(comm)

    monkeypatch.setattr(trace, "seconds_ahead", lambda comm: -2.0 * comm.Get_rank())
    first, *_ = run_ranks(3, gathered)
    assert [spans[-1]
            for spans in first.tracks.values()] == [TimedSpan(PROGRAM, STEP, 0.0, 5.0)] * 3


def test_clocks_that_drift_are_corrected_in_proportion(monkeypatch):
    recorder, ahead = Recorder(0), iter([0.0, 10.0])
    times = iter([0.0, 100.0])
    monkeypatch.setattr(trace, "time", SimpleNamespace(perf_counter=lambda: next(times)))
    monkeypatch.setattr(trace, "seconds_ahead", lambda comm: next(ahead))
    recorder.add("a", READY, 0.0, 0.0)
    recorder.add("b", READY, 50.0, 50.0)
    recorder.add("c", READY, 200.0, 200.0)

    def gathered(comm):
        recorder.align(comm)
        return recorder.gather(comm)

    [timeline] = run_ranks(1, gathered)
    assert [span.start for span in timeline.tracks[0]] == [0.0, 55.0, 210.0]


def test_nothing_recorded_is_an_empty_timeline():
    first, _ = run_ranks(2, lambda comm: Recorder(comm.Get_rank()).gather(comm))
    assert first == StepTimeline({0: [], 1: []})
    assert Recorder(3).local_timeline() == StepTimeline({3: []})


def test_only_the_last_step_is_kept_of_what_is_not_traced():
    recorder = Recorder(0, traced=False)
    for number in range(3):
        recorder.add(f"{number}", READY, number, number)
        recorder.end_step(number + 1)
    assert [span.name for span in recorder.last] == ["2", PROGRAM] and not recorder.spans


def test_a_gathered_timeline_is_bounded(monkeypatch):
    monkeypatch.setattr(trace, "GATHERED", 6)
    first, _ = run_ranks(2, lambda comm: recorded(comm.Get_rank()).gather(comm))
    assert [len(spans) for spans in first.tracks.values()] == [3, 3]
    assert first.tracks[1][-1].phase == STEP


def test_a_step_begins_where_the_last_one_ended():
    recorder = Recorder(0)
    recorder.add("w", READY, 1.0, 1.0)
    recorder.end_step(3.0)
    recorder.end_step(4.0)
    recorder.begin_step(6.0)
    recorder.end_step(7.0)
    steps = [span for span in recorder.spans if span.phase == STEP]
    assert [(step.start, step.stop) for step in steps] == [(1.0, 3.0), (3.0, 4.0), (6.0, 7.0)]


def test_a_file_is_read_back_to_the_nanosecond(tmp_path):
    path = tmp_path / "trace.json"
    timeline = StepTimeline({4: [TimedSpan('a "name"', FLIGHT, 0.125, 1.000000001, 8, 4.5),
                             TimedSpan('a "name"', DONE, 1.000000001, 1.000000001, 8),
                             TimedSpan(PROGRAM, STEP, 0.0, 2.0)], 7: []})
    timeline.save(path)
    found = read(path).tracks
    assert list(found) == [4, 7]
    for one, other in zip(found[4], timeline.tracks[4]):
        assert one[:2] == other[:2] and one[4:] == other[4:]
        assert one[2:4] == pytest.approx(other[2:4], abs=2e-9)


def test_the_file_is_of_the_trace_event_format(tmp_path):
    path = tmp_path / "trace.json"
    recorded(0).local_timeline().save(path)
    events = json.loads(path.read_text())["traceEvents"]
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert names == {(0, 0): PROGRAM, (0, 1): "w", (0, 2): "bucket 0"}
    assert {e["ph"] for e in events} == {"M", "X", "i"}
    flight = next(e for e in events if e["name"] == FLIGHT)
    assert (flight["ts"], flight["dur"]) == (2e6, 2e6) and flight["args"] == {
        "nbytes": 400, "wire_bytes": 200.5}
    assert all(e["s"] == "t" for e in events if e["ph"] == "i")


def test_a_timeline_without_ranks_writes_nothing(tmp_path):
    StepTimeline({}).save(tmp_path / "trace.json")
    assert not list(tmp_path.iterdir())


def test_the_environment_asks_for_a_file(tmp_path, monkeypatch):
    monkeypatch.delenv("HPCCOLL_TRACE", raising=False)
    assert trace.recorder_from_environment(0) is None
    monkeypatch.setenv("HPCCOLL_TRACE", str(tmp_path / "deep" / "traces"))
    assert trace.recorder_from_environment(2).rank == 2
    run_ranks(2, lambda comm: trace.save_all(recorded(comm.Get_rank()), comm))
    [file] = (tmp_path / "deep" / "traces").iterdir()
    assert file.name.startswith("steps-") and list(read(file).tracks) == [0, 1]


# Timelines in numbers: hidden and exposed time, late ranks, steps that count
def step(start, stop):
    return TimedSpan(PROGRAM, STEP, start, stop)


def bucket(name, wait, compress, flight, stop, nbytes=400, wire=600.0):
    """A bucket that waits, is compressed, flies and is done at these times."""
    return [TimedSpan(name, WAIT, wait, compress, nbytes),
            TimedSpan(name, COMPRESS, compress, flight, nbytes),
            TimedSpan(name, FLIGHT, flight, stop, nbytes, wire),
            TimedSpan(name, DONE, stop, stop, nbytes)]


def test_what_overlaps_standing_still_is_exposed():
    timeline = StepTimeline({0: [*bucket("a", 1, 2, 4, 8), TimedSpan(PROGRAM, BLOCKED, 3, 5),
                             TimedSpan(PROGRAM, BLOCKED, 7, 10), step(0, 16)]})
    found = report(timeline)
    assert (found.ranks, found.steps, found.seconds, found.exposed) == (1, 1, 16, 5)
    assert found.share == 5 / 16 and found.nbytes == 400 and found.wire_bytes == 600
    assert found.buckets == (BucketTimes("a", 400, 600, 1, 2, 4, exposed=3, hidden=3, late=0),)


def test_buckets_under_way_together_are_each_exposed_but_the_step_only_once():
    timeline = StepTimeline({0: [*bucket("a", 0, 0, 0, 4), *bucket("b", 0, 0, 1, 4),
                             TimedSpan(PROGRAM, BLOCKED, 2, 4), step(0, 4)]})
    found = report(timeline)
    assert [b.exposed for b in found.buckets] == [2, 2] and found.exposed == 2


def test_means_are_over_ranks_and_steps():
    track = [*bucket("a", 0, 0, 0, 2), step(0, 4), *bucket("a", 4, 4, 4, 8), step(4, 8)]
    late = [*bucket("a", 0, 0, 1, 2), step(0, 4), *bucket("a", 4, 4, 7, 8), step(4, 8)]
    found = report(StepTimeline({0: track, 1: late}), skip=0)
    assert (found.ranks, found.steps, found.seconds) == (2, 2, 4)
    [a] = found.buckets
    assert (a.nbytes, a.wire_bytes) == (400, 600)
    assert a.flight == (2 + 4 + 1 + 1) / 4
    assert a.late == (1 + 0 + 3 + 0) / 4, "rank 0 waited for rank 1 in both steps"


def test_a_bucket_in_two_transfers_counts_its_bytes_once():
    spans = [TimedSpan("a", FLIGHT, 0, 1, 400, 50.0), TimedSpan("a", FLIGHT, 2, 3, 400, 70.0),
             TimedSpan("a", DONE, 3, 3, 400), step(0, 4)]
    [a] = report(StepTimeline({0: spans})).buckets
    assert (a.nbytes, a.wire_bytes, a.flight) == (400, 120, 2)


def test_first_steps_are_left_out_where_there_are_more():
    spans = [*bucket("a", 0, 0, 0, 9), step(0, 9), *bucket("a", 9, 9, 9, 10), step(9, 10)]
    timeline = StepTimeline({0: spans})
    assert report(timeline).seconds == 1 and report(timeline).buckets[0].flight == 1
    assert report(timeline, skip=0).seconds == 5
    assert report(timeline, skip=2).steps == 2


def test_what_is_after_the_last_whole_step_does_not_count():
    spans = [*bucket("a", 0, 0, 0, 1), step(0, 2), *bucket("a", 2, 2, 2, 3)]
    assert report(StepTimeline({0: spans})).buckets[0].flight == 1


def test_ranks_that_forgot_some_steps_are_compared_in_the_last_ones():
    one = [*bucket("a", 0, 0, 0, 1), step(0, 1), *bucket("a", 1, 1, 1, 3), step(1, 3)]
    found = report(StepTimeline({0: one, 1: one[-5:]}))
    assert found.steps == 1 and found.seconds == 2 and found.buckets[0].late == 0


def test_a_bucket_that_is_not_on_all_ranks_makes_nobody_late():
    found = report(StepTimeline({0: [*bucket("a", 0, 0, 0, 1), step(0, 1)], 1: [step(0, 1)]}))
    assert found.buckets[0].late == 0


def test_a_file_says_the_same_as_what_was_written(tmp_path):
    third = 1 / 3
    timeline = StepTimeline({0: [*bucket("a", third, 2 * third, 1, 7 * third),
                             TimedSpan(PROGRAM, BLOCKED, 2, 7 * third), step(0, 7 * third)]})
    timeline.save(tmp_path / "t.json")
    one, other = report(timeline), report(read(tmp_path / "t.json"))
    assert other.buckets[0][1:] == pytest.approx(one.buckets[0][1:], abs=1e-8)


@pytest.mark.parametrize("tracks", [{}, {0: []}, {0: [step(0, 1)], 1: []}])
def test_no_whole_step_is_an_error(tracks):
    with pytest.raises(ArgumentError, match="complete step"):
        report(StepTimeline(tracks))


def test_text_and_json():
    found = report(StepTimeline({0: [*bucket("bucket 0", 1, 2, 4, 8),
                                     TimedSpan(PROGRAM, BLOCKED, 7, 8), step(0, 10)]}))
    lines = str(found).splitlines()
    assert lines[0] == "1 rank, 1 step; means over both"
    assert "  exposed        1 s, 10.0% of the step" in lines
    assert lines[-1].split() == [
        "bucket", "0", "400", "B", "600", "B", *"1s2s4s0s1s5s"]
    assert found.as_json()["buckets"][0]["hidden"] == 5


# Pictures of steps: what is drawn, and what cannot be
SPANS = [TimedSpan("w", READY, 1, 1), TimedSpan("bucket 0", COMPRESS, 1, 2),
         TimedSpan("bucket 0", FLIGHT, 2, 5), TimedSpan("bucket 1", FLIGHT, 5, 9),
         TimedSpan(PROGRAM, BLOCKED, 6, 8), TimedSpan(PROGRAM, STEP, 0, 8),
         TimedSpan("bucket 0", FLIGHT, 9, 10), TimedSpan(PROGRAM, STEP, 8, 12)]


def test_a_line_for_each_bucket_and_what_lies_outside_is_cut():
    pytest.importorskip("matplotlib")
    panel = new_figure(4, 3).subplots()
    step_panel(panel, SPANS, SPANS[5], "one step")
    assert [text.get_text() for text in panel.get_yticklabels()] == [
        PROGRAM, "bucket 0", "bucket 1"]
    bars = {(bar.get_x(), bar.get_width(), round(bar.get_y() + bar.get_height() / 2))
            for bar in panel.patches}
    assert bars == {(0, 8, 0), (6, 2, 0), (1, 1, 1), (2, 3, 1), (5, 3, 2)}


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_a_file(suffix, tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / f"step.{suffix}"
    draw_step(StepTimeline({0: SPANS}), path, step=0)
    assert path.stat().st_size > 1000


@pytest.mark.parametrize("rank, step, problem", [
    (1, -1, "rank: .*rank 1"), (0, 2, "step: .*step 2"),
    (0, -3, "-3 .*rank 0.*2")])
def test_what_the_timeline_lacks(rank, step, problem, tmp_path):
    with pytest.raises(ArgumentError, match=problem):
        draw_step(StepTimeline({0: SPANS}), tmp_path / "x.png", rank, step)


def test_without_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(HpccollError, match="matplotlib"):
        new_figure(1, 1)
