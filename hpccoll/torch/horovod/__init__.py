"""Horovod's PyTorch interface: ``import hpccoll.torch.horovod as hvd``.

Each name behaves as in ``horovod.torch``; docs/training/horovod.md lists supported and missing
names.

    processes               initialisation, ranks and process sets
    async_operations        start of operations; wire dtypes
    derivatives             autograd functions
    broadcast_state         allreduce, reducescatter, join
    data_movement           allgather, broadcast, alltoall, barrier
    parameters              broadcast of initial state and of objects
    gradients optimizer     DistributedOptimizer
    batchnorm               SyncBatchNorm
"""

from __future__ import annotations

from typing import Final

from hpccoll.errors import HpccollError as HorovodInternalError
from hpccoll.torch.horovod import async_operations
from hpccoll.torch.horovod.async_operations import Compression
from hpccoll.torch.horovod.batchnorm import SyncBatchNorm
from hpccoll.torch.horovod.broadcast_state import (
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    grouped_reducescatter,
    grouped_reducescatter_async,
    join,
    poll,
    reducescatter,
    reducescatter_async,
    sparse_allreduce_async,
    synchronize,
)
from hpccoll.torch.horovod.data_movement import (
    allgather,
    allgather_async,
    alltoall,
    alltoall_async,
    barrier,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    grouped_allgather,
    grouped_allgather_async,
)
from hpccoll.torch.horovod.optimizer import DistributedOptimizer
from hpccoll.torch.horovod.parameters import (
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from hpccoll.torch.horovod.processes import (
    ProcessSet,
    add_process_set,
    cross_rank,
    cross_size,
    global_process_set,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    mpi_threads_supported,
    rank,
    remove_process_set,
    shutdown,
    size,
)

Average: Final = async_operations.AVERAGE
Sum: Final = async_operations.SUM
Min: Final = async_operations.MIN
Max: Final = async_operations.MAX
Product: Final = async_operations.PRODUCT
Adasum: Final = async_operations.ADASUM

__all__ = [
    "Adasum", "add_process_set", "allgather", "allgather_async", "allgather_object", "allreduce",
    "allreduce_", "allreduce_async", "allreduce_async_", "alltoall", "alltoall_async", "Average",
    "barrier", "broadcast", "broadcast_", "broadcast_async", "broadcast_async_",
    "broadcast_object", "broadcast_optimizer_state", "broadcast_parameters", "Compression",
    "cross_rank", "cross_size", "DistributedOptimizer", "global_process_set", "grouped_allgather",
    "grouped_allgather_async", "grouped_allreduce", "grouped_allreduce_",
    "grouped_allreduce_async", "grouped_allreduce_async_", "grouped_reducescatter",
    "grouped_reducescatter_async", "HorovodInternalError", "init", "is_homogeneous",
    "is_initialized", "join", "local_rank",
    "local_size", "Max", "Min", "mpi_threads_supported", "poll", "ProcessSet", "Product", "rank",
    "reducescatter", "reducescatter_async", "remove_process_set", "shutdown", "size",
    "sparse_allreduce_async", "Sum", "SyncBatchNorm",
    "synchronize",
]
