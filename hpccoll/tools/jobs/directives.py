"""What a batch system is told: ``#SBATCH``, ``#PBS``, ``# flux:``, or ``salloc`` and its like."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from hpccoll.tools.jobs.job import Job
from hpccoll.tools.jobs.site import YOURS, Line, Site


class BatchSystem(NamedTuple):
    """A batch system.

    Attributes:
        mark: what its directives begin with.
        submit: the command that submits a script.
        interactive: the command that opens a shell in a job of the same size.
        directives: gives those of a job.
        before: the first lines of a script that it starts.
    """

    mark: str
    submit: str
    interactive: str
    directives: Callable[[Site, Job], list[Line]]
    before: tuple[Line, ...]


def _slurm(site: Site, job: Job) -> list[Line]:
    output = [Line(f"--job-name={job.name}", "what squeue shows"),
              Line("--output=%x-%j.out", "what the job prints, by name and number of the job")]
    devices = f"--gres=gpu:{job.gpus}" if site.gres else f"--gpus-per-node={job.gpus}"
    return [
        *output * (not job.interactive),
        Line(f"--time={job.time}", "hours:minutes:seconds until Slurm ends the job"),
        Line(f"--nodes={job.nodes}", "how many nodes"),
        Line(f"--ntasks-per-node={job.ppn}", "how many ranks on each"),
        Line(f"--cpus-per-task={job.threads * site.smt}",
             "processors of each rank" + (f": {site.smt} to a core" if site.smt > 1 else "")),
        *[Line(devices, "devices of each node, for all its ranks")]
        * (job.gpus > 0 and not site.device_per_rank),
        *[Line("--export=NONE", "the job has none of the variables of the shell that submits it")]
        * job.clean,
        *[Line(f"--{name}={getattr(job, name) or YOURS}", f"the {name} is yours to know")
          for name in ("account", "partition", "qos") if getattr(job, name) or name in site.yours]]


def _pbs(site: Site, job: Job) -> list[Line]:
    chunk = site.chunk or f"ncpus={job.ppn * job.threads}:mpiprocs={job.ppn}" + (
        f":ngpus={job.gpus}" if job.gpus else "")
    output = [Line(f"-N {job.name}", "what qstat shows; the output goes to a file of this name"),
              Line("-j oe", "one file for what the job prints")]
    return [
        *output * (not job.interactive),
        Line(f"-l walltime={job.time}", "hours:minutes:seconds until PBS ends the job"),
        Line(f"-l select={job.nodes}:{chunk}", "how many nodes, and what each has to have"),
        *[Line("-V", "the job has the environment of the shell that submits it")] * (not job.clean),
        *_theirs(site, job, {"account": "-A", "queue": "-q"})]


def _flux(site: Site, job: Job) -> list[Line]:
    output = [Line(f"--job-name={job.name}", "what flux jobs shows"),
              Line(f"--output={job.name}-{{{{id}}}}.out", "what the job prints, by its number")]
    hours, minutes, seconds = map(int, job.time.split(":"))
    return [
        *output * (not job.interactive),
        Line(f"--time-limit={(hours * 60 + minutes) * 60 + seconds}s",
             "seconds until Flux ends the job"),
        Line(f"-N {job.nodes} --exclusive", "how many nodes; no other job on them"),
        *_theirs(site, job, {"account": "--bank", "queue": "--queue"})]


def _theirs(site: Site, job: Job, options: dict[str, str]) -> list[Line]:
    """Who pays, and the queue, which is called a partition with Slurm."""
    given = {"account": job.account, "queue": job.partition}
    return [Line(f"{option} {given[name] or YOURS}", f"the {name} is yours to know")
            for name, option in options.items() if given[name] or name in site.yours]


#: Batch system -> how it is spoken to.
BATCH = {
    "slurm": BatchSystem("#SBATCH", "sbatch", "salloc", _slurm, (
        Line(': "${SLURM_JOB_ID:?this is a job script: start it with sbatch}"',
             "outside Slurm there are no nodes"),
        Line("job=$SLURM_JOB_ID", "the number of the job, for names of files"))),
    "pbs": BatchSystem("#PBS", "qsub", "qsub -I", _pbs, (
        Line('cd "${PBS_O_WORKDIR:?this is a job script: start it with qsub}"',
             "PBS starts jobs in the home directory"),
        Line("job=${PBS_JOBID%%.*}", "the number of the job, for names of files"))),
    "flux": BatchSystem("# flux:", "flux batch", "flux alloc", _flux, (
        Line(': "${FLUX_URI:?this is a job script: start it with flux batch}"',
             "outside Flux there are no nodes"),
        Line('job=$(flux getattr jobid 2>/dev/null || echo "$$")',
             "the number of the job, for names of files"))),
}


def directives(site: Site, job: Job) -> list[Line]:
    """The job's directives, and those of the site's that set what the job does not set itself."""
    batch = BATCH[site.scheduler]
    own = batch.directives(site, job)
    given = {_option(line) for line in own}
    mark = "" if job.interactive else f"{batch.mark} "
    return [Line(f"{mark}{line.text}", line.why)
            for line in (*own, *(each for each in site.directives if _option(each) not in given))]


def _option(directive: Line) -> str:
    """What a directive sets: ``--partition``, ``-q``, ``-l walltime``."""
    match = re.match("(-l )?[^ =]+", directive.text)
    return match[0] if match else directive.text
