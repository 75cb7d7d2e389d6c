"""Names of the processor and the MPI library of this process, for reports and tuning tables.

MPI is imported inside functions: programs that only read records must not start MPI.
"""

from __future__ import annotations

import platform


def processor() -> str:
    """Return the model of the processor."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                key, _, value = line.partition(":")
                if key.strip() == "model name":
                    return value.strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def library_version() -> str:
    """Return the version text of the MPI library, on one line."""
    from mpi4py import MPI

    return " ".join(MPI.Get_library_version().split("\0")[0].split())


def library_name(version: str = "") -> str:
    """Return name and version of an MPI library, from its version text; by default this process's.

    >>> library_name("Open MPI v5.0.11, package: Open MPI root@host Distribution")
    'Open MPI 5.0.11'
    >>> library_name("MPICH Version: 5.0.2 MPICH Release date: Mon Jun 1 MPICH ABI: 17:2:5")
    'MPICH 5.0.2'
    """
    text = (version or library_version()).split("\0")[0]
    words = text.replace("Library", "").replace("(R)", "").split(",")[0].split()
    for index, word in enumerate(words):
        if word.lstrip("v")[:1].isdigit():
            name = [w for w in words[:index] if w.lower() not in ("version:", "version", ":")]
            return " ".join([*name, word.lstrip("v")])
    return " ".join(words[:4])


def thread_level() -> str:
    """Return MPI's thread level: ``single``, ``funneled``, ``serialized`` or ``multiple``."""
    from mpi4py import MPI

    return {MPI.THREAD_SINGLE: "single", MPI.THREAD_FUNNELED: "funneled",
            MPI.THREAD_SERIALIZED: "serialized", MPI.THREAD_MULTIPLE: "multiple"
            }[MPI.Query_thread()]
