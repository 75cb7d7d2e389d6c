"""The search inside a run, its log and its replay."""

import json
from pathlib import Path

import pytest

from hpccoll.errors import ArgumentError
from hpccoll.training.autotune import SAMPLE, WARM_UP, Autotune, Knobs, knobs_from_log, search


def found(start, seconds):
    asked, searching = [], search(start)
    knobs = next(searching)
    while True:
        asked.append(knobs)
        try:
            knobs = searching.send(seconds(knobs))
        except StopIteration as end:
            return end.value, asked


@pytest.mark.parametrize("best", [1 << 20, 8 << 20, 64 << 20])
def test_the_best_size_is_found_up_and_down(best):
    knobs, asked = found(Knobs(8 << 20), lambda k: 1 + abs(k.bucket_bytes / best - 1)
                         + abs(best / k.bucket_bytes - 1))
    assert knobs.bucket_bytes == best and len(asked) < 12


def test_what_saves_nothing_is_not_changed():
    start = Knobs(1 << 20, 0, 0, "auto")
    knobs, asked = found(start, lambda k: 1.0)
    assert knobs == start
    assert all(k.partition_bytes == k.credit_bytes == 0 for k in asked)  # off stays off


def test_a_faster_algorithm_is_taken():
    knobs, _ = found(Knobs(1 << 20), lambda k: 0.5 if k.algorithm == "native" else 1.0)
    assert knobs.algorithm == "native"


def test_sizes_stay_within_bounds():
    knobs, asked = found(Knobs(128 << 10), lambda k: k.bucket_bytes)
    assert knobs.bucket_bytes == 64 << 10
    assert min(k.bucket_bytes for k in asked) == 64 << 10


def test_a_sample_leaves_the_first_steps_out():
    tuner = Autotune(Knobs(1 << 20), None, 0)
    times = [100.0] * WARM_UP + [1.0] * SAMPLE
    assert [tuner.add_step(t) for t in times] == [None] * (len(times) - 1) + [1.0]


def test_the_log_is_replayed(tmp_path):
    path = str(tmp_path / "log.jsonl")
    assert knobs_from_log(path) is None
    start = Knobs(1 << 20)
    tuner, other = Autotune(start, path, 0), Autotune(start, None, 1)
    while not tuner.done:
        assert knobs_from_log(path) is None  # not before it has ended
        seconds = 1.0 if tuner.knobs.bucket_bytes == 4 << 20 else 2.0 + tuner.knobs.bucket_bytes**-1
        assert tuner.next_knobs(seconds) == other.next_knobs(seconds)
    assert knobs_from_log(path) == tuner.knobs
    lines = list(map(json.loads, Path(path).read_text(encoding="utf-8").splitlines()))
    assert lines[0]["seconds"] > 0 and lines[-1]["chosen"]


def test_another_file_is_no_log(tmp_path):
    path = tmp_path / "log"
    path.write_text("hello\n")
    with pytest.raises(ArgumentError, match="not an autotuning log"):
        knobs_from_log(str(path))
    path.write_text(json.dumps({"chosen": True}) + "\n")
    with pytest.raises(ArgumentError):
        knobs_from_log(str(path))
