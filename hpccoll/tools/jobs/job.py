"""Contents of a job: the user's settings, validated and completed with those of the site."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from hpccoll.errors import ArgumentError
from hpccoll.tools.jobs.site import LAUNCH, LAUNCHERS, Site
from hpccoll.tools.jobs.sites import find

#: Default command.
BENCH = "python -m hpccoll bench allreduce"
#: Default command of a job that trains.
TRAIN = "python -m hpccoll run train.py"
#: Separators of the numbers of a time in Slurm's forms -> the seconds of each number.
FORMS = {"": (60,), ":": (60, 1), "::": (3600, 60, 1), "-": (86400, 3600),
         "-:": (86400, 3600, 60), "-::": (86400, 3600, 60, 1)}


@dataclass(frozen=True)
class Job:
    """Contents of a job script.

    Attributes:
        nodes, ppn: nodes, and ranks of each; ``ppn`` 0 means the site's default.
        threads: threads of a rank; 0 means an equal share of the node's cores, or 1.
        gpus: devices of a node; -1 means the site's default.
        mpi: MPI library; ``""`` means the site's default.
        launcher: program that starts the ranks; ``""`` means the batch system's default.
        time: limit in one of Slurm's forms, whatever the batch system.
        account, partition, qos: values of the user; if the site requires them, placeholders.
        clean: True for a job without the submitting shell's variables: modules and the Python
            environment are loaded in the script.
        interactive: True for a shell in a job instead of a submitted script.
        train: True if the program trains a model: a rank for each device by default.
        command: shell command of every rank.
    """

    site: str = "generic"
    nodes: int = 2
    ppn: int = 0
    threads: int = 0
    gpus: int = -1
    mpi: str = ""
    launcher: str = ""
    time: str = "00:10:00"
    name: str = "hpccoll"
    account: str = ""
    partition: str = ""
    qos: str = ""
    activate: str = ""
    clean: bool = False
    interactive: bool = False
    train: bool = False
    command: str = BENCH


def complete(job: Job) -> tuple[Site, Job]:
    """Return the job with the site's values for omitted fields."""
    site = find(job.site)
    if job.mpi and job.mpi not in LAUNCH:
        raise ArgumentError.unknown_word("--mpi", job.mpi, LAUNCH)
    if job.qos and site.scheduler != "slurm":
        raise ArgumentError("--qos", f"{site.scheduler} on {job.site} has no QOS",
                            "name a queue with --partition")
    _check_launch(site, job)
    gpus = site.gpus if job.gpus < 0 else job.gpus
    job = replace(job, ppn=job.ppn or job.train and gpus or site.ppn, gpus=gpus,
                  mpi=job.mpi or site.mpi,
                  launcher=job.launcher or LAUNCHERS[site.scheduler][0], time=_clock(job.time))
    # With fixed positions on a node, fewer ranks do not get more threads.
    share = site.cores // (len(site.cpus) or job.ppn)
    _check_cores(site, job, share)
    _check_gpus(site, job)
    return site, replace(job, threads=job.threads or max(1, share))


def _check_launch(site: Site, job: Job) -> None:
    known = LAUNCHERS[site.scheduler]
    if job.launcher and job.launcher not in known:
        raise ArgumentError("--launcher", f"{job.launcher!r} does not start ranks in a job of "
                                          f"{site.scheduler}", f"choose {' or '.join(known)}")
    if job.launcher == "mpirun" and any(line.text.startswith("--gpus-per-task")
                                        for line in site.devices):
        raise ArgumentError("--launcher", f"srun assigns the devices of {job.site}",
                            "leave it out")
    if job.clean and (job.interactive or site.scheduler == "flux"):
        raise ArgumentError("--clean", "only Slurm and PBS scripts support it", "leave it out")


def _check_cores(site: Site, job: Job, share: int) -> None:
    threads = max(job.threads, 1)
    if site.cpus and job.ppn > len(site.cpus):
        raise ArgumentError("--ppn", f"{job.ppn} ranks exceed the {len(site.cpus)} GPU parts of a "
                                     f"node of {job.site}")
    if site.cpus and threads > share:
        raise ArgumentError("--threads", f"{threads} threads exceed the {share} cores per device "
                                         f"of {job.site}", f"choose {share} at most")
    if site.cores and job.ppn * threads > site.cores:
        raise ArgumentError("--ppn", f"{job.ppn} ranks of {threads} threads exceed the "
                                     f"{site.cores} cores of a node of {job.site}")


def _check_gpus(site: Site, job: Job) -> None:
    if job.gpus and not site.gpus:
        raise ArgumentError("--gpus", f"{job.site} has no devices", "use --site gpu")
    if not job.gpus or not site.device_per_rank:
        return
    if job.gpus not in (site.gpus, job.ppn):
        raise ArgumentError("--gpus", f"{job.site} gives each rank one device: {job.ppn} ranks, "
                                      f"{job.gpus} devices", "omit it, and choose --ppn")
    if job.ppn > site.gpus:
        raise ArgumentError("--ppn", f"{job.ppn} ranks exceed the {site.gpus} devices of a node of "
                                     f"{job.site}",
                            "choose fewer ranks, or --gpus 0")


def _clock(time: str) -> str:
    """Return a time in any of Slurm's forms as hours:minutes:seconds, which PBS accepts too."""
    numbers, marks = re.split("[:-]", time), re.sub("[0-9]", "", time)
    if marks not in FORMS or not all(numbers):
        raise ArgumentError("--time", f"cannot read {time!r}", "write it like 01:30:00")
    seconds = sum(int(number) * unit for number, unit in zip(numbers, FORMS[marks]))
    if not seconds:  # no limit for Slurm, invalid for PBS
        raise ArgumentError("--time", f"{time!r} is not a time limit", "write it like 01:30:00")
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
