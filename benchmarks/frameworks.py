"""PyTorch's candidates for training steps: DistributedDataParallel and Horovod.

The model is a chain of layers that compute nothing: the backward pass of each sleeps for its time
and gives a gradient. So all that a step costs beyond the sleep is communication, and what DDP does
for it.
"""

from __future__ import annotations

import importlib
import os
import socket
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from time import sleep
from typing import Any

from emulated import EmulatedModel, Stepper
from mpi4py import MPI

from hpccoll.comm import Comm
from hpccoll.errors import ArgumentError, HpccollError

#: PyTorch's own, and the process groups below it.
DDP = "ddp"
BACKENDS = ("hpccoll", "gloo")


def stepper(name: str, detail: str) -> Callable[[Comm, EmulatedModel], Stepper]:
    """Make what makes a candidate.

    Raises:
        ArgumentError: there is no such candidate.
        HpccollError: PyTorch or Horovod is not installed.
    """
    needs = "torch" if name == DDP else "horovod.torch"
    try:
        importlib.import_module(needs)
    except ImportError as error:
        raise HpccollError(f"{name} needs {needs}: {error}; install it with: "
                           "pip install 'hpccoll[torch]'"
                           + (" horovod" if name != DDP else "")) from error
    if name != DDP:
        return Horovod
    backend = detail or BACKENDS[0]
    if backend not in BACKENDS:
        raise ArgumentError("candidate", f"there is no ddp:{backend}",
                            f"choose from {', '.join(f'ddp:{known}' for known in BACKENDS)}")
    return lambda comm, model: DataParallel(comm, model, backend)


def sleeping_model(model: EmulatedModel) -> Any:
    """A module whose backward pass sleeps, array by array, and makes gradients of these shapes."""
    torch: Any = importlib.import_module("torch")

    class Backward(torch.autograd.Function):
        """Passes its input on; makes a gradient of ones after a pause."""

        @staticmethod
        def forward(context: Any, passed: Any, parameter: Any, pause: float) -> Any:
            context.pause, context.gradient = pause, torch.ones_like(parameter)
            return passed.view_as(passed)

        @staticmethod
        def backward(context: Any, gradient: Any) -> Any:
            sleep(context.pause)
            return gradient, context.gradient, None

    class Sleeping(torch.nn.Module):
        """A chain of such layers."""

        def __init__(self) -> None:
            super().__init__()
            self.weights = torch.nn.ParameterList(
                torch.zeros(shape) for shape in model.shapes)

        def forward(self, passed: Any) -> Any:
            """Pass the input through all layers."""
            for weight, pause in zip(self.weights, model.pauses()):
                passed = Backward.apply(passed, weight, pause)
            return passed

    return Sleeping()


class DataParallel:
    """Gradients through DistributedDataParallel over a process group of all ranks."""

    def __init__(self, comm: Comm, model: EmulatedModel, backend: str):
        self.torch = importlib.import_module("torch")
        self.dist = dist = importlib.import_module("torch.distributed")
        if backend == "hpccoll":
            importlib.import_module("hpccoll.torch")
        if not dist.is_initialized():
            dist.init_process_group(backend, store=_store(dist, comm), rank=comm.Get_rank(),
                                    world_size=comm.Get_size())
        self.group = dist.new_group(backend=backend)
        self.model = self.torch.nn.parallel.DistributedDataParallel(
            sleeping_model(model), process_group=self.group, gradient_as_bucket_view=True)
        self.start = self.torch.ones(1, requires_grad=True)

    def step(self) -> None:
        """Take a step."""
        self.model(self.start).sum().backward()

    def close(self) -> None:
        """End all process groups; the first candidate that is closed does."""
        if self.dist.is_initialized():
            self.dist.destroy_process_group()


class Horovod:
    """Gradients through Horovod's optimizer, on a Horovod that was built with Gloo."""

    def __init__(self, comm: Comm, model: EmulatedModel):
        self.torch = importlib.import_module("torch")
        self.hvd: Any = importlib.import_module("horovod.torch")
        self.server = _rendezvous(comm)
        self.hvd.init()
        self.model = sleeping_model(model)
        optimizer = self.torch.optim.SGD(self.model.parameters(), 0.0)
        self.optimizer = self.hvd.DistributedOptimizer(
            optimizer, named_parameters=self.model.named_parameters())
        self.start = self.torch.ones(1, requires_grad=True)

    def step(self) -> None:
        """Take a step."""
        self.model(self.start).sum().backward()
        self.optimizer.synchronize()

    def close(self) -> None:
        """End Horovod."""
        self.hvd.shutdown()
        if self.server is not None:
            self.server.stop()


def _rendezvous(comm: Comm) -> Any:
    """Let Horovod's ranks find each other, as its launcher would; rank 0's server."""
    hosts, rank = comm.allgather(MPI.Get_processor_name()), comm.Get_rank()
    names = list(dict.fromkeys(hosts))
    server, where = None, None
    if rank == 0:
        http: Any = importlib.import_module("horovod.runner.http.http_server")
        plans: Any = importlib.import_module("horovod.runner.common.util.hosts")
        server = http.RendezvousServer()
        port = server.start()
        server.init(plans.get_host_assignments(
            [plans.HostInfo(name, hosts.count(name)) for name in names], len(hosts)))
        where = socket.gethostbyname(names[0]), port
    address, port = comm.bcast(where)
    local = hosts[:rank].count(hosts[rank])
    os.environ |= {
        "HOROVOD_HOSTNAME": hosts[rank], "HOROVOD_RANK": str(rank),
        "HOROVOD_SIZE": str(len(hosts)), "HOROVOD_LOCAL_RANK": str(local),
        "HOROVOD_LOCAL_SIZE": str(hosts.count(hosts[rank])),
        "HOROVOD_CROSS_RANK": str(names.index(hosts[rank])),
        "HOROVOD_CROSS_SIZE": str(sum(hosts.count(name) > local for name in names)),
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": address, "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
        "HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_IFACE": "lo" if len(names) == 1 else os.environ.get(
            "GLOO_SOCKET_IFNAME", "eth0")}
    return server


def _store(dist: Any, comm: MPI.Intracomm) -> Any:
    """A store on rank 0's host, which all ranks find."""
    hosts = comm.allgather(MPI.Get_processor_name())
    host = "localhost" if len(Counter(hosts)) == 1 else hosts[0]
    store, rank, size = None, comm.Get_rank(), comm.Get_size()
    if rank == 0:
        store = dist.TCPStore(host, 0, size, True, timedelta(minutes=5), wait_for_workers=False)
    port = comm.bcast(store and store.port)
    return store or dist.TCPStore(host, port, size, False, timedelta(minutes=5))
