"""Device arrays: how they are recognised, and how collectives reach their memory.

CuPy is imported when the first device array is seen. Whether the MPI library can move device
memory shows when it moves some. A child process tries it, because a library that cannot do it
crashes instead of saying so.
"""

from __future__ import annotations

import functools
import importlib
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from hpccoll.errors import BufferArgumentError

#: DLPack device type of ordinary host memory.
DLPACK_CPU = 1

_PROBE = """
import sys, cupy
from mpi4py import MPI
source, sink = cupy.arange(4096, dtype="f4"), cupy.zeros(4096, dtype="f4")
cupy.cuda.get_current_stream().synchronize()
MPI.COMM_SELF.Sendrecv(source, 0, 0, sink, 0, 0)
sys.exit(0 if bool((source == sink).all()) else 1)
"""


def is_device(obj: Any) -> bool:
    """Tell whether an object holds device memory."""
    if hasattr(obj, "__cuda_array_interface__"):
        return True
    where = getattr(obj, "__dlpack_device__", None)
    return where is not None and int(where()[0]) != DLPACK_CPU


@functools.lru_cache(maxsize=1)
def is_served() -> bool:
    """Tell whether device memory can be served here; without CuPy mpi4py gets it unchanged."""
    try:
        importlib.import_module("cupy")
    except ImportError:
        return False
    return True


def borrow(obj: Any, argument: str, writable: bool
           ) -> tuple[Any, Any, Callable[[], None] | None]:
    """Flat array over a device object's memory, its namespace, and how to store results.

    Where the MPI library moves device memory the array is the object's own memory;
    elsewhere it is a host copy, and ``store()`` copies the result back.

    Raises:
        BufferArgumentError: the array is not contiguous.
    """
    cupy = importlib.import_module("cupy")
    array = cupy.asarray(obj) if hasattr(obj, "__cuda_array_interface__") else cupy.from_dlpack(obj)
    if not (array.flags.c_contiguous or array.flags.f_contiguous):
        raise BufferArgumentError(argument, "is not contiguous", "pass cupy.ascontiguousarray")
    flat = (array if array.flags.c_contiguous else array.T).reshape(-1)
    # The producer of the data may still be writing it.
    cupy.cuda.get_current_stream().synchronize()
    if mpi_moves_device_memory():
        return flat, cupy, None
    host = cupy.asnumpy(flat)

    def store() -> None:
        flat[...] = cupy.asarray(host)
        cupy.cuda.get_current_stream().synchronize()

    return host, sys.modules["numpy"], store if writable else None


def synchronizer(namespace: Any) -> Callable[[], None] | None:
    """What to call before a message is posted, so that device work has finished."""
    return namespace.cuda.get_current_stream().synchronize if hasattr(namespace, "cuda") else None


@functools.lru_cache(maxsize=1)
def mpi_moves_device_memory() -> bool:
    """Try, once per process, whether the MPI library is CUDA-aware.

    The child gets none of the job's variables, so that it starts as a job of one rank.
    """
    job = ("PMI", "PMIX", "OMPI", "PRTE", "SLURM", "MPIR", "HYDRA", "FLUX", "PALS")
    environ = {k: v for k, v in os.environ.items() if not k.startswith(job)}
    try:
        return subprocess.run([sys.executable, "-c", _PROBE], env=environ, timeout=120,
                              capture_output=True, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False
