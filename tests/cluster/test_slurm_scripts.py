"""Other kinds of scripts on a real Slurm cluster: a clean job, mpirun in place of srun, a shell."""

import re
import sys
from pathlib import Path

import pytest
import slurm as module
from mpi4py import MPI
from slurm import Slurm

from hpccoll.tools.jobs import Job, script

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
MPI_NAME = "openmpi" if "Open MPI" in MPI.Get_library_version() else "mpich"
COMMAND = "python -m hpccoll bench allreduce -m 64:64 -i 2"

pytestmark = [pytest.mark.skipif(bool(module.missing()), reason=module.missing()),
              pytest.mark.slow]
#: Slurm's plug-in for Open MPI needs a package; nothing else differs.
for_mpich = pytest.mark.skipif(MPI_NAME == "openmpi", reason="shown with MPICH")
#: What Open MPI's mpirun wants from root.
ROOTS = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


@pytest.fixture(scope="module")
def cluster():
    """One node of two processors."""
    with Slurm(nodes=1) as made:
        yield made


@pytest.fixture
def batch(cluster, tmp_path):
    """Run a script's text; return its status and what it printed."""
    def run(text, **more):
        (tmp_path / "job.sbatch").write_text(text)
        status, number = cluster.batch(tmp_path / "job.sbatch", cwd=tmp_path, environment={
            "PATH": f"{BIN}:/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONPATH": str(ROOT), **more})
        output, = tmp_path.glob(f"*-{number}.out")
        return status, output.read_text()
    return run


def test_ranks_started_by_mpirun(batch):
    text = script(Job(nodes=1, ppn=2, mpi=MPI_NAME, launcher="mpirun", command=COMMAND))
    status, printed = batch(text, **ROOTS)
    assert status == 0, printed
    assert re.search(r"ok +world +2 ranks, started by mpiexec", printed)
    assert "wrong elements: 0" in printed


@for_mpich
def test_a_job_that_begins_with_nothing(batch, tmp_path):
    """What the submitting shell has is not there; what the script loads is there on all ranks."""
    (tmp_path / "environment").write_text(f"export PATH={BIN}:$PATH PYTHONPATH={ROOT}\n")
    text = script(Job(nodes=1, ppn=2, mpi=MPI_NAME, clean=True, command=(
        "bash -c 'echo left: ${LEFT:-none} ${LOADED:-none}'"),
        activate=str(tmp_path / "environment")))
    assert "module load CHANGE-ME" in text
    status, printed = batch(text.replace("module load CHANGE-ME", "export LOADED=yes"), LEFT="over")
    assert status == 0, printed
    assert printed.count("left: none yes") == 2


@for_mpich
def test_a_shell_in_a_job(batch, tmp_path):
    """Sourced in a job, the script looks at it, and leaves ``launch`` to go on with."""
    text = script(Job(nodes=1, ppn=2, mpi=MPI_NAME, interactive=True))
    (tmp_path / "session.sh").write_text(text)
    opened = re.search(r"^#   salloc (.*)$", text, re.MULTILINE)[1]
    head = "".join(f"#SBATCH {option}\n" for option in opened.split())
    status, printed = batch(f"#!/bin/bash\n#SBATCH --output=%x-%j.out\n{head}"
                            f". {tmp_path}/session.sh\n"
                            '"${launch[@]}" echo once\n"${launch[@]}" echo more\n')
    assert status == 0, printed
    assert re.search(r"ok +world +2 ranks", printed)
    assert printed.count("once") == 2 and printed.count("more") == 2
