"""Sites: binding, devices, launcher, modules and variables for job scripts.

Facts come from the sites' public user guides, named in ``source`` with the date of the page; if a
site's own page was not read, ``source`` says so. No script for a named site was run there.
Partitions, accounts and qualities of service depend on the user: they are placeholders until
given.
"""

from __future__ import annotations

from dataclasses import replace

from hpccoll.errors import ArgumentError
from hpccoll.tools.jobs.site import YOURS, Line, Site

_NO_GPU_BIND = Line("--gpu-bind=none",
                    "all devices are visible to all ranks of a node, as CUDA IPC requires")
_RANKS_DEVICE = "select a device per rank before CUDA starts"
_REVERSED = "$(({gpus} - 1 - {local} % {gpus}))"
_IN_TURN = "$(({local} % {gpus}))"
_NIC = Line("export MPICH_OFI_NIC_POLICY=GPU",
            "use the network card next to the rank's device")
_VERSION = Line("export MPICH_VERSION_DISPLAY=1", "print the MPI library")
_OWN_MODULES = Line(f"module load {YOURS}", "the site's MPI, and the Python of mpi4py")


def _gpu_support(remedy: str) -> Line:
    """Return the line that requires an mpi4py with the GPU transfer library (GTL)."""
    return Line("export MPICH_GPU_SUPPORT_ENABLED=1",
                "enables device buffers in Cray MPICH. MPI_Init fails if mpi4py is not linked to "
                f"the GPU transfer library (GTL): {remedy}, or omit this line (docs/slurm.md)")


_LLNL = Site(
    "Tuolumne (LLNL)",
    "WarpX's machine files for Tuolumne, and job scripts of others; LLNL's own pages were not read",
    checked="2026-11-23", scheduler="flux", mpi="cray", ppn=4, cores=64, gpus=4,
    yours=("account", "queue"),
    modules=(Line(f"module load craype-accel-amd-gfx942 rocm cray-python/{YOURS}",
                  "devices, and the Python of mpi4py"),),
    devices=(Line("--gpus-per-task=1", "one MI300A per rank"),
             Line("-o gpu-affinity=per-task", "and no other is visible")),
    settings=(_gpu_support("build it with craype-accel-amd-gfx942 loaded"),))

SITES: dict[str, Site] = {
    "generic": Site("a CPU cluster under Slurm", "Slurm's manual pages"),
    "gpu": Site(
        "a cluster with NVIDIA devices under Slurm", "Slurm's manual pages",
        ppn=4, gpus=4, devices=(_NO_GPU_BIND,),
        device=("CUDA_VISIBLE_DEVICES", _IN_TURN, _RANKS_DEVICE)),
    "cray": Site(
        "an HPE Cray EX with devices, under Slurm", "HPE Cray MPICH manual page intro_mpi(3)",
        mpi="cray", ppn=4, gpus=4, yours=("account", "partition"), devices=(_NO_GPU_BIND,),
        modules=(Line(f"module load craype-accel-{YOURS} cray-python",
                      "devices, and the Python of mpi4py"),),
        device=("CUDA_VISIBLE_DEVICES", _IN_TURN,
                _RANKS_DEVICE + "; for AMD devices write ROCR_VISIBLE_DEVICES"),
        settings=(_gpu_support("build it with the module craype-accel-... loaded"), _NIC,
                  _VERSION)),
    "perlmutter": Site(
        "Perlmutter's GPU nodes (NERSC)",
        "WarpX's machine files for Perlmutter; NERSC's own pages were not read",
        checked="2026-11-23",
        mpi="cray", ppn=4, cores=64, smt=2, gpus=4, yours=("account", "qos"),
        directives=(Line("--constraint=gpu", "nodes with devices"),
                    Line("--exclusive", "exclusive nodes")),
        modules=(Line(f"module load PrgEnv-gnu craype-accel-nvidia80 cray-python/{YOURS}",
                      "devices, and the Python of mpi4py"),),
        devices=(_NO_GPU_BIND,),
        device=("CUDA_VISIBLE_DEVICES", _REVERSED,
                _RANKS_DEVICE + "; in reverse, because core 0 is next to the last device"),
        settings=(_NIC,)),
    "frontier": Site(
        "Frontier (OLCF)", "https://docs.olcf.ornl.gov/systems/frontier_user_guide.html",
        checked="2026-07-22",
        mpi="cray", ppn=8, cores=56, gpus=8, yours=("account",),
        directives=(Line("--partition=batch", "the default; extended has a longer limit"),),
        modules=(Line("module load PrgEnv-gnu craype-accel-amd-gfx90a rocm miniforge3",
                      "devices, and the Python of mpi4py"),),
        devices=(Line("--gpus-per-task=1", "one half of an MI250X per rank"),
                 Line("--gpu-bind=closest", "the one next to its cores")),
        settings=(_gpu_support("build it with craype-accel-amd-gfx90a loaded"),
                  Line("export FI_MR_CACHE_MONITOR=kdreg2", "detects freed memory"), _VERSION)),
    "lumi": Site(
        "LUMI-G (CSC)",
        "https://docs.lumi-supercomputer.eu/runjobs/scheduled-jobs/lumig-job/",
        checked="2024-10-15",
        mpi="cray", ppn=8, cores=56, gpus=8, yours=("account",),
        directives=(Line("--partition=standard-g", "nodes with devices"),),
        modules=(Line(f"module load LUMI/{YOURS} partition/G cray-python",
                      "devices, and the Python of mpi4py"),),
        cpus=(49, 57, 17, 25, 1, 9, 33, 41),
        device=("ROCR_VISIBLE_DEVICES", _IN_TURN, _RANKS_DEVICE.replace("CUDA", "HIP")),
        settings=(_gpu_support("build it with craype-accel-amd-gfx90a loaded"),)),
    "alps": Site(
        "Alps' GH200 nodes (CSCS)", "https://docs.cscs.ch/running/slurm/",
        checked="2026-08-20",
        mpi="cray", ppn=4, cores=288, gpus=4, yours=("account",),
        directives=(Line(f"--uenv=prgenv-gnu/{YOURS}", "MPI, Python and compilers come in a uenv; "
                                                       "uenv image find shows the versions"),
                    Line("--view=default", "all of them at once")),
        devices=(Line("--gpus-per-task=1", "the device next to the rank's cores"),),
        settings=(_gpu_support("use the uenv's version"),)),
    "leonardo": Site(
        "Leonardo's Booster (CINECA)", "https://docs.hpc.cineca.it/hpc/leonardo.html",
        checked="2026-11-23",
        mpi="openmpi", ppn=4, cores=32, gpus=4, gres=True, yours=("account",),
        directives=(Line("--partition=boost_usr_prod", "nodes with devices"),),
        modules=(Line(f"module load python/{YOURS} openmpi/{YOURS}",
                      "the Python and the MPI library of mpi4py"),),
        devices=(_NO_GPU_BIND,), device=("CUDA_VISIBLE_DEVICES", _IN_TURN, _RANKS_DEVICE)),
    "marenostrum5": Site(
        "MareNostrum 5's accelerated nodes (BSC)",
        "job scripts of users (b-fg/SmartSOD2D, horses3d-gpu); BSC's own pages were not read",
        checked="2026-11-23",
        mpi="site", ppn=4, cores=80, gpus=4, gres=True, yours=("account", "qos"),
        modules=(_OWN_MODULES,), devices=(_NO_GPU_BIND,),
        device=("CUDA_VISIBLE_DEVICES", _IN_TURN, _RANKS_DEVICE)),
    "jupiter": Site(
        "JUPITER's Booster (JSC)", "https://apps.fz-juelich.de/jsc/hps/jupiter/batchsystem.html "
        "and configuration.html", checked="2026-11-23",
        mpi="site", ppn=4, cores=288, gpus=4, gres=True, yours=("account", "partition"),
        modules=(_OWN_MODULES,), devices=(_NO_GPU_BIND,),
        device=("CUDA_VISIBLE_DEVICES", _IN_TURN, _RANKS_DEVICE)),
    "tuolumne": _LLNL,
    "elcapitan": replace(_LLNL, title="El Capitan (LLNL), as Tuolumne"),
    "pbs": Site("a CPU cluster under PBS", "PBS Professional's manual pages", scheduler="pbs"),
    "polaris": Site(
        "Polaris (ALCF)", "https://docs.alcf.anl.gov/running-jobs/example-job-scripts/",
        checked="2026-08-19",
        scheduler="pbs", mpi="cray", ppn=4, cores=32, gpus=4, yours=("account", "queue"),
        chunk="system=polaris",
        directives=(Line("-l place=scatter", "each part on a separate node"),
                    Line("-l filesystems=home:eagle", "file systems of the job")),
        modules=(Line("module use /soft/modulefiles; module load conda; conda activate base",
                      "the site's Python; import mpi4py.MPI before everything else there"),),
        device=("CUDA_VISIBLE_DEVICES", _REVERSED,
                _RANKS_DEVICE + "; in reverse, because core 0 is next to the last device"),
        settings=(_gpu_support("build it with craype-accel-nvidia80 loaded"),)),
    "aurora": Site(
        "Aurora (ALCF)", "https://docs.alcf.anl.gov/aurora/running-jobs-aurora/",
        checked="2026-08-19",
        scheduler="pbs", mpi="cray", ppn=12, cores=96, gpus=12, yours=("account", "queue"),
        chunk="system=aurora",
        directives=(Line("-l place=scatter", "each part on a separate node"),
                    Line("-l filesystems=home:flare", "file systems of the job")),
        modules=(Line("module load frameworks", "the site's Python with mpi4py; it makes each tile "
                                                "a device: omit gpu_tile_compact.sh then"),),
        bind=Line("--cpu-bind=list:1-8:9-16:17-24:25-32:33-40:41-48:53-60:61-68:69-76:77-84"
                  ":85-92:93-100", "six ranks per socket, as in the guide"),
        wrapper=Line("gpu_tile_compact.sh", "the site's script: one tile of a device per rank"),
        settings=(Line("export MPIR_CVAR_ENABLE_GPU=1",
                       "enables device buffers in the MPI library; 0 is faster for host memory"),
                  )),
}


def find(name: str) -> Site:
    """Return a site by name."""
    if name not in SITES:
        raise ArgumentError.unknown_word("--site", name, SITES)
    return SITES[name]
