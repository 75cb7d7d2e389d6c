"""Launch of a job: ``srun``, ``mpirun``, ``mpiexec`` or ``flux run``, with binding and devices.

A launcher is a function that returns the options of its program. The array ``launch`` of a script
contains the program and its options, and precedes every command for all ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from hpccoll.tools.jobs.job import Job
from hpccoll.tools.jobs.site import LAUNCH, Line, Site

BOUND = "bind every rank to its cores"


class Launcher(NamedTuple):
    """Command line of a launcher.

    Attributes:
        options: callback that returns its options for a site's job.
        local: MPI library -> the variable with a rank's number on its node.
        ranks: the number of ranks in the script; empty if the script has no variable for it.
    """

    program: str
    options: Callable[[Site, Job], list[Line]]
    local: dict[str, str]
    ranks: str = ""


def _srun(site: Site, job: Job) -> list[Line]:
    library = LAUNCH[job.mpi]
    options = [Line(f"--mpi={library.plugin}", library.why)] if library.plugin else [
        Line("", library.why)]
    if site.cpus:
        masks = [f"{(1 << job.threads) - 1 << first:x}" for first in site.cpus[:job.ppn]]
        options += [Line(f"--cpu-bind=mask_cpu:{','.join(masks)}",
                         "the cores next to each rank's device, by local rank")]
    else:
        options += [Line(f"--cpu-bind={site.cpu_bind.text}", site.cpu_bind.why)]
    options += site.devices if job.gpus else ()
    if not any("--distribution" in line.text for line in site.directives):
        options += [Line("--distribution=block", "number ranks node by node")]
    return [*options,
            Line("--kill-on-bad-exit=1", "end the job when a rank fails")]


def _mpirun(site: Site, job: Job) -> list[Line]:
    """Return the options inside a Slurm job, with its number of ranks."""
    return [Line('-n "$SLURM_NTASKS"', "ranks of the job"),
            *_places(job, '"$SLURM_NTASKS_PER_NODE"')]


def _mpiexec(site: Site, job: Job) -> list[Line]:
    ranks = [Line(f"-n {job.nodes * job.ppn}", "ranks of the job")]
    if site.bind is not None and job.ppn == site.ppn:
        return [*ranks, Line(f"--ppn {job.ppn}", "ranks of each node"), site.bind]
    return ranks + _places(job, str(job.ppn))


def _places(job: Job, ppn: str) -> list[Line]:
    """Return ranks per node and their cores for the launchers of MPI libraries."""
    if job.mpi == "openmpi":
        return [Line(f"--map-by ppr:{ppn}:node:pe={job.threads}", "ranks of each node"),
                Line("--bind-to core", BOUND)]
    if job.mpi == "cray":
        return [Line(f"--ppn {ppn}", "ranks of each node"),
                Line(f"--depth {job.threads} --cpu-bind depth", BOUND)]
    if job.mpi == "intel":
        return [Line(f"-ppn {ppn}", "ranks of each node"),
                Line("-genv I_MPI_PIN_DOMAIN=omp", BOUND + ", OMP_NUM_THREADS of them")]
    return [Line(f"-ppn {ppn}", "ranks of each node"),
            Line(f"-bind-to core:{job.threads}", BOUND)]


def _flux(site: Site, job: Job) -> list[Line]:
    return [Line(f"-N {job.nodes} -n {job.nodes * job.ppn}", "nodes, and ranks of the job"),
            Line(f"-c {job.threads}", "cores of each rank"),
            Line("-o cpu-affinity=per-task", BOUND),
            *(site.devices if job.gpus else ()),
            Line("-o exit-on-error", "end the job when a rank fails")]


#: Name -> launcher.
LAUNCHES = {
    "srun": Launcher("srun", _srun, dict.fromkeys(LAUNCH, "SLURM_LOCALID"), '"$SLURM_NTASKS"'),
    "mpirun": Launcher("mpirun", _mpirun, {
        "openmpi": "OMPI_COMM_WORLD_LOCAL_RANK", "mpich": "MPI_LOCALRANKID",
        "intel": "MPI_LOCALRANKID", "cray": "PMI_LOCAL_RANK", "site": "MPI_LOCALRANKID"},
        '"$SLURM_NTASKS"'),
    "mpiexec": Launcher("mpiexec", _mpiexec, {
        "openmpi": "OMPI_COMM_WORLD_LOCAL_RANK", "mpich": "MPI_LOCALRANKID",
        "intel": "MPI_LOCALRANKID", "cray": "PMI_LOCAL_RANK", "site": "MPI_LOCALRANKID"}),
    "flux": Launcher("flux run", _flux, dict.fromkeys(LAUNCH, "FLUX_TASK_LOCAL_ID")),
}


def launch(site: Site, job: Job) -> list[Line]:
    """Return the array ``launch``: the prefix of a command for every rank."""
    launcher = LAUNCHES[job.launcher]
    lines = [Line(f"launch=({launcher.program}", "command that starts every rank"),
             *(Line(f"    {line.text}".rstrip(), line.why)
               for line in launcher.options(site, job))]
    variable, value, why = site.device
    if site.wrapper is not None and job.gpus:
        lines.append(Line(f"    {site.wrapper.text}", site.wrapper.why))
    elif variable and job.gpus:
        value = value.format(gpus=job.gpus, local=launcher.local[job.mpi])
        lines.append(Line(f"    bash -c 'export {variable}={value}; exec \"$@\"' rank", why))
    return [*lines, Line(")", "")]


def ranks(job: Job) -> str:
    """Return the number of ranks as an expression of the script."""
    return LAUNCHES[job.launcher].ranks or str(job.nodes * job.ppn)
