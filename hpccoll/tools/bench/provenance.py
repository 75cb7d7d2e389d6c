"""Provenance of a benchmark: machine, software and job, for later interpretation."""

from __future__ import annotations

import os
import platform
import shlex
import sys
import time
from collections import Counter
from typing import Any

import mpi4py
import numpy
from mpi4py import MPI

from hpccoll import __version__
from hpccoll.config import load
from hpccoll.machine.identity import library_name, library_version, processor, thread_level
from hpccoll.measure.memory_rates import memory_rates
from hpccoll.runtime.execution.built import executor
from hpccoll.tools.shadowed_install import hidden_install
from hpccoll.transport.shm.caches import share_a_cache

#: Prefixes of variables that configure MPI libraries, transports and hpccoll.
PREFIXES = ("HPCCOLL_", "OMPI_MCA_", "PRTE_MCA_", "MPIR_CVAR_", "MPICH_", "I_MPI_", "UCX_", "FI_")
#: Prefixes of variables that launchers set.
LAUNCHER = ("OMPI_MCA_PREFIXES", "OMPI_MCA_cpu_type", "OMPI_MCA_initial_wdir",
            "OMPI_MCA_num_procs", "I_MPI_HYDRA_", "I_MPI_INFO_", "I_MPI_INTERNAL_",
            "I_MPI_PIN_INFO", "I_MPI_PIN_MAPPING", "I_MPI_BIND_WIN_", "I_MPI_RETURN_WIN_")


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
