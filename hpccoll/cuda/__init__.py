"""GPU arrays. Experimental: docs/gpu.md lists the features that were tested on a GPU.

The contract suite of transports also tests the transport of this package, on a fake device.

Other packages import only from here, never from a module of this package. A name loads its module
on first use, and no module imports CuPy before a call has a device array.

    device.py      detect, access and copy device memory
    kernels.py     reduction kernels, from the source reduce.cu
    device_paths.py  data paths between two ranks; device_probes.py: tests of each path
    node_answers.py  results of tests, shared by the ranks of a node
    staging.py     copies through pinned host memory; transfers.py, windows.py: segment by segment
    stream_ordered.py   device memory that is used in place, for work on the caller's stream
    registered.py  memory shared by the ranks of a node; ipc.py: CUDA IPC; transport.py: messages
    nccl.py        features and availability of NCCL; nccl_group.py, nccl_runner.py: calls by NCCL
    gpus.py        GPUs and their links, from the driver

A new data path needs a line of ``device_paths.WAYS`` and of ``device_probes.LOOKS``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpccoll.cuda.device import allocator_like as allocator_like
    from hpccoll.cuda.device import as_cupy as as_cupy
    from hpccoll.cuda.device import borrow as borrow
    from hpccoll.cuda.device import copy_to_device as copy_to_device
    from hpccoll.cuda.device import copy_to_host as copy_to_host
    from hpccoll.cuda.device import device_namespace as device_namespace
    from hpccoll.cuda.device import element_type as element_type
    from hpccoll.cuda.device import find_stream as find_stream
    from hpccoll.cuda.device import flatten_device as flatten_device
    from hpccoll.cuda.device import has_cupy as has_cupy
    from hpccoll.cuda.device import is_device as is_device
    from hpccoll.cuda.device import is_in_use as is_in_use
    from hpccoll.cuda.device import missing_device as missing_device
    from hpccoll.cuda.device import module_name as module_name
    from hpccoll.cuda.device import mpi_moves_device_memory as mpi_moves_device_memory
    from hpccoll.cuda.device import performer as performer
    from hpccoll.cuda.device import synchronize as synchronize
    from hpccoll.cuda.device import use_device as use_device
    from hpccoll.cuda.device_paths import AWARE as AWARE
    from hpccoll.cuda.device_paths import RankReport as RankReport
    from hpccoll.cuda.device_paths import describe_ways as describe_ways
    from hpccoll.cuda.device_probes import Ways as Ways
    from hpccoll.cuda.device_probes import agree_on_ways as agree_on_ways
    from hpccoll.cuda.device_probes import visible_devices as visible_devices
    from hpccoll.cuda.gpus import NEAR as NEAR
    from hpccoll.cuda.gpus import gpu_direct as gpu_direct
    from hpccoll.cuda.gpus import gpu_island as gpu_island
    from hpccoll.cuda.gpus import gpu_links as gpu_links
    from hpccoll.cuda.gpus import gpu_numa as gpu_numa
    from hpccoll.cuda.gpus import numa_distance as numa_distance
    from hpccoll.cuda.gpus import pci_address as pci_address
    from hpccoll.cuda.kernels import fuse as fuse
    from hpccoll.cuda.kernels import has_kernel as has_kernel
    from hpccoll.cuda.kernels import kernel_for as kernel_for
    from hpccoll.cuda.nccl import SHARED_GPU_NEEDS as SHARED_GPU_NEEDS
    from hpccoll.cuda.nccl import nccl_lacks as nccl_lacks
    from hpccoll.cuda.nccl import nccl_version as nccl_version
    from hpccoll.cuda.nccl_runner import AcrossNodes as AcrossNodes
    from hpccoll.cuda.nccl_runner import Nccl as Nccl
    from hpccoll.cuda.node_answers import NODE_ANSWERS as NODE_ANSWERS
    from hpccoll.cuda.registered import SCRATCH_BYTES as SCRATCH_BYTES
    from hpccoll.cuda.registered import DeviceMemory as DeviceMemory
    from hpccoll.cuda.registered import RegisteredCall as RegisteredCall
    from hpccoll.cuda.staging import StagedBuffer as StagedBuffer
    from hpccoll.cuda.staging import allocate_pinned as allocate_pinned
    from hpccoll.cuda.staging import keep as keep
    from hpccoll.cuda.stream_ordered import Resident as Resident
    from hpccoll.cuda.stream_ordered import as_resident as as_resident
    from hpccoll.cuda.stream_ordered import queue_of as queue_of
    from hpccoll.cuda.windows import Windows as Windows
    from hpccoll.cuda.windows import windows_of as windows_of
else:
    #: Module of each name.
    _MODULES = {name: module for module, names in {
        "device": "allocator_like as_cupy borrow copy_to_device copy_to_host device_namespace "
                  "element_type find_stream flatten_device has_cupy is_device is_in_use "
                  "missing_device module_name mpi_moves_device_memory performer synchronize "
                  "use_device",
        "device_probes": "Ways agree_on_ways visible_devices",
        "gpus": "NEAR gpu_direct gpu_island gpu_links gpu_numa numa_distance pci_address",
        "kernels": "fuse has_kernel kernel_for",
        "nccl": "SHARED_GPU_NEEDS nccl_lacks nccl_version",
        "nccl_runner": "AcrossNodes Nccl",
        "node_answers": "NODE_ANSWERS",
        "registered": "SCRATCH_BYTES DeviceMemory RegisteredCall",
        "stream_ordered": "Resident as_resident queue_of",
        "staging": "StagedBuffer allocate_pinned keep",
        "device_paths": "AWARE RankReport describe_ways",
        "windows": "Windows windows_of",
    }.items() for name in names.split()}

    def __getattr__(name):
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
