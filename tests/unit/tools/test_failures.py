"""Failures known by what they print: as jobs printed them, and in the page."""

from pathlib import Path

import pytest

from hpccoll.machine.launcher import explain_single_ranks
from hpccoll.tools.failures import KNOWN, explain_lines

PAGE = Path(__file__).resolve().parents[3] / "docs" / "api" / "launch-errors.md"
#: Lines as they were printed, here or in public reports, and a part of the remedy.
PRINTED = {
    "MPICH ERROR [Rank 0] [job id 410301.1] [nid005414] - Abort(-1) (rank 0 in comm 0): "
    "MPIDI_CRAY_init: GPU_SUPPORT_ENABLED is requested, but GTL library is not linked":
        "craype-accel",
    "check_MPIR_CVAR_PMI_VERSION(167):  Runtime environment uses unsupported PMI version PMIx. "
    "Aborting.": "srun --mpi=pmi2",
    "hpccoll: bench: launcher does not match the MPI library: mpiexec started 4 processes, Open "
    "MPI 5.0.8 runs each as a job of 1 rank; use the mpiexec of mpi4py's MPI library":
        "srun --mpi=pmi2",
    "    /opt/openmpi/share/openmpi/help-mpi-runtime.txt: No such file or directory":
        "srun --mpi=pmix",
    "srun: error:  mpi/pmix_v5: init: (null) [0]: mpi_pmix.c:193: pmi/pmix: can not load PMIx "
    "library": "--launcher mpirun",
    "srun: error: task 2 launch failed: Unspecified error": "--mpi=pmi2",
    "srun: error: cannot find mpi plugin for mpi/pmix": "srun --mpi=list",
    "0: but OMPI was not built with SLURM's PMI support and therefore cannot": "srun --mpi=pmix",
    "MPI startup(): PMI server not found. Please set I_MPI_PMI_LIBRARY variable if it is not a "
    "singleton case.": "libpmi2.so",
    "slurmstepd: error: mpi/pmi2: value not properly terminated in client request":
        "UCX_NET_DEVICES",
    "MPIDI_POSIX_comm_bootstrap(199)....: Out of memory": "/dev/shm/mpich_shm",
    "There are not enough slots available in the system to satisfy the 8": "--oversubscribe",
    "prterun has detected an attempt to run as root.": "--allow-run-as-root",
    "RuntimeError: cannot load MPI library": "MPI module"}


@pytest.mark.parametrize("line", PRINTED)
def test_a_line_that_a_job_printed(line):
    found, = explain_lines(["before\n", line + "\n", line + "\n", "after\n"])
    assert found.level == "error" and PRINTED[line] in found.remedy
    assert len(found.what) < 300


def test_every_known_text_has_a_line_here():
    assert all(any(known.text in line for line in PRINTED) for known in KNOWN)
    assert len(PRINTED) == len(KNOWN)


@pytest.mark.parametrize("library", ["MPICH 5.0.2", "Open MPI 5.0.8", "Intel MPI 2021"])
def test_our_own_message_of_lone_ranks_is_known(library):
    """Fails where the message is written anew and the table is not."""
    problem, _ = explain_single_ranks(4, "srun --mpi=none", library)
    found, = explain_lines([f"hpccoll: {problem}\n"])
    assert "a job of one rank" in found.what


def test_output_of_a_job_that_is_well_says_nothing():
    assert list(explain_lines(["4 ranks, all is well\n", ""])) == []


def test_the_page_has_the_same_table():
    text = PAGE.read_text(encoding="utf-8")
    for known in KNOWN:
        row = next((line for line in text.splitlines() if f"`{known.text}`" in line), None)
        assert row is not None, known.text
        assert known.cause.split(",")[0] in row.replace("`", ""), row
