"""What a site is, and how ranks of each MPI library are started there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

#: Placeholder for what only the user knows.
YOURS = "CHANGE-ME"


class Line(NamedTuple):
    """A line of a script, and why it is there."""

    text: str
    why: str


class Library(NamedTuple):
    """How the ranks of an MPI library are started.

    Attributes:
        plugin: of ``srun --mpi``; empty where the site's module chooses.
        why: the reason.
        settings: what ``srun`` needs beside it.
    """

    plugin: str
    why: str
    settings: tuple[Line, ...] = ()


#: MPI library -> how it is started.
LAUNCH = {
    "mpich": Library("pmi2", "MPICH and MVAPICH use PMI-2"),
    "openmpi": Library("pmix", "Open MPI uses PMIx"),
    "cray": Library("cray_shasta", "HPE Cray MPICH has its own plug-in"),
    "intel": Library("pmi2", "Intel MPI uses PMI-2", (Line(
        'export I_MPI_PMI_LIBRARY="${I_MPI_PMI_LIBRARY:-/usr/lib64/libpmi2.so}"',
        "path of Slurm's PMI-2 library for Intel MPI: ask your site, or find / -name "
        "'libpmi2.so*'"),)),
    "site": Library("", "the site's MPI module selects srun's plug-in"),
}
#: Batch system -> what may start ranks in its jobs; the first does unless another is asked for.
LAUNCHERS = {"slurm": ("srun", "mpirun"), "pbs": ("mpiexec",), "flux": ("flux",)}


@dataclass(frozen=True)
class Site:
    """One kind of cluster.

    Attributes:
        title, source: what it is, and the page that its facts come from.
        checked: date of that page, or of the day on which it was read; empty for manuals.
        scheduler: key of :data:`LAUNCHERS`.
        mpi: key of :data:`LAUNCH`; only ``srun`` asks for its plug-in.
        ppn: ranks per node, unless the user says otherwise.
        cores: cores of a node that ranks may have; 0 where nobody knows.
        smt: Slurm CPUs per core.
        gpus: devices of a node.
        gres: whether devices are asked for by ``--gres``, not by ``--gpus-per-node``.
        chunk: what PBS is to select of each node, in place of its processors and devices.
        directives: of the batch system, beside the job's size and time.
        yours: directives whose value is the user's: ``account``, ``partition``, ``qos``.
        modules: lines that load the site's MPI and Python.
        cpu_bind: value of ``srun --cpu-bind``, and why.
        cpus: first processors of the local ranks in their order, in place of ``cpu_bind``; each
            rank may have its equal part of the cores from there on.
        bind: options of ``mpiexec`` for a node with all its ranks, in place of the usual ones.
        devices: ``srun`` options for devices, each with its reason.
        device: variable that picks a rank's device, its value, and why; ``{local}`` is the rank's
            number on its node, ``{gpus}`` the number of devices.
        wrapper: program of the site's that picks a rank's device, in place of ``device``.
        settings: lines of shell before the launch.
    """

    title: str
    source: str
    checked: str = ""
    scheduler: str = "slurm"
    mpi: str = "mpich"
    ppn: int = 2
    cores: int = 0
    smt: int = 1
    gpus: int = 0
    gres: bool = False
    chunk: str = ""
    directives: tuple[Line, ...] = ()
    yours: tuple[str, ...] = ()
    modules: tuple[Line, ...] = ()
    cpu_bind: Line = Line("cores", "bind every rank to its cores")
    cpus: tuple[int, ...] = ()
    bind: Line | None = None
    devices: tuple[Line, ...] = ()
    device: tuple[str, str, str] = ("", "", "")
    wrapper: Line | None = None
    settings: tuple[Line, ...] = ()

    @property
    def device_per_rank(self) -> bool:
        """Whether the batch system gives every rank a device: their number is that of the ranks."""
        return any("per-task" in line.text for line in self.devices)
