"""The command ``hpccoll trace report``."""

import json
import os

import pytest

pytest.importorskip("click")
pytest.importorskip("rich")

from click.testing import CliRunner

from hpccoll.cli import main
from hpccoll.training.report import report
from hpccoll.training.steps.simulation import simulate_step
from hpccoll.training.trace import StepTimeline


def call(*words):
    return CliRunner().invoke(main, ["trace", "report", *map(str, words)])


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "exchange-1.json"
    simulate_step("resnet50", nodes=4, bucket_bytes=25 << 20).timeline.save(path)
    return path


def test_a_report(file):
    done = call(file)
    assert done.exit_code == 0, done.output
    assert done.output.startswith(f"{file}: 1 rank, 1 step") and "bucket 4" in done.output


def test_of_a_folder_the_newest(file):
    simulate_step("vgg16").timeline.save(file.with_name("exchange-0.json"))
    os.utime(file.with_name("exchange-0.json"), (1, 1))
    assert call(file.parent).output == call(file).output


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
    (["/nowhere"], "cannot read '/nowhere'"), ([os.path.dirname(__file__)], "holds no timeline"),
    ([__file__], "is no trace of hpccoll's")])
def test_what_is_refused(words, problem):
    done = call(*words)
    assert done.exit_code == 2 and problem in done.stderr


def test_a_rank_that_is_not_there(file, tmp_path):
    pytest.importorskip("matplotlib")
    done = call(file, "--plot", tmp_path / "x.png", "--rank", 7)
    assert done.exit_code == 2 and "the timeline has no rank 7" in done.stderr
