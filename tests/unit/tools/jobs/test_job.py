"""``hpccoll job``: scripts for every site, and the files in jobs/."""

import re
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from hpccoll.errors import ArgumentError
from hpccoll.tools.jobs import SITES, TEMPLATES, Job, find, script
from hpccoll.tools.jobs.site import YOURS, Line

pytest.importorskip("click")
pytest.importorskip("rich")

from click.testing import CliRunner

from hpccoll.cli import main

JOBS = Path(__file__).resolve().parents[4] / "jobs"


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
    line = re.search("^# Created with: hpccoll (job .*)", script(TEMPLATES[name]), re.MULTILINE)[1]
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
               if "# Created with" not in line and "mask_cpu" not in line)
    assert "doctor says above why" not in text  # where srun fails, doctor has said nothing


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


@pytest.mark.parametrize("site", [name for name in SITES if SITES[name].cpus])
@pytest.mark.parametrize("fewer", [0, 1, 4, 7])
def test_every_rank_keeps_to_its_part_of_the_node(site, fewer):
    ppn = len(SITES[site].cpus) - fewer
    text = script(Job(site, ppn=ppn))
    masks = [int(mask, 16) for mask in re.search("mask_cpu:([0-9a-f,]+)", text)[1].split(",")]
    threads = SITES[site].cores // len(SITES[site].cpus)
    assert [mask.bit_count() for mask in masks] == [threads] * ppn
    assert sum(masks).bit_count() == threads * ppn, "no two share a processor"
    assert max(masks) < 1 << max(SITES[site].cpus) + threads
    assert f"--cpus-per-task={threads} " in text


def test_srun_may_use_all_processors_that_masks_name():
    # Told how many a rank has, srun keeps a step of fewer ranks to the node's first ones.
    assert "SRUN_CPUS_PER_TASK" not in script(Job("lumi", ppn=4))
    assert "SRUN_CPUS_PER_TASK" in script(Job("frontier", ppn=4))


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


def directives(text):
    return [line.split(None, 1)[1].split(" #")[0].strip() for line in text.splitlines()
            if line.startswith(("#SBATCH", "#PBS"))]


def test_what_the_user_says_is_in_place_of_what_the_site_says(monkeypatch):
    assert "--partition=standard-g" in directives(script(Job("lumi")))
    given = directives(script(Job("lumi", partition="dev-g")))
    assert [each for each in given if "partition" in each] == ["--partition=dev-g"]

    queue = (Line("-q small", "short ones"), Line("-l filesystems=home", "our files"))
    monkeypatch.setitem(SITES, "here", replace(SITES["pbs"], directives=queue))
    assert "-q small" in directives(script(Job("here")))
    given = directives(script(Job("here", partition="large")))
    assert "-q large" in given and "-q small" not in given and "-l filesystems=home" in given

    service = (Line("--qos=normal", "everybody's"), Line("--exclusive", "no other job"))
    monkeypatch.setitem(SITES, "here", replace(SITES["generic"], directives=service))
    given = directives(script(Job("here", qos="urgent")))
    assert [each for each in given if "qos" in each] == ["--qos=urgent"] and "--exclusive" in given


@pytest.mark.parametrize("site, directive", [("generic", "--time="), ("pbs", "-l walltime=")])
@pytest.mark.parametrize("time, hours", [
    ("90", "01:30:00"), ("1:30", "00:01:30"), ("36:00:00", "36:00:00"), ("1-12", "36:00:00"),
    ("0-1:05", "01:05:00"), ("2-00:00:00", "48:00:00"), ("10-4:30:07", "244:30:07")])
def test_times_are_read_as_slurm_does_and_written_alike(site, directive, time, hours):
    ran = job("--site", site, "--time", time)
    assert ran.exit_code == 0, ran.output
    assert directive + hours in directives(ran.stdout)


@pytest.mark.parametrize("time", ["", "soon", "0", "00:00:00", "1:", ":30", "1-", "-5", "1:2:3:4",
                                  "1-2-3", "1:30-2", "1.5", "+5", "5\n", "\u0663"])
def test_what_is_no_time_is_refused(time):
    with pytest.raises(ArgumentError, match="^--time: "):
        script(Job(time=time))


@pytest.mark.parametrize("site", [name for name in SITES if SITES[name].device_per_rank])
def test_where_each_rank_is_given_a_device_ranks_count_devices(site):
    devices = SITES[site].gpus
    for given in {"ppn": devices + 1}, {"ppn": 16, "gpus": 16}:
        with pytest.raises(ArgumentError, match="^--ppn: .*--gpus 0"):
            script(Job(site, **given))
    for given in {"gpus": 2}, {"gpus": 2 * devices}, {"ppn": 2, "gpus": 3}:
        with pytest.raises(ArgumentError, match="^--gpus: .*--ppn"):
            script(Job(site, **given))
    assert "--gpus-per-task=1" in script(Job(site, ppn=2, gpus=2))
    assert "--gpus" not in re.sub("# Created.*", "", script(Job(site, ppn=2 * devices, gpus=0)))


@pytest.mark.parametrize("field, given", [
    ("--site", {"site": "nowhere"}), ("--mpi", {"mpi": "nompi"}),
    ("--ppn", {"site": "frontier", "ppn": 57}), ("--ppn", {"site": "lumi", "ppn": 9}),
    ("--ppn", {"site": "perlmutter", "ppn": 64, "threads": 2}), ("--gpus", {"gpus": 4}),
    ("--threads", {"site": "lumi", "ppn": 4, "threads": 8}),
    ("--qos", {"site": "pbs", "qos": "normal"}), ("--qos", {"site": "polaris", "qos": "normal"})])
def test_what_makes_no_sense_is_named(field, given):
    with pytest.raises(ArgumentError, match=f"^{field}: "):
        script(Job(**given))


def test_ranks_take_turns_on_fewer_devices():
    assert "ROCR_VISIBLE_DEVICES=$((SLURM_LOCALID % 4))" in script(Job("lumi", gpus=4))


def test_an_unknown_site_lists_the_known_ones():
    with pytest.raises(ArgumentError, match=", ".join(SITES)):
        find("nowhere")
    ran = job("--site", "nowhere")
    assert ran.exit_code == 2 and "perlmutter" in ran.stderr and ran.stdout == ""


@pytest.mark.parametrize("words", [
    ["--time", "soon"], ["--name", "a b"], ["--account", "x\n#SBATCH -N 99"], ["--nodes", "0"],
    ["-o", "missing/x"]])
def test_bad_options(tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    ran = job(*words)
    assert ran.exit_code == 2 and ran.stdout == ""


def test_command_words_and_text(tmp_path):
    path = tmp_path / "job.sbatch"
    assert job("-o", str(path), "--", "python", "my program.py", "--x").exit_code == 0
    assert path.read_text().endswith("\n\"${launch[@]}\" python 'my program.py' --x \"$@\"\n")
    assert job("--", 'python x.py "$job"').stdout.endswith(' python x.py "$job" "$@"\n')


def test_list():
    for width in (80, 100, 140):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("COLUMNS", str(width))
            lines = job("--list").stdout.splitlines()
        assert [line.split()[0] for line in lines if line[0] != " "] == list(SITES)
        assert max(len(line) for line in lines if "http" not in line) <= width


def test_a_script_that_is_there_is_kept(tmp_path):
    path = tmp_path / "x.sbatch"
    path.write_text("edited")
    for _ in range(2):  # the second time there is nothing to keep
        done = job("-o", str(path))
        assert done.exit_code == 0 and f"wrote {path}" in done.stderr
    assert (tmp_path / "x.sbatch~").read_text() == "edited" and "#SBATCH" in path.read_text()


def test_training_has_a_rank_for_each_device():
    assert "--ntasks-per-node=8 " in script(Job("gpu", gpus=8, train=True))
    assert "--ntasks-per-node=2 " in script(Job("gpu", gpus=8, ppn=2, train=True))
    assert "--ntasks-per-node=2 " in script(Job("generic", train=True))
    assert "PYTHONUNBUFFERED" in script(Job(train=True)) and "MASTER_ADDR=" not in script(
        Job(train=True))


def test_training_without_a_command_runs_a_program_of_that_name():
    made = job("--train")
    assert made.exit_code == 0, made.output
    assert '"${launch[@]}" python -m hpccoll run train.py "$@"' in made.output
    assert "hpccoll job --site generic --nodes 2 --train -- " in made.output
    assert 'python -m hpccoll bench allreduce "$@"' in job().output


def run(folder, text, name, **environ):
    """Run a script in bash, with a launcher that prints what it was told and its variables."""
    (folder / name).write_text(
        '#!/bin/sh\n[ "$1" = --version ] && echo "$SAYS"\n'
        'echo "started, cpus=$SRUN_CPUS_PER_TASK, threads=$OMP_NUM_THREADS"\n', encoding="utf-8")
    (folder / name).chmod(0o755)
    (folder / "job.sh").write_text(text, encoding="utf-8")
    done = subprocess.run(
        ["bash", "-c", f"source {folder}/job.sh"], capture_output=True, text=True, check=False,
        env={"PATH": f"{folder}:/usr/bin:/bin", "SLURM_JOB_ID": "7", "SLURM_NTASKS": "4",
             "SLURM_NTASKS_PER_NODE": "2", **environ})
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.parametrize("site", ["generic", "perlmutter"])
@pytest.mark.parametrize("given", ["", "6"])
def test_a_shell_in_a_job_that_was_asked_for_no_processors(tmp_path, site, given):
    text = re.sub("^(module|source) .*$", "", script(Job(site, interactive=True)), flags=re.M)
    environ = {"SLURM_CPUS_PER_TASK": given} if given else {}
    done = run(tmp_path, text, "srun", **environ)
    each = int(given or SITES[site].smt)
    assert f"threads={each // SITES[site].smt}\n" in done.stdout
    assert f"cpus={each}," in done.stdout


@pytest.mark.parametrize("mpi, says", [
    ("openmpi", "mpirun (Open MPI) 5.0.11"), ("mpich", "HYDRA build details:"),
    ("intel", "Intel(R) MPI Library for Linux* OS, Version 2021.9")])
def test_another_librarys_mpirun_is_named(tmp_path, mpi, says):
    text = script(Job(mpi=mpi, launcher="mpirun"))
    assert "mpirun" not in run(tmp_path, text, "mpirun", SLURM_CPUS_PER_TASK="1", SAYS=says).stderr
    other = "mpirun (Open MPI) 5.0.11" if mpi != "openmpi" else "HYDRA build details:"
    told = run(tmp_path, text, "mpirun", SLURM_CPUS_PER_TASK="1", SAYS=other).stderr
    assert f"mpirun: '{tmp_path}/mpirun'" in told
