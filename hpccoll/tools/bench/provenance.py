"""Provenance of a benchmark: machine, software and job, for later interpretation.

A source folder may hide an installed hpccoll: Python searches first the folder of the program, and
``python -m`` the current folder. In a clone this is the folder ``hpccoll``, which has no compiled
parts unless they were built there.
"""

from __future__ import annotations

import os
import platform
import shlex
import sys
import time
from collections import Counter
from collections.abc import Iterable
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import mpi4py
import numpy
from mpi4py import MPI

import hpccoll
from hpccoll import __version__
from hpccoll.config import load
from hpccoll.machine.identity import library_name, library_version, processor, thread_level
from hpccoll.runtime.execution.built import executor
from hpccoll.tools.bench.roofline import memory_rates
from hpccoll.transport.shm.caches import share_a_cache

#: Prefixes of variables that configure MPI libraries, transports and hpccoll.
PREFIXES = ("HPCCOLL_", "OMPI_MCA_", "PRTE_MCA_", "MPIR_CVAR_", "MPICH_", "I_MPI_", "UCX_", "FI_")
#: Prefixes of variables that launchers set.
LAUNCHER = ("OMPI_MCA_PREFIXES", "OMPI_MCA_cpu_type", "OMPI_MCA_initial_wdir",
            "OMPI_MCA_num_procs", "I_MPI_HYDRA_", "I_MPI_INFO_", "I_MPI_INTERNAL_",
            "I_MPI_PIN_INFO", "I_MPI_PIN_MAPPING", "I_MPI_BIND_WIN_", "I_MPI_RETURN_WIN_")
#: Message text: remedy.
REMEDY = ("run pip install -e '.[...]' in the clone, or start programs in another folder")


def record(comm: MPI.Intracomm, topology: str | None) -> dict[str, Any] | None:
    """Describe machine, software and job; collective, and ``None`` on all ranks but 0."""
    hosts = comm.allgather(MPI.Get_processor_name())
    # Input of the rules, and the largest influence on the times of two ranks.
    paired = len(hosts) == 2 and len(set(hosts)) == 1 and (os.cpu_count() or 1) > 1
    shared_cache = share_a_cache(comm) if paired else None
    rates = memory_rates(comm)
    if comm.Get_rank():
        return None
    return {
        "mpi": library_version(), "library": library_name(),
        "mpi_standard": ".".join(map(str, MPI.Get_version())),
        "thread_level": thread_level(),
        "mpi4py": mpi4py.__version__, "numpy": numpy.__version__,
        "hpccoll": __version__, "python": platform.python_version(),
        "executor": executor(load()), "hides": hidden_install(),
        "ranks": len(hosts), "hosts": dict(Counter(hosts)), "rank_hosts": hosts,
        "topology": topology,
        "cpu": processor(), "cores": os.cpu_count(), "shared_cache": shared_cache,
        "memory_rates": rates,
        "kernel": platform.release(),
        "command": shlex.join(["hpccoll", *sys.argv[1:]]),
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "slurm_job": os.environ.get("SLURM_JOB_ID"),
        "variables": {k: v for k, v in sorted(os.environ.items())
                      if k.startswith(PREFIXES) and not k.startswith(LAUNCHER)},
    }


def hidden_install(package: Path = Path(hpccoll.__file__).parent, path: Iterable[str] | None = None
                   ) -> str:
    """Return the hidden package with compiled parts, if the running one has none.

    Args:
        path: Python's search path; ``sys.path`` by default.

    Returns:
        A folder; empty if no package is hidden, or the running package has compiled parts.
    """
    if _has_extensions(package):
        return ""
    others = (Path(folder or ".") / "hpccoll" for folder in (sys.path if path is None else path))
    return next((str(other.resolve()) for other in others if _has_extensions(other)), "")


def describe_hidden(package: str, there: str) -> str:
    """Return the sentence about a hidden package, without the remedy."""
    return (f"hpccoll is imported from {package}, which has no compiled parts; the one installed "
            f"in {there} has them")


def _has_extensions(package: Path) -> bool:
    return any((package / "runtime" / "execution" / f"_executor{suffix}").exists()
               for suffix in EXTENSION_SUFFIXES)
