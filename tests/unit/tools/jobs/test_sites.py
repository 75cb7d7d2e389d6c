"""What is known of sites: where from, since when, and what their guides ask for."""

import re
import subprocess

import pytest

from hpccoll.errors import ArgumentError
from hpccoll.tools.jobs import SITES, Job, script
from hpccoll.tools.jobs.launches import BATCH, LAUNCHES
from hpccoll.tools.jobs.site import LAUNCH, LAUNCHERS, YOURS

#: Kinds of clusters, whose facts are in manuals.
KINDS = ("generic", "gpu", "cray", "pbs")
NAMED = [name for name in SITES if name not in KINDS]


@pytest.mark.parametrize("name", NAMED)
def test_a_named_site_says_where_its_facts_are_from_and_how_old_they_are(name):
    site, text = SITES[name], script(Job(name))
    assert re.fullmatch(r"202\d-\d\d-\d\d", site.checked)
    assert site.source.startswith("https://") or "not read" in site.source
    head = " ".join(line[2:] for line in text.splitlines()[1:8])
    assert f"Source: {site.source}; as of {site.checked}. Not tested there." in head


def test_sites_that_closed_are_gone_and_those_of_today_are_there():
    assert "archer2" not in SITES
    assert {"frontier", "lumi", "alps", "polaris", "aurora", "perlmutter", "leonardo", "jupiter",
            "marenostrum5", "elcapitan", "tuolumne"} <= set(SITES)


@pytest.mark.parametrize("name", NAMED)
def test_a_named_site_has_its_modules(name):
    text = " ".join(script(Job(name)).split())
    assert "module load" in text.replace("# ", "") or "--uenv=" in text


@pytest.mark.parametrize("name", [name for name in SITES if any(
    "MPICH_GPU_SUPPORT" in line.text for line in SITES[name].settings)])
def test_where_device_buffers_are_asked_for_the_transfer_library_is_spoken_of(name):
    text = " ".join(script(Job(name)).replace("# ", "").split())
    assert "not linked to the GPU transfer library (GTL)" in text and "docs/slurm.md" in text


@pytest.mark.parametrize("name, lines", [
    ("frontier", ["#SBATCH --partition=batch", "--gpus-per-task=1", "--gpu-bind=closest"]),
    ("alps", [f"#SBATCH --uenv=prgenv-gnu/{YOURS}", "#SBATCH --view=default"]),
    ("polaris", ["#PBS -l select=2:system=polaris\n", "#PBS -l place=scatter"]),
    ("aurora", ["--ppn 12", "--cpu-bind=list:1-8:9-16", "    gpu_tile_compact.sh"]),
    ("leonardo", ["#SBATCH --partition=boost_usr_prod", "#SBATCH --gres=gpu:4", "--mpi=pmix"]),
    ("marenostrum5", ["#SBATCH --cpus-per-task=20", "#SBATCH --gres=gpu:4"]),
    ("jupiter", ["#SBATCH --cpus-per-task=72", "#SBATCH --gres=gpu:4"]),
    ("tuolumne", ["# flux: -N 2 --exclusive", "launch=(flux run", "    -N 2 -n 8",
                  "-o exit-on-error", "# flux: --time-limit=600s"])])
def test_what_guides_ask_for(name, lines):
    for line in lines:
        assert line in script(Job(name)), line


def test_a_site_whose_module_chooses_the_plugin_gets_none():
    assert "--mpi=" not in script(Job("jupiter")) and "module selects" in script(Job("jupiter"))


def test_intel_mpi_is_told_of_slurms_library():
    text = script(Job(mpi="intel"))
    assert "--mpi=pmi2" in text and "export I_MPI_PMI_LIBRARY=" in text
    own = script(Job(mpi="intel", launcher="mpirun"))
    assert "I_MPI_PMI_LIBRARY" not in own and "I_MPI_PIN_DOMAIN" in own


@pytest.mark.parametrize("mpi", LAUNCH)
def test_mpirun_in_a_job_of_slurm(mpi):
    text = script(Job("gpu", mpi=mpi, launcher="mpirun"))
    assert "launch=(mpirun" in text and '-n "$SLURM_NTASKS"' in text
    assert "SRUN_CPUS" not in text and "--kill-on-bad-exit" not in text
    local = LAUNCHES["mpirun"].local[mpi]
    assert f"CUDA_VISIBLE_DEVICES=$(({local} % 4))" in text


@pytest.mark.parametrize("name, more", [
    (name, {kind: True}) for name in SITES for kind in ("interactive", "clean")
    if kind == "interactive" or SITES[name].scheduler != "flux"])
def test_other_kinds_of_scripts_are_bash(name, more):
    text = script(Job(name, **more))
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0


@pytest.mark.parametrize("name, command", [
    ("generic", "salloc --time=00:10:00 --nodes=2 --ntasks-per-node=2 --cpus-per-task=1"),
    ("polaris", "qsub -I -l walltime=00:10:00 -l select=2:system=polaris -V -A CHANGE-ME"),
    ("tuolumne", "flux alloc --time-limit=600s -N 2 --exclusive --bank CHANGE-ME")])
def test_a_shell_in_a_job(name, command):
    text = script(Job(name, interactive=True))
    assert f"#   {command}" in text
    # What is sourced into a shell must not end it.
    assert "set -e" not in text and "exit 1" not in text and "sbatch" not in text
    assert 'python -m hpccoll doctor --ranks' in text and "\n#SBATCH" not in text


@pytest.mark.parametrize("more", [{}, {"train": True}, {"interactive": True}], ids=str)
@pytest.mark.parametrize("name", SITES)
def test_what_waits_for_its_comment_to_be_taken_away_is_whole(name, more):
    """A line of shell that is broken in two would be half a command then."""
    text = script(Job(name, **more, command="python -m hpccoll run my_program.py " + "x" * 60))
    asleep = re.findall(r"^# ((?:module|source|export) .*|\"\$\{launch.*)", text, re.MULTILINE)
    wanted = [line.text for line in SITES[name].modules] + ["source .venv/bin/activate"]
    wanted += ["export HPCCOLL_TRACE=trace-$job"] * ("train" in more)
    assert set(wanted) <= set(asleep)
    assert ("interactive" in more) == any(line.endswith("x" * 60) for line in asleep)
    for line in asleep:
        assert subprocess.run(["bash", "-n"], input=line, text=True, check=False).returncode == 0


def test_a_job_without_the_shells_variables():
    text = script(Job("frontier", clean=True))
    assert "#SBATCH --export=NONE" in text and "\nmodule load PrgEnv-gnu" in text
    assert text.index("unset SLURM_EXPORT_ENV") < text.index("\nmodule load") < text.index(
        f"source {YOURS}/bin/activate")
    assert "-V" not in re.findall("^#PBS (.*)", script(Job("pbs", clean=True)), re.MULTILINE)
    assert f"\nmodule load {YOURS}" in script(Job(clean=True))
    kept = script(Job("frontier"))
    assert "--export" not in kept and "\nmodule load" not in kept
    assert "module load PrgEnv-gnu" in " ".join(kept.replace("\n# ", " ").split())


@pytest.mark.parametrize("field, given", [
    ("--launcher", {"launcher": "flux"}), ("--launcher", {"site": "pbs", "launcher": "srun"}),
    ("--launcher", {"site": "frontier", "launcher": "mpirun"}),
    ("--clean", {"clean": True, "interactive": True}),
    ("--clean", {"site": "tuolumne", "clean": True}),
    ("--qos", {"site": "tuolumne", "qos": "normal"})])
def test_what_does_not_go_together(field, given):
    with pytest.raises(ArgumentError, match=f"^{field}: "):
        script(Job(**given))


def test_every_batch_system_and_launcher_is_known():
    assert set(BATCH) == set(LAUNCHERS) == {site.scheduler for site in SITES.values()}
    assert set(LAUNCHES) == {name for names in LAUNCHERS.values() for name in names}
    assert all(set(each.local) == set(LAUNCH) for each in LAUNCHES.values())
