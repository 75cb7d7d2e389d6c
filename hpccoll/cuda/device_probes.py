"""Tests of the data paths of device arrays on this rank (:mod:`hpccoll.cuda.device_paths`).

Every data path needs a line in :data:`LOOKS`, or it is unavailable.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from mpi4py import MPI

from hpccoll.cuda import device, ipc
from hpccoll.cuda.device_paths import AWARE, IPC, NCCL, STAGED, Answer, RankReport
from hpccoll.cuda.nccl import nccl_version
from hpccoll.cuda.node_answers import NODE_ANSWERS
from hpccoll.transport.private_comm import PrivateComm


def visible_devices() -> tuple[str, ...]:
    """Return the addresses of the devices that CuPy sees; none without CuPy."""
    if not device.has_cupy():
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


#: Name of a data path -> its test on a node with CuPy and a device.
LOOKS: Mapping[str, Callable[[], Answer]] = {
    NCCL.name: _nccl, IPC.name: lambda: ipc.probe_ipc(), AWARE.name: lambda: device.probe_mpi(),
    STAGED.name: lambda: Answer(True, "always")}


def agree_on_ways(comm: MPI.Intracomm) -> list[RankReport]:
    """Return the reports of all ranks of a communicator, the same on all; collective.

    One rank of each node runs the tests, the first with a device. It may take seconds: tests that
    could crash run in child processes.
    """
    addresses = visible_devices()
    node_comm = PrivateComm(comm.Split_type(MPI.COMM_TYPE_SHARED, key=comm.Get_rank()))
    try:
        host = node_comm.bcast(comm.Get_rank())
        first = node_comm.allreduce(node_comm.Get_rank() if addresses else node_comm.Get_size(),
                                    MPI.MIN)
        found: Mapping[str, Answer] = {}
        NODE_ANSWERS.connect(node_comm)
        if first < node_comm.Get_size():
            looked = {name: look() for name, look in LOOKS.items()} if (
                first == node_comm.Get_rank()) else None
            found = node_comm.bcast(looked, first)
    finally:
        node_comm.Free()
    if not addresses:
        why = "no device is visible" if device.has_cupy() else "CuPy is not installed"
        return comm.allgather(RankReport(host, "", {name: Answer(False, why) for name in LOOKS}))
    return comm.allgather(RankReport(host, addresses[0], found))


class Ways:
    """Reports of all ranks of a communicator about the data paths of device arrays.

    Args:
        context: the context of the communicator, whose service this is.

    Attributes:
        reports: the reports by rank; ``None`` before the first test.
    """

    def __init__(self, context: Any):
        self.context = context
        self.reports: list[RankReport] | None = None

    def look(self) -> list[RankReport]:
        """Return the reports of all ranks; the first call is collective."""
        if self.reports is None:
            self.reports = self.context.library.watch_blocking(agree_on_ways)(self.context.comm)
        return list(self.reports or ())

    def free(self) -> None:
        """Do nothing: it holds no resources."""
