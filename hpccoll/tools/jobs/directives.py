"""Directives of batch systems: ``#SBATCH``, ``#PBS``, ``# flux:``, or ``salloc`` and similar."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from hpccoll.tools.jobs.job import Job
from hpccoll.tools.jobs.site import YOURS, Line, Site


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


def _flux(site: Site, job: Job) -> list[Line]:
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
    "flux": BatchSystem("# flux:", "flux batch", "flux alloc", _flux, (
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
