"""``hpccoll job``: scripts for every site, and the files in jobs/."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from hpccoll.errors import ArgumentError
from hpccoll.jobs import SITES, TEMPLATES, Job, find, script
from hpccoll.jobs.sites import YOURS

pytest.importorskip("click")
pytest.importorskip("rich")

from click.testing import CliRunner  # noqa: E402

from hpccoll.cli import main  # noqa: E402

JOBS = Path(__file__).resolve().parents[2] / "jobs"


def job(*words):
    return CliRunner().invoke(main, ["job", *words])


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_files_are_what_the_command_writes(name, request):
    text, path = script(TEMPLATES[name]), JOBS / name
    if request.config.getoption("--update-golden"):
        path.write_text(text)
    assert path.read_text() == text, "look at the difference, then: pytest --update-golden"


def test_there_is_no_other_file():
    assert {path.name for path in JOBS.iterdir()} == set(TEMPLATES)


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_script_says_which_command_makes_it(name):
    line = re.search("^# Made with: hpccoll (job .*)", script(TEMPLATES[name]), re.MULTILINE)[1]
    made = CliRunner().invoke(main, shlex.split(line))
    assert made.exit_code == 0, made.output
    assert made.output == script(TEMPLATES[name])


@pytest.mark.parametrize("site", SITES)
@pytest.mark.parametrize("more", [{}, {"ppn": 3, "threads": 2}, {"nodes": 500}],
                         ids=["own", "smaller", "large"])
def test_every_script_is_bash_and_checks_its_ranks(site, more):
    text = script(Job(site, **more, activate="/some where/activate"))
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0
    ranks = ('"$SLURM_NTASKS"' if SITES[site].scheduler == "slurm"
             else str(more.get("nodes", 2) * more.get("ppn", SITES[site].ppn)))
    assert f'if ! "${{launch[@]}}" python -m hpccoll doctor --ranks {ranks}; then' in text
    assert "source '/some where/activate'" in text
    assert ("sbcast" in text) == ("nodes" in more)
    assert all(len(line) <= 100 for line in text.splitlines()
               if "# Made with" not in line and "mask_cpu" not in line)


@pytest.mark.parametrize("site", SITES)
def test_every_line_has_its_reason(site):
    for section in script(Job(site)).split("\n\n")[1:4]:
        lines = section.strip().splitlines()
        for before, line in zip(["", *lines], lines):
            assert ("# " in line or before.lstrip().startswith("# ") or line == ")"), line


def test_binding_follows_the_number_of_ranks():
    assert "mask_cpu:fe000000000000,fe00000000000000,fe0000" in script(Job("lumi"))
    assert "mask_cpu:2000000000000,200000000000000\n" in script(Job("lumi", ppn=2, threads=1))
    assert "--cpus-per-task=32" in script(Job("perlmutter"))  # 16 cores of two processors each
    assert "OMP_NUM_THREADS=$((SLURM_CPUS_PER_TASK / 2))" in script(Job("perlmutter"))
    assert "OMP_NUM_THREADS=8" in script(Job("polaris"))
    assert "--cpus-per-task=14" in script(Job("frontier", ppn=4))


def test_no_script_mixes_the_two_ways_to_ask_for_devices():
    for site in SITES:
        text = script(Job(site))
        assert not ("--gpus-per-task" in text and "--gpus-per-node" in text)
    assert "--gpus-per" not in script(Job("gpu", gpus=0))
    assert "MPS" in script(Job("gpu", ppn=8)) and "MPS" not in script(Job("gpu"))


def test_what_is_the_users_is_filled_in():
    assert f"--account={YOURS}" in script(Job("frontier"))
    text = script(Job("frontier", account="ABC123", partition="batch"))
    assert YOURS not in text and "#SBATCH --account=ABC123 " in text


@pytest.mark.parametrize("field, given", [
    ("--site", {"site": "nowhere"}), ("--mpi", {"mpi": "nompi"}),
    ("--ppn", {"site": "frontier", "ppn": 57}), ("--ppn", {"site": "lumi", "ppn": 9}),
    ("--ppn", {"site": "archer2", "ppn": 128, "threads": 2}), ("--gpus", {"gpus": 4})])
def test_what_makes_no_sense_is_named(field, given):
    with pytest.raises(ArgumentError, match=f"^{field}: "):
        script(Job(**given))


def test_an_unknown_site_lists_the_known_ones():
    with pytest.raises(ArgumentError, match=", ".join(SITES)):
        find("nowhere")
    ran = job("--site", "nowhere")
    assert ran.exit_code == 2 and "perlmutter" in ran.stderr and ran.stdout == ""


@pytest.mark.parametrize("words", [
    ["--time", "soon"], ["--name", "a b"], ["--account", "x\n#SBATCH -N 99"], ["--nodes", "0"],
    ["-o", "/nonexistent/x"]])
def test_bad_options(words):
    ran = job(*words)
    assert ran.exit_code == 2 and ran.stdout == ""


def test_command_words_and_text(tmp_path):
    path = tmp_path / "job.sbatch"
    assert job("-o", str(path), "--", "python", "my program.py", "--x").exit_code == 0
    assert path.read_text().endswith("\n\"${launch[@]}\" python 'my program.py' --x \"$@\"\n")
    assert job("--", 'python x.py "$job"').stdout.endswith(' python x.py "$job" "$@"\n')


def test_list():
    assert [line.split()[0] for line in job("--list").stdout.splitlines()] == list(SITES)
