"""The shipped job scripts on a real Slurm cluster, and what goes wrong in real jobs."""

import json
import math
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import slurm as module
from doc.pages import need_frameworks
from mpi4py import MPI
from slurm import Slurm

from hpccoll.tools.doctor.shm_cleanup import leftovers, remove

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
MPICH = "Open MPI" not in MPI.Get_library_version()

pytestmark = [pytest.mark.skipif(bool(module.missing()), reason=module.missing()),
              pytest.mark.slow]
#: What is behind a script's name goes to its program.
QUICK = "-m", "1K:64K", "--seconds", "0.05"
#: Open MPI's processes of two slurmd on one machine do not find each other.
several_nodes = pytest.mark.skipif(not MPICH, reason="Slurm starts Open MPI on one node here")


@pytest.fixture(scope="module")
def cluster():
    """Two nodes of two processors, and of two devices that are none."""
    remove(leftovers(now=math.inf))  # doctor would warn of what earlier tests have left
    with Slurm(gpus=2) as made:
        yield made


@pytest.fixture
def batch(cluster, tmp_path):
    """Run a job script in an empty directory; return status, number, and what it printed."""
    def run(*words):
        status, number = cluster.batch(*words, cwd=tmp_path, environment=settings())
        output, = tmp_path.glob(f"*-{number}.out")
        return status, number, output.read_text()

    return run


def settings(**variables):
    return {"PATH": f"{BIN}:/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONPATH": str(ROOT),
            "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", **variables}


def srun(cluster, *words, **variables):
    return cluster.call("srun", *words, environment=settings(OMP_NUM_THREADS="1", **variables))


@several_nodes
def test_the_generic_script_runs_the_bench_on_two_nodes(batch, tmp_path):
    status, number, printed = batch(ROOT / "jobs" / "cpu-mpich.sbatch", *QUICK)
    assert status == 0, printed
    assert [path.name for path in tmp_path.iterdir()] == [f"hpccoll-{number}.out"]
    assert re.search(r"ok +world +4 ranks, started by srun --mpi=pmi2", printed)
    assert re.search(r"ok +layout +2 nodes, 2 ranks on each; .* levels\s+2x2", printed)
    assert re.search(r"ok +binding", printed)
    assert "wrong elements: 0" in printed and "# 4 ranks on " in printed


@several_nodes
def test_the_bench_script_leaves_a_table_and_plots(batch, tmp_path):
    status, number, printed = batch(ROOT / "jobs" / "bench.sbatch", *QUICK)
    assert status == 0, printed
    record = json.loads((tmp_path / f"hpccoll-bench-{number}.json").read_text())
    assert record["complete"] and record["environment"]["ranks"] == 4
    assert record["environment"]["slurm_job"] == number
    assert (tmp_path / f"hpccoll-bench-{number}.png").stat().st_size > 5000


@several_nodes
def test_the_hybrid_script_runs_an_unchanged_program(batch, tmp_path):
    (tmp_path / "my_program.py").write_text(
        "import os, sys\nfrom mpi4py import MPI\n"
        "print(sys.argv[1:], MPI.COMM_WORLD.allreduce(os.environ['OMP_NUM_THREADS']))\n")
    status, _, printed = batch("--ntasks-per-node=1", "--cpus-per-task=2",
                               ROOT / "jobs" / "hybrid.sbatch", "--epochs", "3")
    assert status == 0, printed
    assert re.search(r"ok +layout +2 nodes, 1 rank on each", printed)
    assert not re.search(r"^warning +(?! |load)", printed, re.M)  # this machine may be busy
    assert printed.count("['--epochs', '3'] 22") == 2


@several_nodes
def test_the_tune_script_leaves_a_table(batch, tmp_path):
    status, number, printed = batch(ROOT / "jobs" / "tune.sbatch", "--quick", "--force",
                                    "--collective", "barrier")
    assert status == 0, printed
    table = json.loads((tmp_path / f"hpccoll-tune-{number}.json").read_text())
    assert '"2x2"' in json.dumps(table)


@pytest.mark.long
@several_nodes
def test_nodes_given_to_sbatch_count(batch):
    """The script holds no number of ranks of its own."""
    status, _, printed = batch("--nodes=1", ROOT / "jobs" / "cpu-mpich.sbatch", *QUICK)
    assert status == 0, printed
    assert re.search(r"ok +world +2 ranks", printed)


#: A program for torchrun, of which one word was changed, and the devices that its ranks are given.
TRAINING = (ROOT / "examples" / "train_ddp.py").read_text().replace(
    "hpccoll.torch.init_process_group()", 'distributed.init_process_group("hpccoll")') + """
import os
devices = [None] * size
distributed.init_process_group("hpccoll")
distributed.all_gather_object(devices, os.environ.get("CUDA_VISIBLE_DEVICES"))
if rank == 0:
    print("devices", *devices)
"""


def state_of(cluster, number):
    """What Slurm says of a job."""
    return re.search(r"JobState=(\w+)", cluster.call("scontrol", "show", "job", number).stdout)[1]


@several_nodes
def test_the_training_script_trains_on_two_nodes(cluster, batch, tmp_path):
    """As it is shipped, with the devices of these nodes."""
    need_frameworks(TRAINING)
    (tmp_path / "train.py").write_text(TRAINING)
    status, number, printed = batch("--ntasks-per-node=2", "--gpus-per-node=2",
                                    ROOT / "jobs" / "train.sbatch")
    assert status == 0, printed
    assert state_of(cluster, number) == "COMPLETED"
    assert re.search(r"ok +layout +2 nodes, 2 ranks on each; .* levels\s+2x2", printed)
    assert re.search(r"4 ranks: 9[5-9]\.\d % of 360 new digits are recognised", printed)
    assert "devices 0 1 0 1" in printed


@pytest.mark.long(every=2)
@several_nodes
@pytest.mark.parametrize("fault, said", [
    ("raise RuntimeError('no such batch')", r"\[rank3\]: RuntimeError: no such batch"),
    ("os.kill(os.getpid(), 9)", "task 3: Killed")], ids=["raises", "is killed"])
def test_a_rank_that_fails_ends_the_training_and_is_named(cluster, batch, tmp_path, fault, said):
    """The others wait for it inside an allreduce; on a cluster without devices."""
    need_frameworks(TRAINING)
    start = "    optimizer.step()\n"
    assert TRAINING.count(start) == 1
    (tmp_path / "train.py").write_text("import os\n" + TRAINING.replace(
        start, f"{start}        if rank == 3:\n            {fault}\n"))
    made = cluster.call(sys.executable, "-m", "hpccoll", "job", "--train", "--nodes", "2", "--ppn",
                        "2", "--", "python -m hpccoll run train.py", environment=settings())
    (tmp_path / "job.sbatch").write_text(made.stdout)
    status, number, printed = batch(tmp_path / "job.sbatch")
    assert status != 0 and state_of(cluster, number) == "FAILED", printed
    assert re.search(said, printed), printed
    assert "are recognised" not in printed


def test_a_wrong_plugin_is_found_before_the_program_runs(batch, tmp_path):
    """The classic mistake: p jobs of one rank, each of which believes to be the whole."""
    wrong = "none" if MPICH else "pmi2"
    name = "cpu-mpich.sbatch" if MPICH else "cpu-openmpi.sbatch"
    script = tmp_path / "job.sbatch"
    script.write_text(re.sub(r"--mpi=\w+", f"--mpi={wrong}", (ROOT / "jobs" / name).read_text()))
    # Lone processes of Open MPI bring servers of their own, which sometimes are in each other's
    # way: that ends the job as well, but before doctor can say anything.
    for _ in range(1 if MPICH else 3):
        status, _, printed = batch(script)
        said = " ".join(printed.split())
        assert status != 0 and "bench" not in said.split("stops, ")[1]
        if "runs each as a job" in said:
            break
    assert said.count("started 4 processes, ") == 1
    assert f"use srun --mpi={'pmi2' if MPICH else 'pmix'}" in said
    assert "stops, see above" in said


@pytest.mark.skipif(MPICH, reason="for Open MPI")
def test_the_script_for_open_mpi_runs_on_one_node(batch):
    status, _, printed = batch("--nodes=1", ROOT / "jobs" / "cpu-openmpi.sbatch", *QUICK)
    if "can not load PMIx library" in printed:
        pytest.skip("Slurm's pmix plug-in needs Debian's package libpmix-dev")
    assert status == 0, printed
    assert re.search(r"ok +world +2 ranks, started by srun --mpi=pmix", printed)
    assert "wrong elements: 0" in printed


@several_nodes
def test_doctor_finds_ranks_dealt_out_over_nodes(cluster):
    done = srun(cluster, "-N2", "-n4", "--mpi=pmi2", "--distribution=cyclic", sys.executable,
                "-m", "hpccoll", "doctor")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ranks are not numbered node by node" in done.stdout and "2x2@0,2,1,3" in done.stdout


@pytest.mark.long
@several_nodes
def test_doctor_finds_more_ranks_than_processors(cluster):
    done = srun(cluster, "-N2", "-n6", "--overcommit", "--mpi=pmi2", sys.executable, "-m",
                "hpccoll", "doctor")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "more ranks than processors" in done.stdout


@pytest.mark.long
@several_nodes
def test_allreduce_is_right_with_a_ragged_layout(cluster):
    done = srun(cluster, "-N2", "-n3", "--mpi=pmi2", sys.executable,
                ROOT / "tests" / "cluster" / "program.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 ranks, layout 2,1, right" in done.stdout


@several_nodes
@pytest.mark.once
def test_switches_that_slurm_knows_are_a_level(tmp_path):
    with Slurm(4, 1, switches=True) as cluster:
        done = srun(cluster, "-N4", "-n4", "--mpi=pmi2", sys.executable, "-m", "hpccoll", "topo",
                    "--json", tmp_path / "topo.json")
        assert done.returncode == 0, done.stdout + done.stderr
        assert "4 ranks, layout 2x2x1 (switch / node / rank)" in done.stdout
        assert "switch s1  ranks 2-3" in done.stdout and "node n3  rank 3" in done.stdout
        record = json.loads((tmp_path / "topo.json").read_text())
        assert record["used"] == "2x2x1"
        assert {link["level"] for link in record["links"]} == {"switch", "network"}
        done = srun(cluster, "-N4", "-n4", "--mpi=pmi2", sys.executable,
                    ROOT / "tests" / "cluster" / "program.py")
        assert "4 ranks, layout 2x2x1, right" in done.stdout, done.stdout + done.stderr


@pytest.mark.once
def test_a_script_outside_slurm_says_so(tmp_path):
    done = subprocess.run(["bash", ROOT / "jobs" / "cpu-mpich.sbatch"], capture_output=True,
                          text=True, cwd=tmp_path, check=False,
                          env={"PATH": "/usr/bin:/bin"})
    assert done.returncode != 0
    assert "this is a job script: start it with sbatch" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.once
def test_nothing_is_left_of_a_cluster():
    try:
        with Slurm() as cluster:
            cluster.call("sbatch", "-N2", "-o", "/dev/null", "--wrap", "srun sleep 100")
            deadline = time.monotonic() + 20
            while not cluster.call("squeue", "-h", "-s", "-o", "%N").stdout.strip():
                assert time.monotonic() < deadline
                time.sleep(0.2)
            assert len(cluster.processes()) > 4
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        pass
    assert cluster.processes() == []
    assert not cluster.home.exists()


@several_nodes
def test_status_of_a_running_job_on_all_nodes(cluster, tmp_path):
    """From a step beside that of the job; it ends nothing."""
    program, go_on = tmp_path / "late.py", tmp_path / "go_on"
    program.write_text(f"""
import os, time, numpy, hpccoll
from mpi4py import MPI
comm, x = hpccoll.Comm(MPI.COMM_WORLD), numpy.ones(8)
for _ in range(4):
    comm.Allreduce(MPI.IN_PLACE, x)
while comm.rank == 3 and not os.path.exists({str(go_on)!r}):
    time.sleep(0.1)
comm.Allreduce(MPI.IN_PLACE, x)
print("done")
""")
    job = threading.Thread(target=lambda: ended.append(srun(
        cluster, "-N2", "-n4", "--mpi=pmi2", sys.executable, program)))
    ended, text, end = [], "", time.monotonic() + 60
    job.start()
    while "late.py:8" not in text and time.monotonic() < end:
        number = cluster.call("squeue", "-h", "-o", "%i").stdout.strip()
        shown = srun(cluster, "--jobid", number, "--overlap", "-N2", "--ntasks-per-node", "1",
                     sys.executable, "-m", "hpccoll", "status", number) if number else None
        text = shown.stdout if shown is not None else ""
    go_on.touch()
    job.join()
    assert f"rank 3 is at {program}:8; its last call was call" in text, (text, shown)
    assert "rank 2 waits for" in text or "rank 2 is in the MPI library in call" in text, text
    assert ended[0].stdout.split() == ["done"] * 4, ended


@several_nodes
@pytest.mark.long
def test_times_that_an_administrator_measures_are_read_by_later_jobs(cluster, tmp_path):
    table = tmp_path / "tuning.json"
    words = "-N2", "-n4", "--mpi=pmi2", sys.executable, "-m", "hpccoll"
    tuned = srun(cluster, *words, "tune", "--quick", "--force", "--collective", "allreduce",
                 "-o", table)
    assert tuned.returncode == 0, (tuned.stdout, tuned.stderr)
    table.chmod(0o444)
    shown = srun(cluster, *words, "doctor", HPCCOLL_TUNING=str(table))
    assert f"{table} has times of such a job" in " ".join(shown.stdout.split()), shown
