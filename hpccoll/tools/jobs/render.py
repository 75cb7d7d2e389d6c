"""A job script as text: binding, launch and checks for a site, every line with its reason."""

from __future__ import annotations

import re
import shlex
import textwrap
from dataclasses import fields

from hpccoll.tools.jobs.job import BENCH, TRAIN, Job, completed
from hpccoll.tools.jobs.sites import LAUNCH, YOURS, Line, Site

#: From this many nodes on, all ranks importing Python from one file system takes minutes.
MANY_NODES = 128
#: Where reasons begin, and where lines end.
COLUMN, WIDTH = 44, 100

#: Name in ``jobs/`` -> the script there.
TEMPLATES = {
    "cpu-mpich.sbatch": Job(),
    "cpu-openmpi.sbatch": Job(mpi="openmpi"),
    "gpu.sbatch": Job("gpu", command="python -m hpccoll run my_program.py"),
    "cray.sbatch": Job("cray", command="python -m hpccoll run my_program.py"),
    "hybrid.sbatch": Job(ppn=2, threads=8, command="python -m hpccoll run my_program.py"),
    "tune.sbatch": Job(name="hpccoll-tune", time="01:00:00",
                       command='python -m hpccoll tune -o "hpccoll-tune-$job.json"'),
    "bench.sbatch": Job(name="hpccoll-bench", time="00:30:00", command=(
        f'{BENCH} --json "hpccoll-bench-$job.json" --plot "hpccoll-bench-$job.png"')),
    "train.sbatch": Job("gpu", name="hpccoll-train", time="04:00:00", train=True, command=TRAIN),
    "cpu.pbs": Job("pbs"),
}


def script(job: Job) -> str:
    """Write the script of a job.

    Raises:
        ArgumentError: unknown site or MPI library, no time, or what the site does not have.
    """
    given, (site, job) = job, completed(job)
    batch = _pbs if site.scheduler == "pbs" else _slurm
    head, before, launch, ranks = batch(site, job)
    text = ["#!/bin/bash", f"# {job.nodes} nodes x {job.ppn} ranks on {site.title}.",
            f"# Made with: {_made_with(given)}", f"# Facts from: {site.source}."]
    if YOURS in "".join(line.text for line in head):
        text += [f"# Fill in what says {YOURS}."]
    for section in (head, before + _environment(site, job), launch, _run(job, ranks)):
        text += ["", *_explained(section)]
    return "\n".join([*text, ""])


def _made_with(job: Job) -> str:
    """The command line that makes the script."""
    plain, words = Job(), [f"--site {job.site}", f"--nodes {job.nodes}"]
    for field in fields(Job):
        value = getattr(job, field.name)
        if field.name not in ("site", "nodes", "command") and value != getattr(plain, field.name):
            words.append(f"--{field.name}" + f" {shlex.quote(str(value))}" * (value is not True))
    return f"hpccoll job {' '.join(words)} -- {shlex.quote(job.command)}"


def _explained(lines: list[Line]) -> list[str]:
    """Lines of a script with their reasons: beside them where there is room, or else above."""
    text = []
    for line in lines:
        beside = f"{line.text:<{COLUMN}} # {line.why}"
        if not line.why:
            text += [line.text]
        elif line.text and len(beside) <= WIDTH and not line.text.startswith("#PBS"):
            text += [beside]  # PBS would read the reason as a part of the directive
        else:
            indent = line.text[:len(line.text) - len(line.text.lstrip())]
            text += [*_comment(line.why, indent), *filter(None, [line.text])]
    return text


def _comment(why: str, indent: str = "") -> list[str]:
    return textwrap.wrap(why, WIDTH, initial_indent=f"{indent}# ", break_on_hyphens=False,
                         subsequent_indent=f"{indent}# ", break_long_words=False)


def _slurm(site: Site, job: Job) -> tuple[list[Line], list[Line], list[Line], str]:
    """Directives of Slurm, what comes first, the launch with ``srun``, the number of ranks."""
    head = [
        Line(f"--job-name={job.name}", "what squeue shows"),
        Line("--output=%x-%j.out", "what the job prints, by name and number of the job"),
        Line(f"--time={job.time}", "hours:minutes:seconds until Slurm ends the job"),
        Line(f"--nodes={job.nodes}", "how many nodes"),
        Line(f"--ntasks-per-node={job.ppn}", "how many ranks on each"),
        Line(f"--cpus-per-task={job.threads * site.smt}",
             "processors of each rank" + (f": {site.smt} to a core" if site.smt > 1 else "")),
        *[Line(f"--gpus-per-node={job.gpus}", "devices of each node, for all its ranks")]
        * (job.gpus > 0 and not site.device_per_rank),
        *[Line(f"--{name}={getattr(job, name) or YOURS}", f"the {name} is yours to know")
          for name in ("account", "partition", "qos") if getattr(job, name) or name in site.yours]]
    plugin, why = LAUNCH[job.mpi]
    options = [Line(f"--mpi={plugin}", why)]
    if site.cpus:
        masks = [f"{(1 << job.threads) - 1 << first:x}" for first in site.cpus[:job.ppn]]
        options += [Line(f"--cpu-bind=mask_cpu:{','.join(masks)}",
                         "the cores next to each rank's device, by the rank's number on its node")]
    else:
        options += [Line(f"--cpu-bind={site.cpu_bind.text}", site.cpu_bind.why)]
    options += site.devices if job.gpus else ()
    if not any("--distribution" in line.text for line in site.directives):
        options += [Line("--distribution=block", "number ranks node by node")]
    options += [Line("--kill-on-bad-exit=1", "when a rank fails, the others do not wait for it")]
    before = [
        Line(': "${SLURM_JOB_ID:?this is a job script: start it with sbatch}"',
             "outside Slurm there are no nodes"),
        Line("job=$SLURM_JOB_ID", "the number of the job, for names of files")]
    if not site.cpus:  # told the number, srun takes the first processors and no masks of others
        before += [Line("export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK",
                        "since Slurm 22.05 srun does not take this from the job by itself")]
    return (_directives("#SBATCH", head, site), before,
            _launch("srun", options, site, job), '"$SLURM_NTASKS"')


def _pbs(site: Site, job: Job) -> tuple[list[Line], list[Line], list[Line], str]:
    """Directives of PBS, what comes first, the launch with ``mpiexec``, the number of ranks."""
    chunk = f"{job.nodes}:ncpus={job.ppn * job.threads}:mpiprocs={job.ppn}"
    chunk += f":ngpus={job.gpus}" if job.gpus else ""
    head = [
        Line(f"-N {job.name}", "what qstat shows; the output goes to a file of this name"),
        Line("-j oe", "one file for what the job prints"),
        Line(f"-l walltime={job.time}", "hours:minutes:seconds until PBS ends the job"),
        Line(f"-l select={chunk}", "how many nodes, and what each has to have"),
        Line("-V", "the job has the environment of the shell that submits it"),
        *[Line(f"-A {job.account or YOURS}", "the account is yours to know")]
        * bool(job.account or "account" in site.yours),
        *[Line(f"-q {job.partition or YOURS}", "the queue is yours to know")]
        * bool(job.partition or "queue" in site.yours)]
    options = [Line(f"-n {job.nodes * job.ppn}", "ranks of the job"), *_mpiexec(job)]
    before = [
        Line('cd "${PBS_O_WORKDIR:?this is a job script: start it with qsub}"',
             "PBS starts jobs in the home directory"),
        Line("job=${PBS_JOBID%%.*}", "the number of the job, for names of files")]
    return (_directives("#PBS", head, site), before,
            _launch("mpiexec", options, site, job), str(job.nodes * job.ppn))


def _directives(mark: str, job: list[Line], site: Site) -> list[Line]:
    """The job's directives, and those of the site's that set what the job does not set itself."""
    given = {_option(line) for line in job}
    return [Line(f"{mark} {line.text}", line.why)
            for line in (*job, *(each for each in site.directives if _option(each) not in given))]


def _option(directive: Line) -> str:
    """What a directive sets: ``--partition``, ``-q``, ``-l walltime``."""
    match = re.match("(-l )?[^ =]+", directive.text)
    return match[0] if match else directive.text


def _mpiexec(job: Job) -> list[Line]:
    """Ranks of a node, and their cores, as the launchers of MPI libraries want them."""
    bound = "every rank stays on its cores"
    if job.mpi == "openmpi":
        return [Line(f"--map-by ppr:{job.ppn}:node:pe={job.threads}", "ranks of each node"),
                Line("--bind-to core", bound)]
    if job.mpi == "cray":
        return [Line(f"--ppn {job.ppn}", "ranks of each node"),
                Line(f"--depth {job.threads} --cpu-bind depth", bound)]
    return [Line(f"-ppn {job.ppn}", "ranks of each node"),
            Line(f"-bind-to core:{job.threads}", bound)]


def _launch(program: str, options: list[Line], site: Site, job: Job) -> list[Line]:
    """The array ``launch``: what stands before a command that every rank is to run."""
    lines = [Line(f"launch=({program}", "what starts every rank"),
             *(Line(f"    {line.text}", line.why) for line in options)]
    variable, value, why = site.device
    if variable and job.gpus:
        value = value.format(gpus=job.gpus)
        lines.append(Line(f"    bash -c 'export {variable}={value}; exec \"$@\"' rank", why))
    return [*lines, Line(")", "")]


def _environment(site: Site, job: Job) -> list[Line]:
    """Shell before the launch: Python, threads, the site's variables."""
    lines = [
        Line("set -e", "a command that fails ends the job"),
        Line(f"source {shlex.quote(job.activate)}", "the Python environment") if job.activate else
        Line("", "the Python environment is the one that was active when the job was submitted; "
                 "or write here: source .venv/bin/activate"),
        Line(f"export OMP_NUM_THREADS={_threads(site, job)}",
             "threads of NumPy and of the program"),
        *site.settings,
        *(_training(job) if job.train else ())]
    if job.gpus and job.ppn > job.gpus:
        lines.append(Line("", "several ranks share a device: they take turns unless MPS runs on "
                              "every node; your site's guide says how to start it"))
    if job.nodes >= MANY_NODES:
        lines.append(Line("", "at this many nodes copy the Python environment to each of them "
                              "first (sbcast, or a container): thousands of ranks that import "
                              "from one file system take minutes"))
    return lines


def _training(job: Job) -> list[Line]:
    """What a program that trains wants to know; ranks meet through MPI, so no address is set."""
    return [
        Line("export PYTHONUNBUFFERED=1", "losses show when they are printed"),
        Line("", "ranks meet through MPI: neither torchrun nor MASTER_ADDR is needed; hpccoll run "
                 "sets RANK, LOCAL_RANK and WORLD_SIZE"),
        Line("", "where does the time of a step go? Write here: export HPCCOLL_TRACE=trace-$job "
                 "and afterwards: hpccoll trace report trace-$job")]


def _threads(site: Site, job: Job) -> str:
    """Threads of a rank: one to a core, however many the job is given when it is submitted."""
    if site.scheduler == "pbs":
        return str(job.threads)
    cpus = "SLURM_CPUS_PER_TASK"
    return f"${cpus}" if site.smt == 1 else f"$(({cpus} / {site.smt}))"


def _run(job: Job, ranks: str) -> list[Line]:
    """The check before the program, and the program."""
    return [
        Line(f'if ! "${{launch[@]}}" python -m hpccoll doctor --ranks {ranks}; then',
             "one job of all ranks, or as many jobs of one rank each? Stop unless all is well"),
        Line('    echo "job $job stops: hpccoll doctor says above why" >&2', ""),
        Line("    exit 1", ""),
        Line("fi", ""),
        Line("", "the program, with what stands behind the script's name when it is submitted; "
                 "under hpccoll run or python -m mpi4py an uncaught exception ends the whole job "
                 "instead of leaving the other ranks waiting"),
        Line(f'"${{launch[@]}}" {job.command} "$@"', "")]
