"""What this rank finds out about the ways of device data (:mod:`hpccoll.arrays.ways`).

A way that is not looked for is none: every way has a line in :data:`LOOKS`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from mpi4py import MPI

from hpccoll.arrays import device, ipc_probe
from hpccoll.arrays.nccl import version as nccl_version
from hpccoll.arrays.ways import AWARE, IPC, NCCL, STAGED, Answer, Told


def devices() -> tuple[str, ...]:
    """Addresses of the devices that CuPy sees; none without CuPy."""
    if not device.is_served():
        return ()
    cupy: Any = importlib.import_module("cupy")
    try:
        count = cupy.cuda.runtime.getDeviceCount()
        return tuple(cupy.cuda.runtime.deviceGetPCIBusId(n) for n in range(count))
    except cupy.cuda.runtime.CUDARuntimeError:
        return ()


def _nccl() -> Answer:
    number, problem = nccl_version()
    return Answer(False, problem or f"NCCL {number} serves who asks for it: algorithm 'nccl'")


def _ipc() -> Answer:
    return ipc_probe.probed()


def _mpi() -> Answer:
    return device.probed()


def _staged() -> Answer:
    return Answer(True, "always")


#: Name of a way -> what finds out about it on a node where there is CuPy and a device.
LOOKS: Mapping[str, Callable[[], Answer]] = {
    NCCL.name: _nccl, IPC.name: _ipc, AWARE.name: _mpi, STAGED.name: _staged}


def agreed(comm: MPI.Intracomm) -> list[Told]:
    """What every rank of a communicator tells, the same on all of them; collective.

    One rank of each node looks, the first that has a device. It may take seconds: child processes
    try what could kill this one.
    """
    addresses = devices()
    near = comm.Split_type(MPI.COMM_TYPE_SHARED, key=comm.Get_rank())
    try:
        host = near.bcast(comm.Get_rank())
        first = near.allreduce(near.Get_rank() if addresses else near.Get_size(), MPI.MIN)
        found: Mapping[str, Answer] = {}
        if first < near.Get_size():
            looked = {name: look() for name, look in LOOKS.items()} if (
                first == near.Get_rank()) else None
            found = near.bcast(looked, first)
    finally:
        near.Free()
    if not addresses:
        why = "no device is visible" if device.is_served() else "CuPy is not installed"
        return comm.allgather(Told(host, "", {name: Answer(False, why) for name in LOOKS}))
    return comm.allgather(Told(host, addresses[0], found))
