"""What a job runs on, in the words of a tuning table: MPI library, processor, layout."""

from __future__ import annotations

import os
import platform

from mpi4py import MPI

from hpccoll.ir.topology import Topology
from hpccoll.tune.table import Fingerprint


def here(topology: Topology, oversubscribed: bool) -> Fingerprint:
    """The machine as this rank sees it."""
    return Fingerprint(library(MPI.Get_library_version()), f"{cpu()} x {os.cpu_count()}",
                   topology.size, str(topology), oversubscribed)


def cpu() -> str:
    """Model of the processor."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                key, _, value = line.partition(":")
                if key.strip() == "model name":
                    return value.strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def library(text: str) -> str:
    """Name and version of an MPI library out of its long version string.

    >>> library("Open MPI v5.0.11, package: Open MPI root@host Distribution")
    'Open MPI 5.0.11'
    >>> library("MPICH Version: 5.0.2 MPICH Release date: Mon Jun 1 MPICH ABI: 17:2:5")
    'MPICH 5.0.2'
    """
    words = text.split("\0")[0].replace("Library", "").replace("(R)", "").split(",")[0].split()
    for position, word in enumerate(words):
        if word.lstrip("v")[:1].isdigit():
            name = [w for w in words[:position] if w.lower() not in ("version:", "version", ":")]
            return " ".join([*name, word.lstrip("v")])
    return " ".join(words[:4])
