"""Whether a process can read another one's device memory: tried once, in a child process."""

from __future__ import annotations

import functools
import importlib
import os
import subprocess
import sys
from typing import Any

import numpy

from hpccoll.arrays.ipc import PIECE, allocated
from hpccoll.arrays.ways import Answer

_PROBE = """
import sys, cupy
cupy.cuda.Device(int(sys.argv[1])).use()
handle, event, mark = map(bytes.fromhex, sys.argv[2:])
pointer = cupy.cuda.runtime.ipcOpenMemHandle(handle)
cupy.cuda.runtime.streamWaitEvent(0, cupy.cuda.runtime.ipcOpenEventHandle(event))
memory = cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(pointer, len(mark), None), 0)
sys.exit(0 if cupy.asnumpy(cupy.ndarray(len(mark), "u1", memory)).tobytes() == mark else 1)
"""


@functools.lru_cache(maxsize=1)
def probed() -> Answer:
    """Try, once per process, whether another process can read this one's device memory."""
    mark = os.urandom(64)
    try:
        cupy: Any = importlib.import_module("cupy")
        memory = allocated(cupy, PIECE)
        event = cupy.cuda.Event(disable_timing=True, interprocess=True)
        array = cupy.ndarray(len(mark), "u1", cupy.cuda.MemoryPointer(memory, 0))
        stream = cupy.cuda.Stream(non_blocking=True)
        array.set(numpy.frombuffer(mark, "u1"), stream=stream)
        event.record(stream)
        handles = (cupy.cuda.runtime.ipcGetMemHandle(memory.ptr),
                   cupy.cuda.runtime.ipcGetEventHandle(event.ptr))
        status = subprocess.run([sys.executable, "-c", _PROBE, str(cupy.cuda.Device().id),
                                 *(one.hex() for one in handles), mark.hex()],
                                timeout=120, capture_output=True, check=False).returncode
    except Exception as error:  # whatever the driver says
        return Answer(False, f"{type(error).__name__}: {error}")
    if status:
        return Answer(False, "a child process that read device memory of this one " + (
            f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"))
    return Answer(True, "a child process read device memory of this one; for arrays of "
                        "comm.empty(xp=cupy)")
