"""Files of records: one version, the newest job, and what is said of other files."""

import json

import pytest

from hpccoll.errors import ArgumentError
from hpccoll.measure.profiling.record import read as read_calls
from hpccoll.record_file import FORMAT, KINDS, line_names, newest, path_of, read, write
from hpccoll.tools.diagnose import read as read_flight
from hpccoll.training.trace import read as read_steps

#: Each kind's reader, of the folder with one file.
READERS = {"calls": read_calls, "flight": read_flight,
           "steps": lambda folder: read_steps(newest(folder, "steps")[0])}


def test_fields_are_read_back_from_a_folder_that_was_not_there(tmp_path):
    path = path_of(tmp_path / "deep" / "traces", "flight", "job", 3)
    write(path, "flight", {"rank": 3})
    data = read(path, "flight", dict)
    assert (data["format"], data["kind"], data["rank"]) == (FORMAT, "flight", 3)
    assert data["host"] and data["pid"] and data["when"] > 1e9


def test_events_are_of_the_trace_event_format(tmp_path):
    events = [*line_names(3, "rank 3", {"WORLD": 0}),
              {"ph": "X", "pid": 3, "tid": 0, "name": "Barrier", "ts": 1.5, "dur": 2.0}]
    write(tmp_path / "t.json", "timeline", {"ranks": 4}, events)
    data = json.loads((tmp_path / "t.json").read_text())
    assert data["otherData"]["ranks"] == 4 and data["traceEvents"] == events
    assert [event["args"]["name"] for event in events[:2]] == ["rank 3", "WORLD"]
    write(tmp_path / "t.json", "timeline", {}, [])
    assert json.loads((tmp_path / "t.json").read_text())["traceEvents"] == []


def test_the_newest_job_counts(tmp_path):
    for job, ranks in (("old", 3), ("new", 2)):
        for rank in range(ranks):
            write(path_of(tmp_path, "calls", job, rank), "calls", {})
    assert [path.name for path in newest(tmp_path, "calls")] == [
        "calls-new-rank00000.json", "calls-new-rank00001.json"]


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_to_read(tmp_path, kind):
    with pytest.raises(ArgumentError, match=f"has no {KINDS[kind].name}; .*HPCCOLL_TRACE"):
        READERS[kind](tmp_path)
    other = "flight" if kind == "calls" else "calls"
    path_of(tmp_path, other, "job", 0).touch()
    with pytest.raises(ArgumentError, match=f"but a {KINDS[other].name}; use hpccoll trace"):
        READERS[kind](tmp_path)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text, why", [
    ("", "Expecting value"), ("[]", ""), ("{}", "'format'"),
    ('{"format": "hpccoll record 0"}', f"its format is 'hpccoll record 0', not '{FORMAT}'"),
    ('{"otherData": {"format": "hpccoll trace 1"}}', "its format is 'hpccoll trace 1'"),
    (json.dumps({"format": FORMAT, "kind": "timeline"}), "timeline"),
    (json.dumps({"format": FORMAT, "kind": "{kind}"}), "'"),
    (json.dumps({"format": FORMAT, "kind": "{kind}", "traceEvents": [{"ph": "X"}]}), "'")])
def test_other_files_are_refused(tmp_path, kind, text, why):
    path_of(tmp_path, kind, "job", 0).write_text(text.replace("{kind}", kind))
    with pytest.raises(ArgumentError, match=f"rank00000.json' is no {KINDS[kind].name}: .*{why}"):
        READERS[kind](tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_of_another_kind_is_named(tmp_path, kind):
    other = "flight" if kind == "calls" else "calls"
    write(path_of(tmp_path, kind, "job", 0), other, {})
    with pytest.raises(ArgumentError, match=f"its kind is {other!r}, not {kind!r}"):
        READERS[kind](tmp_path)
