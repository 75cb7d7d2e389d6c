"""Description of a site, and of the start of ranks of each MPI library."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

#: Placeholder for the user's values.
YOURS = "CHANGE-ME"


class Line(NamedTuple):
    """A line of a script, and its reason."""

    text: str
    why: str


class Library(NamedTuple):
    """Start of the ranks of an MPI library.

    Attributes:
        plugin: value of ``srun --mpi``; empty if the site's module selects it.
        settings: further variables for ``srun``.
    """

    plugin: str
    why: str
    settings: tuple[Line, ...] = ()


#: MPI libraries by name.
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
#: Batch system -> launchers in its jobs; the first one is the default.
LAUNCHERS = {"slurm": ("srun", "mpirun"), "pbs": ("mpiexec",), "flux": ("flux",)}


@dataclass(frozen=True)
class Site:
    """One kind of cluster.

    Attributes:
        checked: date of that page, or of reading it; empty for manuals.
        mpi: key of :data:`LAUNCH`; only ``srun`` uses its plug-in.
        ppn: default ranks per node.
        cores: cores of a node that ranks may have; 0 if unknown.
        smt: Slurm CPUs per core.
        gres: True if devices are requested by ``--gres`` instead of ``--gpus-per-node``.
        chunk: PBS selection for each node, instead of its processors and devices.
        yours: directives with a value of the user: ``account``, ``partition``, ``qos``.
        cpu_bind: value of ``srun --cpu-bind``, and why.
        cpus: first processors of the local ranks in their order, instead of ``cpu_bind``; each
            rank may have its equal part of the cores from there on.
        bind: options of ``mpiexec`` for a node with all its ranks, instead of the usual ones.
        devices: ``srun`` options for devices, each with its reason.
        device: variable that selects a rank's device, its value, and why; ``{local}`` is the rank's
            number on its node, ``{gpus}`` the number of devices.
        wrapper: program of the site that selects a rank's device, instead of ``device``.
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
        """Return True if the batch system gives every rank a device: as many devices as ranks."""
        return any("per-task" in line.text for line in self.devices)
