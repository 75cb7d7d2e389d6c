"""What a job script has to know about a site: binding, devices, launcher, variables.

Facts come from the sites' own user guides, named in ``source``. Partitions, accounts and
qualities of service are the user's: they are placeholders in a script until given.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from hpccoll.errors import ArgumentError

#: Placeholder for what only the user knows.
YOURS = "CHANGE-ME"


class Line(NamedTuple):
    """A line of a script, and why it is there."""

    text: str
    why: str


class Launch(NamedTuple):
    """How ``srun`` starts the ranks of an MPI library."""

    plugin: str
    why: str


#: MPI library -> its plug-in.
LAUNCH = {
    "mpich": Launch("pmi2", "MPICH, MVAPICH and Intel MPI ask for PMI-2"),
    "openmpi": Launch("pmix", "Open MPI asks for PMIx"),
    "cray": Launch("cray_shasta", "HPE Cray MPICH has a plug-in of its own"),
}


@dataclass(frozen=True)
class Site:
    """One kind of cluster.

    Attributes:
        title, source: what it is, and where its facts come from.
        scheduler: ``slurm`` or ``pbs``.
        mpi: key of :data:`LAUNCH`; with PBS the launcher is ``mpiexec`` for every library.
        ppn: ranks per node, unless the user says otherwise.
        cores: cores of a node that ranks may have; 0 where nobody knows.
        smt: Slurm CPUs per core.
        gpus: devices of a node.
        directives: of the batch system, beside the job's size and time.
        yours: directives whose value is the user's: ``account``, ``partition``, ``qos``.
        cpu_bind: value of ``srun --cpu-bind``, and why.
        cpus: first processors of the local ranks in their order, in place of ``cpu_bind``; each
            rank may have its equal part of the cores from there on.
        devices: ``srun`` options for devices, each with its reason.
        device: variable that picks a rank's device, its value, and why.
        settings: lines of shell before the launch.
    """

    title: str
    source: str
    scheduler: str = "slurm"
    mpi: str = "mpich"
    ppn: int = 2
    cores: int = 0
    smt: int = 1
    gpus: int = 0
    directives: tuple[Line, ...] = ()
    yours: tuple[str, ...] = ()
    cpu_bind: Line = Line("cores", "every rank stays on its cores")
    cpus: tuple[int, ...] = ()
    devices: tuple[Line, ...] = ()
    device: tuple[str, str, str] = ("", "", "")
    settings: tuple[Line, ...] = ()

    @property
    def device_per_rank(self) -> bool:
        """Whether Slurm gives every rank a device, so that their number is that of the ranks."""
        return any("per-task" in line.text for line in self.devices)


_NO_GPU_BIND = Line("--gpu-bind=none",
                    "a rank sees all devices of its node: bound ones could not read each "
                    "other's memory (CUDA IPC)")
_GPU_SUPPORT = Line("export MPICH_GPU_SUPPORT_ENABLED=1",
                    "Cray MPICH takes device buffers only when told so")
_RANKS_DEVICE = "each rank has a device of its own, picked before anything starts CUDA"

SITES: dict[str, Site] = {
    "generic": Site("a CPU cluster under Slurm", "Slurm's manual pages"),
    "gpu": Site(
        "a cluster with NVIDIA devices under Slurm", "Slurm's manual pages",
        ppn=4, gpus=4, devices=(_NO_GPU_BIND,),
        device=("CUDA_VISIBLE_DEVICES", "$((SLURM_LOCALID % {gpus}))", _RANKS_DEVICE)),
    "cray": Site(
        "an HPE Cray EX with devices, under Slurm", "HPE Cray MPICH manual page intro_mpi(3)",
        mpi="cray", ppn=4, gpus=4, yours=("account", "partition"), devices=(_NO_GPU_BIND,),
        device=("CUDA_VISIBLE_DEVICES", "$((SLURM_LOCALID % {gpus}))",
                _RANKS_DEVICE + "; for AMD devices write ROCR_VISIBLE_DEVICES"),
        settings=(_GPU_SUPPORT,
                  Line("export MPICH_OFI_NIC_POLICY=GPU", "a rank uses the network card next to "
                                                          "its device"),
                  Line("export MPICH_VERSION_DISPLAY=1", "the log names the MPI library"))),
    "perlmutter": Site(
        "Perlmutter's GPU nodes (NERSC)",
        "WarpX's machine files; NERSC's own pages were not seen",
        mpi="cray", ppn=4, cores=64, smt=2, gpus=4, yours=("account", "qos"),
        directives=(Line("--constraint=gpu", "nodes with devices"),
                    Line("--exclusive", "no other job on our nodes")),
        devices=(_NO_GPU_BIND,),
        device=("CUDA_VISIBLE_DEVICES", "$(({gpus} - 1 - SLURM_LOCALID % {gpus}))",
                _RANKS_DEVICE + "; in reverse, because core 0 is next to the last device"),
        settings=(Line("export MPICH_OFI_NIC_POLICY=GPU", "a rank uses the network card next to "
                                                          "its device"),)),
    "frontier": Site(
        "Frontier (OLCF)", "olcf/olcf-user-docs",
        mpi="cray", ppn=8, cores=56, gpus=8, yours=("account", "partition"),
        devices=(Line("--gpus-per-task=1", "each rank has one half of an MI250X"),
                 Line("--gpu-bind=closest", "the one next to its cores")),
        settings=(_GPU_SUPPORT,
                  Line("export FI_MR_CACHE_MONITOR=kdreg2", "how the network library notices "
                                                            "freed memory"),
                  Line("export MPICH_VERSION_DISPLAY=1", "the log names the MPI library"))),
    "lumi": Site(
        "LUMI-G (CSC)", "Lumi-supercomputer/lumi-userguide",
        mpi="cray", ppn=8, cores=56, gpus=8, yours=("account",),
        directives=(Line("--partition=standard-g", "nodes with devices"),),
        cpus=(49, 57, 17, 25, 1, 9, 33, 41),
        device=("ROCR_VISIBLE_DEVICES", "$((SLURM_LOCALID % {gpus}))",
                _RANKS_DEVICE.replace("CUDA", "HIP")),
        settings=(_GPU_SUPPORT,)),
    "alps": Site(
        "Alps' GH200 nodes (CSCS)", "eth-cscs/cscs-docs",
        mpi="cray", ppn=4, cores=288, gpus=4, yours=("account",),
        devices=(Line("--gpus-per-task=1", "each rank has the device next to its cores"),),
        settings=(_GPU_SUPPORT,)),
    "archer2": Site(
        "ARCHER2 (EPCC)", "ARCHER2-HPC/archer2-docs",
        mpi="cray", ppn=128, cores=128, yours=("account", "partition", "qos"),
        directives=(Line("--distribution=block:block", "fill node by node, and each in order"),
                    Line("--hint=nomultithread", "one rank to a core"))),
    "pbs": Site("a CPU cluster under PBS", "PBS Professional's manual pages", scheduler="pbs"),
    "polaris": Site(
        "Polaris (ALCF)", "argonne-lcf/user-guides",
        scheduler="pbs", mpi="cray", ppn=4, cores=32, gpus=4, yours=("account", "queue"),
        directives=(Line("-l filesystems=home:eagle", "file systems that the job needs"),),
        device=("CUDA_VISIBLE_DEVICES", "$(({gpus} - 1 - PMI_LOCAL_RANK % {gpus}))",
                _RANKS_DEVICE + "; in reverse, because core 0 is next to the last device"),
        settings=(_GPU_SUPPORT,)),
}


def find(name: str) -> Site:
    """Look a site up.

    Raises:
        ArgumentError: it is unknown; the message lists the known ones.
    """
    if name not in SITES:
        raise ArgumentError("--site", f"{name!r} is unknown", f"choose from {', '.join(SITES)}")
    return SITES[name]
