"""The stages of ``make test`` name files that there are, and leave no file of tests out."""

import sys
from pathlib import Path

import launch
import pytest
from launch import ROOT

FIRST, SECOND = ROOT / "one", ROOT / "other"


def paths(stage):
    """The files and folders that a command names, and those that it leaves out."""
    words = [word.partition("::")[0] for word in stage.command]
    left_out = [word.removeprefix("--ignore=") for word in words if word.startswith("--ignore=")]
    return [word for word in words if word.startswith(("tests/", "hpccoll"))], left_out


@pytest.mark.parametrize("environments", [[FIRST], [FIRST, SECOND]], ids=len)
def test_every_path_is_there(environments):
    for stage in launch.stages(environments, Path("scratch")):
        for path in sum(paths(stage), []):
            assert (ROOT / path).exists(), (stage.title, path)


def test_every_file_on_ranks_runs_on_two():
    stages = {stage.title: stage for stage in launch.stages([FIRST, SECOND], Path("scratch"))}
    assert paths(stages["one, 2 ranks"]) == (["tests/mpi", "tests/contract"], [])
    found, left_out = paths(stages["other, 2 ranks"])
    assert found == ["tests/mpi", "tests/contract"] and left_out == list(launch.ONCE)
    for title, stage in stages.items():
        if "ranks" in title:
            assert f"-n {title.split()[1]} sh" in " ".join(stage.command)


@pytest.mark.parametrize("environments, wanted", [
    ([FIRST], [""]), ([FIRST, SECOND], ["not again", "not once"])], ids=["one", "two"])
def test_marks_divide_tests_between_environments(environments, wanted):
    """What one leaves out the other runs; an environment alone runs everything."""
    for environment, mark in zip(environments, wanted):
        for stage in launch.stages(environments, Path("scratch")):
            if stage.bin.parent == environment:
                words = zip(stage.command, stage.command[1:])
                assert [word for option, word in words if option == "-m"][-1] == mark


def test_the_second_run_of_a_stage_has_the_failed_tests_only(tmp_path, capfd):
    """Without a launcher; the first run fails in one test of two."""
    tests, logs = tmp_path / "test_two.py", tmp_path / "logs"
    tests.write_text("from pathlib import Path\n"
                     "def test_passes(): pass\n"
                     "def test_fails_once():\n"
                     "    mark = Path(__file__ + '.mark')\n"
                     "    seen = mark.exists()\n"
                     "    mark.touch()\n"
                     "    assert seen\n")
    whole = next(stage for stage in launch.stages([Path(sys.prefix)], tmp_path)
                 if stage.title.endswith("several hosts"))
    command = [word.replace(str(whole.logs), str(logs)) for word in whole.command[:-1]]
    stage = whole._replace(command=[*command, str(tests)], logs=logs)
    status, why = launch.attempt(stage)
    assert status == 1 and "test_fails_once" in why and "test_passes" not in why
    assert launch.attempt(stage, failed_only=True) == (0, "")
    assert "1 passed, 1 deselected" in capfd.readouterr().out
