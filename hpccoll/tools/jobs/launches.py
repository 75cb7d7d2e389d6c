"""Launch of a job, with binding and devices, and the directives of batch systems.

A launcher is a function that returns the options of its program. The array ``launch`` of a script
contains the program and its options, and precedes every command for all ranks.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from hpccoll.tools.jobs.job import Job
from hpccoll.tools.jobs.site import LAUNCH, YOURS, Line, Site

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


class BatchSystem(NamedTuple):
    """A batch system.

    Attributes:
        interactive: the command that opens a shell in a job of the same size.
        directives: callback that returns the directives of a job.
        before: the first lines of its scripts.
    """

    mark: str
    submit: str
    interactive: str
    directives: Callable[[Site, Job], list[Line]]
    before: tuple[Line, ...]


def _slurm(site: Site, job: Job) -> list[Line]:
    output = [Line(f"--job-name={job.name}", "name in squeue"),
              Line("--output=%x-%j.out", "output file, with the name and id of the job")]
    devices = f"--gres=gpu:{job.gpus}" if site.gres else f"--gpus-per-node={job.gpus}"
    return [
        *output * (not job.interactive),
        Line(f"--time={job.time}", "time limit, hours:minutes:seconds"),
        Line(f"--nodes={job.nodes}", "number of nodes"),
        Line(f"--ntasks-per-node={job.ppn}", "ranks per node"),
        Line(f"--cpus-per-task={job.threads * site.smt}",
             "processors per rank" + (f": {site.smt} to a core" if site.smt > 1 else "")),
        *[Line(devices, "devices per node, for all its ranks")]
        * (job.gpus > 0 and not site.device_per_rank),
        *[Line("--export=NONE", "the job does not inherit the environment of the submitting shell")]
        * job.clean,
        *[Line(f"--{name}={getattr(job, name) or YOURS}", f"set your {name}")
          for name in ("account", "partition", "qos") if getattr(job, name) or name in site.yours]]


def _pbs(site: Site, job: Job) -> list[Line]:
    chunk = site.chunk or f"ncpus={job.ppn * job.threads}:mpiprocs={job.ppn}" + (
        f":ngpus={job.gpus}" if job.gpus else "")
    output = [Line(f"-N {job.name}", "name in qstat, and of the output file"),
              Line("-j oe", "standard output and error in one file")]
    return [
        *output * (not job.interactive),
        Line(f"-l walltime={job.time}", "time limit, hours:minutes:seconds"),
        Line(f"-l select={job.nodes}:{chunk}", "number of nodes, and their resources"),
        *[Line("-V", "the job inherits the environment of the submitting shell")] * (not job.clean),
        *_account_lines(site, job, {"account": "-A", "queue": "-q"})]


def _flux_directives(site: Site, job: Job) -> list[Line]:
    output = [Line(f"--job-name={job.name}", "name in flux jobs"),
              Line(f"--output={job.name}-{{{{id}}}}.out", "output file, with the id of the job")]
    hours, minutes, seconds = map(int, job.time.split(":"))
    return [
        *output * (not job.interactive),
        Line(f"--time-limit={(hours * 60 + minutes) * 60 + seconds}s",
             "time limit in seconds"),
        Line(f"-N {job.nodes} --exclusive", "number of nodes, exclusive"),
        *_account_lines(site, job, {"account": "--bank", "queue": "--queue"})]


def _account_lines(site: Site, job: Job, options: dict[str, str]) -> list[Line]:
    """Return the account and the queue, which Slurm calls a partition."""
    given = {"account": job.account, "queue": job.partition}
    return [Line(f"{option} {given[name] or YOURS}", f"set your {name}")
            for name, option in options.items() if given[name] or name in site.yours]


#: Batch systems by name.
BATCH = {
    "slurm": BatchSystem("#SBATCH", "sbatch", "salloc", _slurm, (
        Line(': "${SLURM_JOB_ID:?this is a job script: start it with sbatch}"',
             "requires a Slurm job"),
        Line("job=$SLURM_JOB_ID", "the job id, for file names"))),
    "pbs": BatchSystem("#PBS", "qsub", "qsub -I", _pbs, (
        Line('cd "${PBS_O_WORKDIR:?this is a job script: start it with qsub}"',
             "PBS starts jobs in the home directory"),
        Line("job=${PBS_JOBID%%.*}", "the job id, for file names"))),
    "flux": BatchSystem("# flux:", "flux batch", "flux alloc", _flux_directives, (
        Line(': "${FLUX_URI:?this is a job script: start it with flux batch}"',
             "requires a Flux job"),
        Line('job=$(flux getattr jobid 2>/dev/null || echo "$$")',
             "the job id, for file names"))),
}


def directives(site: Site, job: Job) -> list[Line]:
    """Return the job's directives, and those of the site that the job does not set."""
    batch = BATCH[site.scheduler]
    own = batch.directives(site, job)
    given = {_option(line) for line in own}
    mark = "" if job.interactive else f"{batch.mark} "
    return [Line(f"{mark}{line.text}", line.why)
            for line in (*own, *(each for each in site.directives if _option(each) not in given))]


def _option(directive: Line) -> str:
    """Return the option of a directive: ``--partition``, ``-q``, ``-l walltime``."""
    match = re.match("(-l )?[^ =]+", directive.text)
    return match[0] if match else directive.text
