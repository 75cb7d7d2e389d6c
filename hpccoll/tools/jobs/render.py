"""Text of a job script: binding, launch and checks for a site, every line with its reason."""

from __future__ import annotations

import shlex
import textwrap
from dataclasses import fields

from hpccoll.tools.jobs.job import BENCH, TRAIN, Job, complete
from hpccoll.tools.jobs.launches import BATCH, directives, launch, ranks
from hpccoll.tools.jobs.site import LAUNCH, YOURS, Line, Site

#: Minimum nodes at which imports of Python from one file system take minutes.
MANY_NODES = 128
#: Column of reasons, and maximum length of lines.
COLUMN, WIDTH = 44, 100

#: Name in ``jobs/`` -> its job.
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
#: MPI library -> pattern in the version text of its mpirun, and its name.
MPIRUN = {"openmpi": ("Open MPI", "Open MPI's"), "mpich": ("HYDRA", "MPICH's"),
          "intel": ("Intel", "Intel MPI's")}


def script(job: Job) -> str:
    """Return the script of a job."""
    given, (site, job) = job, complete(job)
    head = directives(site, job)
    sections = [_first_lines(site, job) + _environment(site, job) + _account_of(job),
                launch(site, job),
                _run(job, ranks(job))]
    text = ["#!/bin/bash", f"# {job.nodes} nodes x {job.ppn} ranks on {site.title}.",
            f"# Created with: {_made_with(given)}", *_comment(_facts(site))]
    if job.interactive:
        return "\n".join([*text, *_opening(site, head), *_join(sections), ""])
    if any(YOURS in line.text and not line.text.startswith("# ") for line in (*head, *sections[0])):
        text += [f"# Replace {YOURS} before use."]
    return "\n".join([*text, *_join([head, *sections]), ""])


def _join(sections: list[list[Line]]) -> list[str]:
    return [line for section in sections for line in ("", *_add_reasons(section))]


def _facts(site: Site) -> str:
    """Return the comment with the source of the site's facts."""
    if not site.checked:
        return f"Source: {site.source}."
    return f"Source: {site.source}; as of {site.checked}. Not tested there."


def _opening(site: Site, head: list[Line]) -> list[str]:
    """Return the comment on how to open the shell of such a script."""
    command = " ".join([BATCH[site.scheduler].interactive, *(line.text for line in head)])
    return [*_comment("Open a shell in a job with the next command, and source this file "
                      "there:"), f"#   {command}"]


def _made_with(job: Job) -> str:
    """Return the command line that generates the script."""
    plain, words = Job(), [f"--site {job.site}", f"--nodes {job.nodes}"]
    for field in fields(Job):
        value = getattr(job, field.name)
        if field.name not in ("site", "nodes", "command") and value != getattr(plain, field.name):
            words.append(f"--{field.name}" + f" {shlex.quote(str(value))}" * (value is not True))
    return f"hpccoll job {' '.join(words)} -- {shlex.quote(job.command)}"


def _add_reasons(lines: list[Line]) -> list[str]:
    """Return lines of a script with their reasons: on the same line if short, or else above."""
    text = []
    for line in lines:
        beside = f"{line.text:<{COLUMN}} # {line.why}"
        if not line.why:
            text += [line.text]
        elif line.text and len(beside) <= WIDTH and not line.text.startswith("#PBS"):
            text += [beside]  # PBS would parse the reason as a part of the directive
        else:
            indent = line.text[:len(line.text) - len(line.text.lstrip())]
            text += [*_comment(line.why, indent), *filter(None, [line.text])]
    return text


def _comment(why: str, indent: str = "") -> list[str]:
    return textwrap.wrap(why, WIDTH, initial_indent=f"{indent}# ", break_on_hyphens=False,
                         subsequent_indent=f"{indent}# ", break_long_words=False)


def _first_lines(site: Site, job: Job) -> list[Line]:
    """Return the first lines: a check for a job, and steps that the batch system omits."""
    batch = BATCH[site.scheduler]
    lines = list(batch.before)
    if job.interactive:
        wrong = f"this is a job script: start it with {batch.submit}"
        lines = [Line(line.text.replace(wrong, "open a shell in a job first, see above"),
                      line.why) for line in lines]
    # With the number, srun takes the first processors and no masks of others.
    if job.launcher == "srun" and not site.cpus:
        lines.append(Line(f"export SRUN_CPUS_PER_TASK={_cpus(site, job)}",
                          "required since Slurm 22.05: srun ignores the job's value"))
    return lines


def _environment(site: Site, job: Job) -> list[Line]:
    """Return the shell lines before the launch: modules, Python, threads, the site's variables."""
    lines = [] if job.interactive else [Line("set -e", "end the job when a command fails")]
    library = LAUNCH[job.mpi].settings if job.launcher == "srun" else ()
    lines += [
        *_modules(site, job), *_python(job),
        Line(f"export OMP_NUM_THREADS={_threads(site, job)}",
             "threads of NumPy and of the program"),
        *library, *site.settings,
        *(_training_lines(job) if job.train else ())]
    if job.gpus and job.ppn > job.gpus:
        lines.append(Line("", "several ranks share a device: start MPS on every node, see your "
                              "site's guide"))
    if job.nodes >= MANY_NODES:
        lines.append(Line("", "copy the Python environment to each node first (sbcast, or a "
                              "container): thousands of ranks that import from one file system "
                              "take minutes"))
    return lines


def _modules(site: Site, job: Job) -> list[Line]:
    """Return the lines that load the site's modules in a clean job, or else name them."""
    if any("uenv" in line.text for line in site.directives):
        return []  # which has the environment already
    modules = site.modules or (Line(f"module load {YOURS}", "the MPI library of mpi4py"),)
    if job.clean and site.scheduler == "slurm":
        modules = (Line("unset SLURM_EXPORT_ENV", "so that srun exports the variables set "
                                                  "below"), *modules)
    if job.clean:
        return list(modules)
    return _asleep("the job inherits the modules of the submitting shell; uncomment to load them "
                   "here",
                   *(line.text for line in modules))


def _asleep(why: str, *lines: str) -> list[Line]:
    """Return commented-out lines: each is complete, with a reason above."""
    return [Line("", why), *(Line(f"# {line}", "") for line in lines)]


def _python(job: Job) -> list[Line]:
    if job.activate:
        return [Line(f"source {shlex.quote(job.activate)}", "the Python environment")]
    if job.clean:
        return [Line(f"source {YOURS}/bin/activate", "the Python environment")]
    return _asleep("the job inherits the Python environment of the submitting shell; uncomment to "
                   "load it here", "source .venv/bin/activate")


def _training_lines(job: Job) -> list[Line]:
    """Return variables for a training program; ranks connect through MPI, without an address."""
    return [
        Line("export PYTHONUNBUFFERED=1", "print losses immediately"),
        Line("", "ranks connect through MPI, without torchrun and MASTER_ADDR; hpccoll run sets "
                 "RANK, LOCAL_RANK and WORLD_SIZE"),
        *_asleep("uncomment to trace the time of a step, then run hpccoll trace report "
                 "trace-$job", "export HPCCOLL_TRACE=trace-$job")]


def _threads(site: Site, job: Job) -> str:
    """Return the threads of a rank: one per core of the submitted job."""
    if site.scheduler != "slurm":
        return str(job.threads)
    if site.smt == 1:
        return _cpus(site, job)
    cpus = _cpus(site, job) if job.interactive else "SLURM_CPUS_PER_TASK"
    return f"$(({cpus} / {site.smt}))"


def _cpus(site: Site, job: Job) -> str:
    """Return the processors of a rank: requested by a script, perhaps not by a shell's salloc."""
    return (f"${{SLURM_CPUS_PER_TASK:-{site.smt}}}" if job.interactive
            else "$SLURM_CPUS_PER_TASK")


def _account_of(job: Job) -> list[Line]:
    """Return a check for an mpirun of another MPI library, which would fail an assertion."""
    if job.launcher != "mpirun" or job.mpi not in MPIRUN:
        return []
    says, whose = MPIRUN[job.mpi]
    return [Line(f'if ! mpirun --version 2>&1 | grep -q "{says}"; then',
                 "check that mpirun belongs to the MPI library"),
            Line(f'    echo "job $job: not {whose} mpirun: \'$(command -v mpirun)\'; load its '
                 'module first" >&2', ""),
            Line("fi", "")]


def _run(job: Job, number: str) -> list[Line]:
    """Return the check before the program, and the program."""
    doctor = f'"${{launch[@]}}" python -m hpccoll doctor --ranks {number}'
    if job.interactive:
        return [Line(doctor, "check the job"),
                *_asleep("then run the program:", f'"${{launch[@]}}" {job.command}')]
    return [
        Line(f"if ! {doctor}; then",
             "check the job; stop on a problem"),
        # srun itself may fail, and an MPI library before Python starts.
        Line('    echo "job $job stops, see above; if doctor could not start: hpccoll doctor --log '
             'FILE" >&2', ""),
        Line("    exit 1", ""),
        Line("fi", ""),
        Line("", "the program, with the script's arguments; hpccoll run and python -m mpi4py end "
                 "the whole job on an uncaught exception"),
        Line(f'"${{launch[@]}}" {job.command} "$@"', "")]
