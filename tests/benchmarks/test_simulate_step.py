"""The program ``benchmarks/simulate_step.py``: what it prints, writes and refuses."""

import json

import pytest

pytest.importorskip("click")
pytest.importorskip("rich")

from click.testing import CliRunner
from simulate_step import command
from step_simulator.catalog import find
from step_simulator.simulation import simulate_step

from hpccoll.training.trace import read


def call(*words):
    return CliRunner().invoke(command, words)


def test_one_step_is_a_report_with_the_best_buckets_for_it():
    done = call("--model", "resnet50", "--nodes", "4", "--ppn", "2", "--machine", "perlmutter-gpu")
    assert done.exit_code == 0, done.output
    report = str(simulate_step("resnet50", nodes=4, ppn=2, machine="perlmutter-gpu"))
    assert done.output.startswith(report)
    assert done.output.removeprefix(report).startswith("  best buckets   ")


def test_the_assumed_rate_is_named_where_the_machine_has_no_gpus():
    words, note = ("--model", "resnet50"), "100 TFLOP/s is the rate of a GPU, and hdr names no GPUs"
    for nodes in "1", "1,2":
        told = " ".join(call(*words, "--nodes", nodes).output.replace("\n# ", "").split())
        assert note in told and "at 100 TFLOP/s (assumed)" in told
        assert "names no GPUs" not in call(*words, "--nodes", nodes, "--tflops", "2").output
        assert "names no GPUs" not in call(*words, "--machine", "perlmutter-gpu").output


def test_json_holds_the_model_and_every_step():
    done = call("--model", "resnet50", "--nodes", "2,3", "--samples", "8", "--tflops", "10",
                "--json", "-")
    data = json.loads(done.output)
    assert find(data["model"]) == find("resnet50", 8, 1e13)
    assert [result["ranks"] for result in data["results"]] == [2, 3]
    assert data["break_even"] == []


def test_a_model_of_the_users(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(find("resnet50").as_json()))
    one, other = (call("--model", model, "--nodes", "3", "--json", "-")
                  for model in (str(path), "resnet50"))
    assert json.loads(one.output)["results"] == json.loads(other.output)["results"]


@pytest.mark.parametrize("option", ["--trace", "--json", "--plot"])
def test_a_file_that_cannot_be_written_is_said_in_a_line(option, tmp_path, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")
    name = tmp_path / ("x.png" if option == "--plot" else "x.json")
    if option == "--plot":
        pytest.importorskip("matplotlib")
        monkeypatch.setattr("matplotlib.figure.Figure.savefig", full)
    else:
        monkeypatch.setattr("hpccoll.atomic_file.os.fsync", full)
    done = call("--model", "resnet50", "--nodes", "1", option, str(name))
    assert done.exit_code == 2 and "cannot write" in done.stderr
    assert len(done.stderr.splitlines()) == 1 and not name.exists()


def test_picture_and_timeline(tmp_path):
    pytest.importorskip("matplotlib")
    picture, trace = tmp_path / "s.png", tmp_path / "t.json"
    done = call("--model", "resnet50", "--nodes", "2,4", "--plot", str(picture), "--trace",
                str(trace))
    assert done.exit_code == 0, done.output
    assert picture.stat().st_size > 1000 and f"wrote {picture}" in done.stderr
    assert read(trace).tracks[0][-1].stop == pytest.approx(
        simulate_step("resnet50", nodes=4).seconds)


@pytest.mark.parametrize("words, problem", [
    ((), "--model: a model is required; choose from resnet50"),
    (("--model", "nowhere"), "'nowhere' is neither a file nor known"),
    (("--model", "resnet50", "--shard", "4"), "--shard: '4' is no stage of ZeRO"),
    (("--model", "resnet50", "--bucket-bytes", "25 apples"), "--bucket-bytes: cannot read"),
    (("--model", "resnet50", "--topology", "2x2", "--ppn", "2"), "does not go with --ppn"),
    (("--model", "resnet50", "--topology", "2x2", "--nodes", "3"), "does not go with --nodes"),
    (("--model", "resnet50", "--ppn", "2:8"), "--ppn: cannot read '2:8'"),
    (("--model", "resnet50", "--topology", "2x"), "--topology: '2x' has no number"),
    (("--model", "resnet50", "--break-even"), "--break-even: requires --compress"),
    (("--model", "resnet50", "--compress-rate", "1G"), "--compress-rate: requires"),
    (("--model", "resnet50", "--algorithm", "ring"), "'ring' is unknown"),
    (("--model", "resnet50", "--trace", "/nowhere/t.json"), "--trace: cannot write"),
    (("--model", "resnet50", "--machine", "x"), "cannot read 'x'")])
def test_what_is_refused(words, problem):
    done = call(*words)
    assert done.exit_code == 2 and problem in done.stderr
