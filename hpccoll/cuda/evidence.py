"""What this rank finds out about the ways of device data (:mod:`hpccoll.cuda.ways`).

A way that is not looked for is none: every way has a line in :data:`LOOKS`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from mpi4py import MPI

from hpccoll.cuda import device, ipc
from hpccoll.cuda.nccl import nccl_version
from hpccoll.cuda.ways import AWARE, IPC, NCCL, STAGED, Answer, Told


def visible_devices() -> tuple[str, ...]:
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
    return Answer(False, problem or f"NCCL {number}, with algorithm 'nccl'")


def _ipc() -> Answer:
    return ipc.probe_ipc()


def _mpi() -> Answer:
    return device.probe_mpi()


def _staged() -> Answer:
    return Answer(True, "always")


#: Name of a way -> what finds out about it on a node where there is CuPy and a device.
LOOKS: Mapping[str, Callable[[], Answer]] = {
    NCCL.name: _nccl, IPC.name: _ipc, AWARE.name: _mpi, STAGED.name: _staged}


def agree_on_ways(comm: MPI.Intracomm) -> list[Told]:
    """What every rank of a communicator tells, the same on all of them; collective.

    One rank of each node looks, the first that has a device. It may take seconds: child processes
    try what could kill this one.
    """
    addresses = visible_devices()
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


class Ways:
    """What all ranks of a communicator found out about the ways of device data.

    Args:
        context: of the communicator, whose service this is.

    Attributes:
        told: by rank; ``None`` before the first look.
    """

    def __init__(self, context: Any):
        self.context = context
        self.told: list[Told] | None = None

    def look(self) -> list[Told]:
        """What all ranks found out; the first time is collective."""
        if self.told is None:
            guard = self.context.guard
            ask = guard.attended(agree_on_ways) if guard is not None else agree_on_ways
            self.told = ask(self.context.comm)
        return list(self.told or ())

    def free(self) -> None:
        """Nothing: it holds no resources."""
