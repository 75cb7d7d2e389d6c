"""Facts of one rank, and the gather of all of them on rank 0.

A rank's own facts need no messages, so they are reported even if every rank is a job of its own.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.util import cache_from_source
from pathlib import Path

import mpi4py
import numpy
from mpi4py import MPI

import hpccoll
from hpccoll import config
from hpccoll.cuda import (
    RankReport,
    agree_on_ways,
    gpu_direct,
    gpu_links,
    gpu_numa,
    numa_distance,
    pci_address,
    visible_devices,
)
from hpccoll.errors import HpccollError
from hpccoll.machine.discovery import has_fabric
from hpccoll.machine.failures import ulfm_missing
from hpccoll.machine.identity import library_name, library_version, thread_level
from hpccoll.machine.launcher import launcher, launcher_rank
from hpccoll.measure.load import OtherLoad
from hpccoll.runtime.execution.built import executor
from hpccoll.tools.bench.provenance import LAUNCHER, hidden_install
from hpccoll.tools.doctor.shm_cleanup import leftovers
from hpccoll.tune.rules import is_measured

#: Variables that findings use, in addition to those with the prefixes below or HPCCOLL_.
VARIABLES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
#: Prefixes of variables of MPI libraries, their transports and OpenMP.
LIBRARIES = ("OMP_", "MPICH_", "MPIR_CVAR_", "OMPI_MCA_", "I_MPI_", "UCX_", "FI_")
#: Seconds for which the load of other processes is observed.
OBSERVED = 0.5
SHARED_MEMORY, PTRACE_SCOPE = "/dev/shm", "/proc/sys/kernel/yama/ptrace_scope"


@dataclass(frozen=True)
class RankFacts:
    """One rank's facts.

    Attributes:
        rank, size: rank and size in ``MPI.COMM_WORLD``.
        launched: rank and number of ranks from the launcher, -1 if unknown.
        node: smallest rank that shares memory with this one.
        host: name of the host; Slurm's name of the node if there is one.
        versions: versions of software that must be the same on all ranks.
        problem: error in the ``HPCCOLL_`` variables; empty if valid.
        shared_bytes: free bytes for shared memory; -1 if there is none.
        shared, single_copy: True if hpccoll shares memory with the node's other ranks, and
            if it reads theirs directly; ``None`` if not tested.
        layout: topology that hpccoll discovered, and True if its allreduce was right.
        ptrace_scope: the kernel's setting for reading other processes; -1 if unknown.
        devices: addresses of the visible devices; the first one is used.
        nccl, no_nccl: version of NCCL if there are devices, or why there is none.
        device_report: facts about the data paths of devices; ``None`` if no rank has a device.
        gpu_numa, gpu_distance: NUMA group of the used device, and its distance from the rank's
            processors, 10 for the same group; -1 if unknown, or without a device.
        gpu_links: two addresses of devices and their link; from one rank of each node.
        gpu_direct: modules of the kernel that let the network read memory of devices.
        fabric: True if the node has an adapter of a fast network.
        left: bytes, files, and removable files, that dead jobs have left in the node's shared
            memory; from one rank of each node.
        package, hides: the folder that hpccoll is imported from, and the installed one with
            compiled parts that it hides; empty if there is none.
        others: share of the node's cores that processes outside this job use; 0 if unknown.
        compile_seconds: seconds in which each process compiles modules of hpccoll, because Python
            cannot store their bytecode.
        no_recovery: why a job cannot continue after the death of a rank; empty if it can.
        ruled: True if hpccoll's rules for algorithms were measured in such a job.
        table, untimed: the tuning table with times of such a job; why there is none.
    """

    rank: int
    size: int
    launched: tuple[int, int]
    launcher: str
    host: str
    mpi: str
    threads: str
    versions: Mapping[str, str]
    processors: tuple[int, ...]
    variables: Mapping[str, str]
    problem: str = ""
    shared_bytes: int = -1
    ptrace_scope: int = -1
    devices: tuple[str, ...] = ()
    node: int = -1
    layout: str = ""
    right: bool | None = None
    shared: bool | None = None
    single_copy: bool | None = None
    nccl: str = ""
    no_nccl: str = ""
    device_report: RankReport | None = None
    gpu_numa: int = -1
    gpu_distance: int = -1
    gpu_links: tuple[tuple[str, str, str], ...] = ()
    gpu_direct: tuple[str, ...] = ()
    fabric: bool = False
    left: tuple[int, int, int] = (0, 0, 0)
    others: float = 0.0
    no_recovery: str = ""
    ruled: bool = True
    table: str = ""
    untimed: str = ""
    package: str = ""
    hides: str = ""
    compile_seconds: float = 0.0
    slurm: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_uncompiled(self) -> bool:
        """True if calls run in Python, and not because ``HPCCOLL_EXECUTOR`` says so."""
        return (self.versions.get("executor") == "python"
                and self.variables.get("HPCCOLL_EXECUTOR") != "python")


def local_facts(environ: Mapping[str, str] = os.environ) -> RankFacts:
    """Return the facts of a rank that need no communication."""
    world, problem, runs = MPI.COMM_WORLD, "", ""
    try:
        runs = executor(config.load(environ))
    except HpccollError as error:
        problem = str(error)
    versions = {
        "MPI library": library_version(), "hpccoll": f"{hpccoll.__version__} (build {build()})",
        "mpi4py": mpi4py.__version__, "NumPy": numpy.__version__, "executor": runs,
        "Python": platform.python_version(), "interpreter": sys.executable}
    seen, processors = visible_devices(), tuple(sorted(os.sched_getaffinity(0)))
    group = gpu_numa(pci_address(seen[0])) if seen else -1
    return RankFacts(
        world.Get_rank(), world.Get_size(), launcher_rank(environ), launcher(environ),
        environ.get("SLURMD_NODENAME") or platform.node(), library_name(),
        thread_level(), versions, processors,
        {name: value for name, value in sorted(environ.items())
         if name.startswith(("HPCCOLL_", *LIBRARIES)) and not name.startswith(LAUNCHER)
         or name in VARIABLES},
        problem, _free(SHARED_MEMORY), _number(PTRACE_SCOPE), seen,
        gpu_numa=group, gpu_distance=numa_distance(processors, group),
        gpu_direct=tuple(gpu_direct()), fabric=has_fabric(),
        slurm={name: value for name, value in sorted(environ.items())
               if name.startswith(("SLURM_", "SRUN_"))},
        no_recovery=ulfm_missing(environ),
        package=str(Path(hpccoll.__file__).parent), hides=hidden_install(),
        compile_seconds=compile_time())


def compile_time() -> float:
    """Return the seconds in which the loaded modules of hpccoll without bytecode are compiled."""
    start, package = time.perf_counter(), f"{Path(hpccoll.__file__).parent}{os.sep}"
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None) or ""
        if (path.startswith(package) and path.endswith(".py")
                and not os.path.exists(cache_from_source(path))):
            compile(Path(path).read_bytes(), path, "exec", dont_inherit=True)
    return time.perf_counter() - start


def gather(mine: RankFacts) -> list[RankFacts] | None:
    """Gather the facts of all ranks; collective over ``MPI.COMM_WORLD``, ``None`` but on rank 0."""
    world = MPI.COMM_WORLD
    load = OtherLoad(world)
    node_comm = world.Split_type(MPI.COMM_TYPE_SHARED, key=world.Get_rank())
    try:
        mine = replace(mine, node=node_comm.bcast(world.Get_rank()))
        if node_comm.Get_rank() == 0:
            found = leftovers()
            mine = replace(mine, left=(sum(each.nbytes for each in found), len(found),
                                       sum(each.sure for each in found)),
                           gpu_links=tuple((*pair, link)
                                           for pair, link in gpu_links().links.items()))
        if mine.devices:
            from hpccoll.cuda import nccl_version
            number, problem = nccl_version()
            mine = replace(mine, nccl=number, no_nccl=problem)
    finally:
        node_comm.Free()
    if world.allreduce(bool(mine.devices), MPI.LOR):
        mine = replace(mine, device_report=agree_on_ways(world)[mine.rank])
    # Unequal settings would make the ranks diverge; they are a finding, and are not tested.
    settings = _settings(mine)
    if len(set(world.allgather((settings, bool(mine.problem))))) == 1 and not mine.problem:
        mine = _test_hpccoll(mine)
    return world.gather(replace(mine, others=load.share(OBSERVED)))


def _settings(facts: RankFacts) -> tuple[tuple[str, str], ...]:
    return tuple((k, v) for k, v in facts.variables.items() if k.startswith("HPCCOLL_"))


def _test_hpccoll(mine: RankFacts) -> RankFacts:
    """Test hpccoll on all ranks: its layout, shared memory, and one allreduce."""
    from hpccoll.runtime.attributes import existing_context

    comm = hpccoll.Comm(MPI.Intracomm(MPI.COMM_WORLD).Dup())
    try:
        x = numpy.full(1000, mine.rank + 1, dtype="i8")
        out = numpy.zeros_like(x)
        with comm.using(allreduce="ring" if mine.size < 1000 else "recursive_doubling"):
            comm.Allreduce(x, out)
        right = bool((out == mine.size * (mine.size + 1) // 2).all())
        layout = str(comm.layout)
        state = existing_context(comm)
        node = state.node if state else None
        shared = single = None
        if node is not None and node.comm.Get_size() > 1:
            shared, single = bool(node.local), node.readv is not None
        times = comm._check_alive().tuned
        return replace(mine, layout=layout, right=right, shared=shared, single_copy=single,
                       ruled=state is None or is_measured(state.size, state.place),
                       table=times.source if times is not None else "",
                       untimed=times.note if times is not None else "")
    except HpccollError as error:
        return replace(mine, problem=str(error))
    finally:
        comm.Free()


@functools.lru_cache(maxsize=1)
def build() -> str:
    """Return a digest of the source of hpccoll: two checkouts of one version may differ."""
    package, digest = Path(hpccoll.__file__).parent, hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(str(path.relative_to(package)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def _free(directory: str) -> int:
    try:
        status = os.statvfs(directory)
    except OSError:
        return -1
    return status.f_bavail * status.f_frsize if os.access(directory, os.W_OK) else -1


def _number(path: str) -> int:
    try:
        return int(Path(path).read_text())
    except (OSError, ValueError):
        return -1
