"""Recorded spans: gathered in one time, written for Perfetto, read back."""

import json
from types import SimpleNamespace

import pytest

from hpccoll.errors import ArgumentError
from hpccoll.training import trace
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


def test_the_oldest_spans_are_forgotten():
    recorder = Recorder(0, kept=3)
    for number in range(5):
        recorder.add(f"{number}", READY, number, number)
    assert [span.name for span in recorder.spans] == ["2", "3", "4"]


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


@pytest.mark.parametrize("text", [
    "", "[]", "{}", '{"otherData": {"format": "another"}, "traceEvents": []}',
    '{"otherData": {"format": "hpccoll trace 1"}}',
    '{"otherData": {"format": "hpccoll trace 1"}, "traceEvents": [{"ph": "X"}]}'])
def test_other_files_are_refused(text, tmp_path):
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(ArgumentError, match="other.json.*trace"):
        read(path)


def test_a_file_that_is_not_there():
    with pytest.raises(ArgumentError, match="'/nowhere/t.json'"):
        read("/nowhere/t.json")


def test_the_environment_asks_for_a_file(tmp_path, monkeypatch):
    monkeypatch.delenv("HPCCOLL_TRACE", raising=False)
    assert trace.recorder_from_environment(0) is None
    monkeypatch.setenv("HPCCOLL_TRACE", str(tmp_path / "deep" / "traces"))
    assert trace.recorder_from_environment(2).rank == 2
    run_ranks(2, lambda comm: trace.save_all(recorded(comm.Get_rank()), comm, "exchange"))
    [file] = (tmp_path / "deep" / "traces").iterdir()
    assert file.name.startswith("exchange-") and list(read(file).tracks) == [0, 1]
