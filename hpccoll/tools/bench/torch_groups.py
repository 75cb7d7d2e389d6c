"""Peers: PyTorch's collectives, in the same processes and on the same buffers.

With PyTorch installed, its process groups are further candidates: ``gloo`` is PyTorch's own, and
``torch`` is hpccoll's (:mod:`hpccoll.torch`), so that a benchmark compares both backends of
``torch.distributed``. Their ranks are those of MPI; they connect through a store on rank 0's host.
Tensors share memory with the NumPy buffers, without extra copies: PyTorch reduces in place, and if
the call is not in place, the input is copied to the output first, inside the measured time.

Calls go through ``torch.distributed``, including its overhead in Python.
"""

from __future__ import annotations

import importlib
import warnings
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy
from mpi4py import MPI

from hpccoll.errors import HpccollError
from hpccoll.measure.cases import Case

#: Candidates and their process groups, and the time limit of their calls in seconds.
BACKENDS, TIMEOUT = {"gloo": "gloo", "torch": "hpccoll"}, 300
#: Collectives and types that both backends support.
COLLECTIVES = ("barrier", "bcast", "allreduce", "reduce", "allgather", "gather", "scatter",
               "reduce_scatter_block", "alltoall")
TYPES = ("float16", "float32", "float64", "int8", "uint8", "int32", "int64")
#: Operators, and their names in PyTorch.
OPERATORS = {"sum": "SUM", "prod": "PRODUCT", "min": "MIN", "max": "MAX"}


def check_available() -> None:
    """Raise unless PyTorch can be measured."""
    try:
        importlib.import_module("torch")
        distributed = importlib.import_module("torch.distributed")
    except ImportError as error:
        raise HpccollError("--peers requires PyTorch; run pip install 'hpccoll[torch]', or for "
                           "CPUs only: pip install torch --index-url "
                           f"https://download.pytorch.org/whl/cpu ({error})") from error
    if not distributed.is_available() or not distributed.is_gloo_available():
        raise HpccollError("--peers: this PyTorch was built without Gloo")


def objection(case: Case) -> str:
    """Return the reason why PyTorch does not support a case; empty if it does."""
    if case.collective not in COLLECTIVES:
        return f"PyTorch has no {case.collective}"
    if case.count and case.dtype.name not in TYPES:
        return f"Gloo has no {case.dtype.name}"
    if case.op is not None and case.op not in OPERATORS:
        return f"PyTorch has no operator {case.op}"
    if case.in_place and case.collective not in ("allreduce", "reduce"):
        return f"PyTorch has no {case.collective} in place"
    return ""


def open_groups(comm: MPI.Intracomm) -> dict[str, ProcessGroup]:
    """Make a process group over all ranks for each candidate; collective."""
    dist: Any = importlib.import_module("torch.distributed")
    importlib.import_module("hpccoll.torch")
    rank, size = comm.Get_rank(), comm.Get_size()
    hosts = comm.allgather(MPI.Get_processor_name())
    host = "localhost" if len(Counter(hosts)) == 1 else hosts[0]
    within = timedelta(seconds=TIMEOUT)
    store = None
    if rank == 0:
        store = dist.TCPStore(host, 0, size, True, within, wait_for_workers=False)
    port = comm.bcast(store and store.port)
    # Rank 0 hosts the store, so it must release it last.
    store = store or dist.TCPStore(host, port, size, False, within)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=within)
    return {name: ProcessGroup(comm, backend) for name, backend in BACKENDS.items()}


class ProcessGroup:
    """Process group over all ranks with the methods of mpi4py."""

    def __init__(self, comm: MPI.Intracomm, backend: str):
        self.torch = importlib.import_module("torch")
        self.dist = dist = importlib.import_module("torch.distributed")
        self.comm, self.rank, self.size = comm, comm.Get_rank(), comm.Get_size()
        self.group = dist.new_group(backend=backend, timeout=timedelta(seconds=TIMEOUT))
        self.version = self.torch.__version__

    def method(self, collective: str) -> Callable:
        """Return a function with the arguments of the mpi4py method that calls PyTorch.

        The tensors of a set of buffers are cached: a user makes tensors once, too.
        """
        prepared: dict[tuple[int, ...], tuple[Callable, tuple]] = {}
        prepare = getattr(self, f"_{collective}")

        def call(*arguments: Any) -> None:
            call_of = prepared.get(tuple(map(id, arguments)))
            if call_of is None:
                # References to the arguments keep their ids unique.
                call_of = prepare(*arguments), arguments
                prepared[tuple(map(id, arguments))] = call_of
            call_of[0]()

        return call

    def free(self) -> None:
        """Destroy all process groups, on all ranks before rank 0 releases the store."""
        if self.dist.is_initialized():
            self.dist.destroy_process_group()
        self.comm.Barrier()

    # -- calls: each makes tensors of the buffers and returns the call -----------------------
    def _barrier(self) -> Callable:
        barrier, group = self.dist.barrier, self.group
        return lambda: barrier(group)

    def _bcast(self, buf: Any, root: int) -> Callable:
        tensor, broadcast, group = self._tensor(buf), self.dist.broadcast, self.group
        return lambda: broadcast(tensor, root, group)

    def _allreduce(self, send: Any, recv: Any, op: MPI.Op) -> Callable:
        tensor, reduce, op = self._tensor(recv), self.dist.all_reduce, self._op(op)
        group = self.group
        if send is MPI.IN_PLACE:
            return lambda: reduce(tensor, op, group)

        def call() -> None:
            numpy.copyto(recv, send)
            reduce(tensor, op, group)

        return call

    def _reduce(self, send: Any, recv: Any, op: MPI.Op, root: int) -> Callable:
        reduce, op, group = self.dist.reduce, self._op(op), self.group
        if send is MPI.IN_PLACE:
            tensor = self._tensor(recv)
            return lambda: reduce(tensor, root, op, group)
        # PyTorch may write to the tensors of all ranks, so senders pass a copy.
        work = recv if self.rank == root else numpy.empty_like(send)
        tensor = self._tensor(work)

        def call() -> None:
            numpy.copyto(work, send)
            reduce(tensor, root, op, group)

        return call

    def _allgather(self, send: Any, recv: Any) -> Callable:
        mine, whole, group = self._tensor(send), self._tensor(recv), self.group
        gather = self._newest_function("all_gather_single", "all_gather_into_tensor")
        return lambda: gather(whole, mine, group)

    def _gather(self, send: Any, recv: Any, root: int) -> Callable:
        mine, gather, group = self._tensor(send), self.dist.gather, self.group
        parts = self._parts(recv) if self.rank == root else None
        return lambda: gather(mine, parts, root, group)

    def _scatter(self, send: Any, recv: Any, root: int) -> Callable:
        mine, scatter, group = self._tensor(recv), self.dist.scatter, self.group
        parts = self._parts(send) if self.rank == root else None
        return lambda: scatter(mine, parts, root, group)

    def _reduce_scatter_block(self, send: Any, recv: Any, op: MPI.Op) -> Callable:
        whole, mine, op = self._tensor(send), self._tensor(recv), self._op(op)
        group = self.group
        reduce = self._newest_function("reduce_scatter_single", "reduce_scatter_tensor")
        return lambda: reduce(mine, whole, op, group)

    def _alltoall(self, send: Any, recv: Any) -> Callable:
        outgoing, incoming = self._tensor(send), self._tensor(recv)
        exchange, group = self.dist.all_to_all_single, self.group
        return lambda: exchange(incoming, outgoing, group=group)

    def _newest_function(self, name: str, older: str) -> Callable:
        """Return a function by its newer name if this version has it."""
        return getattr(self.dist, name, None) or getattr(self.dist, older)

    def _tensor(self, array: numpy.ndarray) -> Any:
        """Return a tensor that shares an array's memory."""
        with warnings.catch_warnings():
            # Suppress a warning about read-only arrays: PyTorch does not write to them.
            warnings.simplefilter("ignore", UserWarning)
            return self.torch.from_numpy(array)

    def _parts(self, array: numpy.ndarray) -> list:
        return list(self._tensor(array).chunk(self.size))

    def _op(self, op: MPI.Op) -> Any:
        return next(getattr(self.dist.ReduceOp, theirs) for name, theirs in OPERATORS.items()
                    if getattr(MPI, name.upper()) == op)
