"""The stages name files that there are, and leave no file of tests and no deliberate break out."""

import datetime
import sys
from pathlib import Path

import launch
import long_record
import pytest
from breaks import BREAKS
from launch import ROOT

FIRST, SECOND = ROOT / "one", ROOT / "other"


def stages(*levels, environments=(FIRST, SECOND)):
    return [stage for level in levels
            for stage in launch.stages(level, list(environments), Path("scratch"))]


def paths(stage):
    """The files and folders that a command names, and those that it leaves out."""
    words = [word.partition("::")[0] for word in stage.command]
    left_out = [word.removeprefix("--ignore=") for word in words if word.startswith("--ignore=")]
    return [word for word in words if word.split("/")[0] in ("tests", "hpccoll")], left_out


def runs(stage, path):
    """Whether a stage runs a whole file of tests."""
    named, left_out = paths(stage)
    whole = [word for word in named if not any(
        part.startswith(f"{word}::") for part in stage.command)]
    return any(path == each or path.startswith(f"{each}/") for each in whole) and not any(
        path == each or path.startswith(f"{each}/") for each in left_out)


def ranks(stage):
    """The number of ranks of a stage; 0 without a launcher."""
    return int(stage.command[stage.command.index("-n") + 1]) if "--with-mpi" in stage.command else 0


@pytest.mark.parametrize("environments", [[FIRST], [FIRST, SECOND]], ids=len)
@pytest.mark.parametrize("level", launch.LEVELS)
def test_every_path_is_there(level, environments):
    for stage in stages(level, environments=environments):
        for path in sum(paths(stage), []):
            # A folder of compiled files alone is what a moved test leaves behind.
            assert (ROOT / path).is_file() or any((ROOT / path).rglob("*.py")), (stage.title, path)


def test_every_file_of_tests_runs_by_make_test_or_make_check():
    both = stages("test", "check")
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        name = str(path.relative_to(ROOT))
        sizes = {ranks(stage) for stage in both if runs(stage, name)}
        on_ranks = name.startswith(("tests/mpi/", "tests/contract/", "tests/uncompiled/"))
        assert (2 if on_ranks else 0) in sizes, name


def test_a_new_file_on_ranks_runs_by_make_test():
    assert runs(stages("test")[1], "tests/mpi/test_new.py") and ranks(stages("test")[1]) == 2


def test_every_break_is_noticed_by_make_test_or_make_check():
    both = stages("test", "check")
    elsewhere = ("tests/sanitize", "tests/gpu")
    for one in BREAKS:
        path = one.tests.partition(" -k ")[0]
        assert path.startswith(elsewhere) or any(
            runs(stage, path) and ranks(stage) == one.ranks for stage in both), one


def test_titles_say_the_number_of_ranks():
    for stage in stages(*launch.LEVELS):
        if "ranks" in stage.title:
            assert f"-n {stage.title.split()[1]} sh" in " ".join(stage.command)


@pytest.mark.parametrize("environments, wanted", [
    ([FIRST], [""]), ([FIRST, SECOND], ["not again", "not once"])], ids=["one", "two"])
def test_marks_divide_tests_between_environments(environments, wanted):
    """What one leaves out the other runs; an environment alone runs everything."""
    for environment, mark in zip(environments, wanted):
        for stage in stages(*launch.LEVELS, environments=environments):
            if stage.bin.parent == environment:
                words = zip(stage.command, stage.command[1:])
                assert [word for option, word in words if option == "-m"][-1].endswith(mark)


@pytest.fixture
def stage(tmp_path):
    """A stage without a launcher, of a file whose second test fails the first time."""
    tests = tmp_path / "test_two.py"
    tests.write_text("from pathlib import Path\n"
                     "def test_passes(): pass\n"
                     "def test_fails_once():\n"
                     "    mark = Path(__file__ + '.mark')\n"
                     "    seen = mark.exists()\n"
                     "    mark.touch()\n"
                     "    assert seen\n")
    whole = next(stage for stage in launch.stages("check", [Path(sys.prefix)], tmp_path)
                 if stage.title.endswith("several hosts"))
    return whole._replace(command=[*whole.command[:-1], str(tests)])


def test_the_second_run_of_a_stage_has_the_failed_tests_only(stage, capfd):
    first = launch.attempt(stage)
    assert first.status == 1 and "test_fails_once" in first.why and "test_passes" not in first.why
    assert launch.attempt(stage, failed_only=True) == launch.Outcome(0)
    assert "1 passed, 1 deselected" in capfd.readouterr().out


def test_last_lines_name_unsteady_tests_and_slow_stages(stage, monkeypatch, capsys):
    slow = stage._replace(budget=0, command=["sleep", "0.1"])
    monkeypatch.setattr(launch, "stages", lambda *_: [stage, slow])
    stage.logs.parent.mkdir(exist_ok=True)
    assert launch.main("check", [Path(sys.prefix)]) == 0
    *_, last = capsys.readouterr().out.rpartition("=== where the time went")
    assert "over budget by half\n    " + slow.title in last
    assert "passed the second time" in last and "test_two.test_fails_once" in last
    assert "all 2 stages passed" in last


def test_unbuffered_output_is_not_passed_on(monkeypatch):
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")
    assert "PYTHONUNBUFFERED" not in launch.settings(Path("bin"))


def test_an_old_or_failed_record_of_make_long_is_a_warning(tmp_path):
    path, today = tmp_path / "long.json", datetime.date.today()
    assert "no record" in long_record.warnings(path)[0]
    long_record.write([long_record.Entry("one", 1, 2, 1, True)], path)
    assert not long_record.warnings(path)
    late = today + datetime.timedelta(days=long_record.OLD + 1)
    assert "8 days ago" in long_record.warnings(path, late)[0]
    long_record.write([long_record.Entry("one", 1, 2, 1, False)], path)
    assert long_record.warnings(path) == [f"make long: failed on {today}: one"]
