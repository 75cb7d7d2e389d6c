"""Scripts for PBS, run as PBS would on one node: there is no PBS for a test to start."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from launch import settings
from mpi4py import MPI

from hpccoll.tools.jobs import Job, script

BIN = Path(sys.executable).parent
ROOT = Path(__file__).resolve().parents[2]
MPI_NAME = "openmpi" if "Open MPI" in MPI.Get_library_version() else "mpich"


@pytest.mark.slow
def test_the_script_runs(tmp_path):
    text = script(Job("pbs", nodes=1, ppn=2, mpi=MPI_NAME,
                      command="python -m hpccoll bench allreduce -m 64:64 -i 2"))
    done = subprocess.run(
        ["bash", "-c", text], capture_output=True, text=True, check=False, timeout=60,
        cwd="/", env={**settings(BIN), "PBS_O_WORKDIR": str(tmp_path), "PBS_JOBID": "12.server"})
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"ok +world +2 ranks", done.stdout)
    assert "wrong elements: 0" in done.stdout


def test_outside_pbs_it_says_so():
    done = subprocess.run(["bash", ROOT / "jobs" / "cpu.pbs"], capture_output=True, text=True,
                          check=False, env={"PATH": "/usr/bin:/bin"})
    assert done.returncode != 0
    assert "this is a job script: start it with qsub" in done.stderr
