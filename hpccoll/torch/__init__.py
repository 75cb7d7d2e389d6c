"""PyTorch on hpccoll: ``torch.distributed.init_process_group("hpccoll")`` on every MPI.

    backend             entry point of the backend; creates process groups
    process_group/      the process group
    tensors huge_pages  tensors as MPI buffers; huge pages for host memory
    streams             CUDA streams of callers
    operation_queue     queue of asynchronous operations
    operations          operations with argument checks
    horovod/            Horovod's interface
    hooks scaler        DDP communication hooks for compression; a loss scale for all ranks

The process group does not import ``horovod``, ``hooks``, ``scaler`` or their own dependencies.

``import hpccoll.torch as hvd`` also provides Horovod's names.

With torch 2.14 or newer no import is needed: the backend is an entry point. With torch 2.4 to 2.13
importing this package registers it. The first group initialises MPI, not the import.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hpccoll.errors import FrameworkError

try:
    from hpccoll.torch.backend import register
except ModuleNotFoundError as missing:
    if missing.name != "torch":
        raise
    raise FrameworkError("torch", "is not installed") from None
from hpccoll.torch.process_group.rendezvous import init_process_group, register_handler

if TYPE_CHECKING:
    from hpccoll.torch.hooks import CompressState as CompressState
    from hpccoll.torch.hooks import compress_hook as compress_hook
    from hpccoll.torch.horovod import *  # noqa: F403
    from hpccoll.torch.process_group.group import Group as Group
    from hpccoll.torch.scaler import AgreedGradScaler as AgreedGradScaler

#: Public names and their modules, which are imported on first use.
PLACES = {"Group": "process_group.group", "AgreedGradScaler": "scaler", "CompressState": "hooks",
          "compress_hook": "hooks"}
#: Horovod's names, all in one module.
HOROVOD = (
    "Adasum add_process_set allgather allgather_async allgather_object allreduce allreduce_ "
    "allreduce_async allreduce_async_ alltoall alltoall_async Average barrier broadcast "
    "broadcast_ broadcast_async broadcast_async_ broadcast_object broadcast_optimizer_state "
    "broadcast_parameters Compression cross_rank cross_size DistributedOptimizer "
    "global_process_set grouped_allgather grouped_allgather_async grouped_allreduce "
    "grouped_allreduce_ grouped_allreduce_async grouped_allreduce_async_ grouped_reducescatter "
    "grouped_reducescatter_async HorovodInternalError init is_homogeneous is_initialized join "
    "local_rank local_size Max Min mpi_threads_supported poll ProcessSet Product rank "
    "reducescatter reducescatter_async remove_process_set shutdown size sparse_allreduce_async "
    "Sum SyncBatchNorm synchronize").split()
__all__ = ["AgreedGradScaler", "CompressState", "Group", "compress_hook", "init_process_group"]


def __getattr__(name: str) -> Any:
    if name in PLACES:
        return getattr(import_module(f"{__name__}.{PLACES[name]}"), name)
    if name in HOROVOD:
        return getattr(import_module(f"{__name__}.horovod"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*PLACES, *HOROVOD, *globals()])


# Before torch 2.14 there is no entry point, so the import registers the backend.
register()
register_handler()
