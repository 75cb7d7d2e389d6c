"""PyTorch on hpccoll: ``torch.distributed.init_process_group("hpccoll")`` on every MPI.

    backend             the entry point, by which torch gets a process group
    process_group/      the process group
    tensors pages       tensors as MPI's buffers; their memory on the host
    streams             the CUDA streams of callers
    line operations     operations in the order of their calls; what ranks agree on before one
    horovod/            all of Horovod's names
    hooks scaler        compressors in DDP; a loss scale for all ranks

The process group imports neither ``horovod``, ``hooks`` and ``scaler`` nor what only they import.

``import hpccoll.torch as hvd`` has Horovod's names too.

From torch 2.14 on nothing needs to be imported: the backend is an entry point. On older versions,
from 2.4 on, importing this package registers it. MPI starts with the first group, not with the
import.
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

#: Public names, and the modules that have them; each is loaded on first use.
PLACES = {"Group": "process_group.group", "AgreedGradScaler": "scaler", "CompressState": "hooks",
          "compress_hook": "hooks"}
#: Names of Horovod, all in one module.
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


# What an entry point does from torch 2.14 on, older versions leave to whoever imports this.
register()
register_handler()
