"""The bench of applications: jobs, comparisons, the record, and what the page makes of it."""

import json
import subprocess
import sys

import pytest

pytest.importorskip("click")
pytest.importorskip("rich")

from applications import bench, environments, jobs, results
from applications.jobs import Outcome, Place
from applications.program import NAMES, PROGRAMS, Program, load
from click.testing import CliRunner
from run_applications import command

PLAIN = Outcome(0, 2.0, 50.0, {"a": True, "b": True}, [1.0, 2.0])


def program(**more):
    return Program(**{"name": "one", "version": "1", "packages": (), "words": ("{here}/x.py",),
                      "right": "it ends", "timed": "a job", **more})


@pytest.fixture
def place(tmp_path):
    """An environment whose launcher runs one rank: its words after the number of ranks."""
    bin = tmp_path / "mpich" / "bin"
    bin.mkdir(parents=True)
    (tmp_path / "mpich" / "lib" / "python3" / "site-packages").mkdir(parents=True)
    (bin / "mpiexec").write_text('#!/bin/sh\nshift 2\nexec "$@"\n')
    (bin / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    for name in ("mpiexec", "python"):
        (bin / name).chmod(0o755)
    return Place(tmp_path / "mpich", 2, tmp_path / "job")


def test_every_program_is_listed_and_pinned():
    assert sorted(NAMES) == sorted(p.stem for p in PROGRAMS.glob("*.py") if p.stem != "__init__")
    for one in load():
        assert all("==" in package for package in (*one.packages, *filter(None, [one.sdist])))
        assert one.right and one.timed and one.ranks[0] >= 2
    assert sum(one.short for one in load()) >= 2


def test_a_job_reports_time_memory_passes_and_numbers(place, tmp_path, monkeypatch):
    script = tmp_path / "script.py"
    script.write_text("import numpy\nfrom applications.results import report\n"
                      "report({'t': numpy.bool_(True)}, [3.5])\nprint('done')\n")
    monkeypatch.setattr(jobs, "CANDIDATES", {"plain": ()})
    found = jobs.run(program(words=(str(script),)), "plain", place)
    assert (found.status, found.passes, found.numbers) == (0, {"t": True}, [3.5])
    assert found.seconds > 0 and found.mebibytes > 1
    assert (tmp_path / "one-mpich-2-plain.txt").read_text() == "done\n"


def test_a_job_ends_at_its_limit(place, tmp_path, monkeypatch):
    script = tmp_path / "script.py"
    script.write_text("import time\ntime.sleep(60)\n")
    monkeypatch.setattr(jobs, "CANDIDATES", {"plain": ()})
    found = jobs.run(program(words=(str(script),), seconds=0.5), "plain", place)
    assert found.status == 124 and found.seconds < 20 and not found.passes


def test_a_test_passes_if_it_does_on_every_rank(tmp_path):
    for rank, passed in enumerate((True, False)):
        (tmp_path / f"rank-{rank}.json").write_text(json.dumps(
            {"passes": {"a": passed, f"only {rank}": True}, "numbers": [float(rank)]}))
    assert results.read(tmp_path) == (
        {"a": False, "only 0": True, "only 1": True}, [0.0, 1.0], {})


@pytest.mark.parametrize("changed, text", [
    ({"status": 1}, "exit status 1, plain 0"),
    ({"passes": {"a": True, "b": False}}, "b: fails, plain passes"),
    ({"passes": {"a": True}}, "b: did not run, plain passes"),
    ({"numbers": [1.0, 2.1]}, "numbers [1.0, 2.1], plain [1.0, 2.0]"),
    ({"numbers": [float("nan"), 2.0]}, "numbers [nan, 2.0], plain [1.0, 2.0]"),
    ({"numbers": [1.0]}, "numbers [1.0], plain [1.0, 2.0]")])
def test_a_difference_is_named(changed, text):
    assert bench.differences([PLAIN], [PLAIN._replace(**changed)], 0.0) == [text]


def test_numbers_within_the_tolerance_are_the_same():
    ours = PLAIN._replace(numbers=[1.0 + 1e-9, 2.0])
    assert bench.differences([PLAIN], [ours], 1e-8) == []
    assert bench.differences([PLAIN], [ours], 0.0)


def test_numbers_that_plain_does_not_repeat_are_no_fault_of_hpccoll():
    other = PLAIN._replace(numbers=[5.0, 2.0])
    assert bench.differences([PLAIN, other], [other], 0.0) == []
    assert not bench.repeats([PLAIN, other], 0.0) and bench.repeats([PLAIN, PLAIN], 0.0)


@pytest.mark.parametrize("error, problem", [
    (RuntimeError("error: no FFTW"), "error: no FFTW"),
    (subprocess.TimeoutExpired("pip", 600), "not installed within 600 s")])
def test_a_program_that_cannot_be_installed_is_listed(place, monkeypatch, error, problem):
    def fail(words, seconds):
        raise error

    monkeypatch.setattr(environments, "_checked", fail)
    found = environments.install(program(packages=("one==1",)), place.environment)
    assert found.problem == problem


def test_the_command_writes_a_record_and_a_picture(place, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(environments, "create", lambda library, folder: place.environment)
    monkeypatch.setattr(environments, "versions", lambda path: {"mpich": "5", "numpy": "2"})
    monkeypatch.setattr(jobs, "run", lambda *words: PLAIN)
    out = tmp_path / "out"
    done = CliRunner().invoke(command, [
        "--only", "empty_script", "--library", "mpich", "--ranks", "2,4", "--cache",
        str(tmp_path), "-o", str(out)])
    assert done.exit_code == 0, done.output
    assert "an empty script, MPICH, 4 ranks: passed 2/2 plain, 2/2 hpccoll" in done.output
    record = json.loads((out / "results.json").read_text())
    assert record["format"] == bench.FORMAT and len(record["results"]) == 2
    assert record["environment"]["libraries"] == {"mpich": "MPICH 5"}
    assert (out / "times.png").stat().st_size > 5000
