"""The commands ``hpccoll trace``."""

import json
import os
from pathlib import Path

import pytest
from unit.measure.profiling.made import ALLREDUCE, rank_record

pytest.importorskip("click")
pytest.importorskip("rich")

from click.testing import CliRunner
from step_simulator.simulation import simulate_step

from hpccoll.cli import main
from hpccoll.measure.profiling.record import save
from hpccoll.training.report import report
from hpccoll.training.trace import StepTimeline


def call(*words):
    return CliRunner().invoke(main, ["trace", "report", *map(str, words)])


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "steps-1-rank00000.json"
    simulate_step("resnet50", nodes=4, bucket_bytes=25 << 20).timeline.save(path)
    return path


def test_a_report(file):
    done = call(file)
    assert done.exit_code == 0, done.output
    assert done.output.startswith(f"{file}: 1 rank, 1 step") and "bucket 4" in done.output


def test_a_picture_for_which_there_is_no_space(file, monkeypatch):
    pytest.importorskip("matplotlib")

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", full)
    done = call(file, "--plot", file.with_suffix(".png"))
    assert done.exit_code == 2
    assert done.stderr.startswith("hpccoll: --plot: cannot write") and "No space" in done.stderr


def test_of_a_folder_the_newest(file):
    older = file.with_name("steps-0-rank00000.json")
    simulate_step("vgg16").timeline.save(older)
    os.utime(older, (1, 1))
    for name in ("calls-x-rank00000.json", "flight-x-rank00000.json", "timeline.json"):
        file.with_name(name).write_text("{}")
    assert call(file.parent).output == call(file).output


def test_the_collectives_of_all_ranks(tmp_path):
    pytest.importorskip("matplotlib")
    for rank in range(2):
        save(str(tmp_path), rank_record(rank, [(ALLREDUCE, 1.0 + rank / 2, 2.0)]), "job", 2)
    words = ["trace", str(tmp_path), "--plot", str(tmp_path / "calls.svg")]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    assert "Allreduce" in done.output and "Rank 1 is the slowest" in done.output
    assert json.loads((tmp_path / "timeline.json").read_text())["otherData"]["ranks"] == 2
    assert (tmp_path / "calls.svg").stat().st_size > 1000
    done = CliRunner().invoke(main, ["trace", "calls", str(tmp_path), "--json", "-"])
    assert json.loads(done.stdout)["rows"][0]["calls"] == 1


def test_a_verdict():
    records = Path(__file__).parents[1] / "tools" / "records" / "away"
    done = CliRunner().invoke(main, ["trace", "diagnose", str(records)])
    assert done.exit_code == 0 and "Rank 1 has not started call 11" in done.output
    done = CliRunner().invoke(main, ["trace", "diagnose", str(records), "--json", "-"])
    assert json.loads(done.stdout)["ranks"] == 3


@pytest.mark.parametrize("words", [[], ["calls"], ["diagnose"]])
def test_an_empty_folder_is_one_line(tmp_path, words):
    done = CliRunner().invoke(main, ["trace", *words, str(tmp_path)])
    assert done.exit_code == 2 and done.output.count("\n") == 1


def test_json_and_picture(file, tmp_path):
    pytest.importorskip("matplotlib")
    picture = tmp_path / "step.svg"
    done = call(file, "--json", "-", "--plot", picture)
    data = json.loads(done.stdout)
    assert data["file"] == str(file) and len(data["buckets"]) == 5
    assert picture.stat().st_size > 1000


def test_steps_to_leave_out(file):
    timeline = simulate_step("resnet50", nodes=4).timeline
    end = timeline.tracks[0][-1].stop
    twice = [span._replace(start=span.start + n * end, stop=span.stop + n * end)
             for n in (0, 1) for span in timeline.tracks[0]]
    StepTimeline({0: twice}).save(file)
    assert "1 step;" in call(file).output and "2 steps;" in call(file, "--skip", 0).output
    assert report(StepTimeline({0: twice}), 0).seconds == pytest.approx(end)


@pytest.mark.parametrize("words, problem", [
    (["/nowhere"], "cannot read '/nowhere'"), ([os.path.dirname(__file__)], "has no timeline of"),
    ([__file__], "is no timeline of")])
def test_what_is_refused(words, problem):
    done = call(*words)
    assert done.exit_code == 2 and problem in done.stderr


def test_a_folder_of_calls_is_not_sent_back_to_where_it_came_from(tmp_path):
    (tmp_path / "calls-1-rank00000.json").write_text("{}", encoding="utf-8")
    done = call(tmp_path)
    assert done.exit_code == 2 and done.stderr.endswith(
        f"has no timeline of a gradient exchange, but a record of calls; use hpccoll trace "
        f"{tmp_path}\n")


def test_a_rank_that_is_not_there(file, tmp_path):
    pytest.importorskip("matplotlib")
    done = call(file, "--plot", tmp_path / "x.png", "--rank", 7)
    assert done.exit_code == 2 and "the timeline has no rank 7" in done.stderr
