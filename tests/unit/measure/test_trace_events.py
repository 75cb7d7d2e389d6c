"""Timelines in the Trace Event Format."""

import json

from hpccoll.measure.trace_events import line_names, save_events


def test_a_file_holds_what_it_says_of_itself_and_the_events(tmp_path):
    events = [*line_names(3, "rank 3", {"WORLD": 0}),
              {"ph": "X", "pid": 3, "tid": 0, "name": "Barrier", "ts": 1.5, "dur": 2.0}]
    save_events(tmp_path / "t.json", {"format": "test"}, events)
    data = json.loads((tmp_path / "t.json").read_text())
    assert data["otherData"] == {"format": "test"} and data["traceEvents"] == events
    assert [event["args"]["name"] for event in events[:2]] == ["rank 3", "WORLD"]


def test_no_events_are_a_file_too(tmp_path):
    save_events(tmp_path / "t.json", {}, [])
    assert json.loads((tmp_path / "t.json").read_text())["traceEvents"] == []
