"""Known error texts in the output of failed jobs, with cause and remedy.

Imports no MPI, which may be the failing part. A new text is an entry of :data:`KNOWN`, and a row in
docs/api/launch-errors.md; a test compares them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple


class Sign(NamedTuple):
    """Pattern of a failure: a part of a line that it prints."""

    text: str
    topic: str
    cause: str
    remedy: str


KNOWN = (
    Sign("GPU_SUPPORT_ENABLED is requested, but GTL library is not linked", "devices",
         "Cray MPICH expects device buffers, but mpi4py is not linked to its GPU transfer library",
         "rebuild mpi4py with the module craype-accel-... loaded: MPICC=\"cc -shared\" pip install "
         "--force-reinstall --no-cache-dir --no-binary mpi4py mpi4py; or export "
         "MPICH_GPU_SUPPORT_ENABLED=0"),
    Sign("unsupported PMI version PMIx", "launcher",
         "MPICH's Python under Open MPI's mpiexec, or under srun --mpi=pmix",
         "use the mpiexec of mpi4py's MPI library (. .venv/bin/activate), or srun --mpi=pmi2"),
    Sign("runs each as a job of 1 rank", "launcher",
         "the launcher does not match mpi4py's MPI library: every process runs as a job of one "
         "rank",
         "use the mpiexec of mpi4py's MPI library, or srun --mpi=pmi2 with MPICH, srun --mpi=pmix "
         "with Open MPI"),
    Sign("help-mpi-runtime.txt: No such file or directory", "launcher",
         "Open MPI's Python under MPICH's mpiexec, or another launcher without PMIx",
         "use the mpiexec of mpi4py's MPI library (. .venv/bin/activate), or srun --mpi=pmix"),
    Sign("can not load PMIx library", "launcher", "srun's pmix plug-in does not find PMIx",
         "use a plug-in that srun --mpi=list prints, or mpirun: hpccoll job --launcher mpirun; on "
         "Debian install libpmix-dev"),
    Sign("launch failed: Unspecified error", "launcher",
         "srun's MPI plug-in could not start ranks on a node; slurmd's log there has the reason",
         "use another plug-in that srun --mpi=list prints (MPICH: srun --mpi=pmi2), or mpirun: "
         "hpccoll job --launcher mpirun"),
    Sign("find mpi plugin for mpi/", "launcher",
         "this Slurm was built without the plug-in that --mpi names",
         "use a plug-in that srun --mpi=list prints, or mpirun: hpccoll job --launcher mpirun"),
    Sign("OMPI was not built with SLURM's PMI support", "launcher",
         "srun started Open MPI's ranks with a plug-in that this Open MPI does not support",
         "use srun --mpi=pmix, or mpirun: hpccoll job --launcher mpirun"),
    Sign("Please set I_MPI_PMI_LIBRARY", "launcher", "Intel MPI under srun does not find PMI-2",
         "export I_MPI_PMI_LIBRARY=/usr/lib64/libpmi2.so, or your site's path: hpccoll job --mpi "
         "intel; or use mpirun"),
    Sign("value not properly terminated in client request", "launcher",
         "MPICH over UCX: the address of a rank lists all network interfaces of its node and "
         "exceeds the PMI-2 limit",
         "export UCX_NET_DEVICES=... with the interfaces to use, or use another network: export "
         "MPIR_CVAR_CH4_NETMOD=ofi"),
    Sign("MPIDI_POSIX_comm_bootstrap", "memory",
         "a killed job with the same id has left shared memory of another size",
         "remove /dev/shm/mpich_shm_* on the node"),
    Sign("not enough slots available", "launcher", "more ranks than cores were requested from Open "
                                                   "MPI",
         "start fewer ranks, or use mpiexec --oversubscribe"),
    Sign("attempt to run as root", "launcher", "Open MPI's mpiexec does not start ranks for root",
         "use another user, or mpiexec --allow-run-as-root"),
    Sign("Bus error", "memory",
         "/dev/shm has too little room for the shared memory of the MPI library",
         "check df -h /dev/shm on the node; containers: --shm-size=1g, or --ipc=host; dead jobs: "
         "hpccoll doctor --clean"),
    Sign("oom", "memory", "the system killed a rank that exceeded the memory limit",
         "start fewer ranks per node, or request more memory: srun --mem"),
    Sign("signal 9", "ranks",
         "a rank was killed: at a memory limit, or by the launcher after another rank had failed",
         "the first error above is the cause, if there is one; otherwise start fewer ranks per "
         "node, or request more memory: srun --mem"),
    Sign("hpccoll.errors.", "hpccoll", "hpccoll ended the program",
         "the error names ranks, calls and a remedy; help(hpccoll.errors) describes each class"),
    Sign("cannot load MPI library", "MPI", "mpi4py finds no MPI library",
         "load the site's MPI module, also in the job script, or pip install 'hpccoll[mpich]'"),
)


#: Maximum characters of a line of the output in an explanation.
LONGEST = 400


class Failure(NamedTuple):
    """Explanation of a line of a job's output, in the form of doctor's findings."""

    topic: str
    what: str
    remedy: str
    level: str = "error"
    ranks: tuple[int, ...] = ()


def explain_lines(lines: Iterable[str]) -> Iterator[Failure]:
    """Yield the failures in a job's output: one for each known text, in their order."""
    left = list(KNOWN)
    for line in lines:
        for known in [each for each in left if each.text in line]:
            left.remove(known)
            yield Failure(known.topic, f"{known.cause}: \"{_shorten(line, known.text)}\"",
                     known.remedy)


def _shorten(line: str, text: str) -> str:
    """Return the line after its last colon, unless that drops the text."""
    short = re.sub(r"^.*[:\]] +(?=.*" + re.escape(text) + ")", "", line.strip())
    return short if len(short) <= LONGEST else text
