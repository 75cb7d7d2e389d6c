"""NCCL in CuPy: its version, its types and operators, and its availability.

This module does not communicate, :mod:`hpccoll.cuda.nccl_group` does. CuPy loads on first use.
"""

from __future__ import annotations

import importlib
import os
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy

from hpccoll.arrays.half import BFLOAT16, is_bfloat16
from hpccoll.cuda.device import has_cupy
from hpccoll.errors.agreement import first_difference, ranks_by_value
from hpccoll.units import ranks_text

#: CuPy's names of NCCL's types, by NumPy's kind and bytes of an element.
TYPES = {("i", 1): "NCCL_INT8", ("u", 1): "NCCL_UINT8", ("i", 4): "NCCL_INT32",
         ("u", 4): "NCCL_UINT32", ("i", 8): "NCCL_INT64", ("u", 8): "NCCL_UINT64",
         ("f", 2): "NCCL_FLOAT16", ("f", 4): "NCCL_FLOAT32", ("f", 8): "NCCL_FLOAT64",
         BFLOAT16: "NCCL_BFLOAT16"}
#: NCCL's operators by MPI's name; MPI has no average.
OPERATORS = {"sum": "NCCL_SUM", "prod": "NCCL_PROD", "max": "NCCL_MAX", "min": "NCCL_MIN"}
#: Supported methods: NCCL has no scans. Its reduce-scatter has one count for all blocks.
METHODS = ("allreduce", "reduce", "bcast", "allgather", "allgatherv", "reduce_scatter_block",
           "alltoall", "alltoallv", "alltoallw", "gather", "gatherv", "scatter", "scatterv")
#: Requirements of ranks that share a GPU: the version of NCCL, and a variable with the value 1.
SHARED_GPU_VERSION, SHARED_GPU_VARIABLE = (2, 30), "NCCL_MULTI_RANK_GPU_ENABLE"
#: The same, for messages.
SHARED_GPU_NEEDS = ("NCCL supports that since version "
                    f"{'.'.join(map(str, SHARED_GPU_VERSION))}, with {SHARED_GPU_VARIABLE}=1")


def type_name(dtype: numpy.dtype) -> str | None:
    """Return CuPy's name of NCCL's element type; ``None`` if NCCL has none."""
    if is_bfloat16(dtype):
        return TYPES[BFLOAT16]
    return TYPES.get((dtype.kind, dtype.itemsize)) if dtype.isnative else None


def nccl_lacks(method: str, operator: str, dtype: numpy.dtype | None) -> str:
    """Return the feature that NCCL lacks for a call; empty if it supports the call.

    Args:
        method: the name of the method in lower case.
        operator: MPI's name of the operator; empty without a reduction.
        dtype: the type of the elements of a reduction; other calls move bytes.
    """
    if method not in METHODS:
        return f"NCCL has no {method}"
    if operator and operator not in OPERATORS:
        return f"NCCL has no operator '{operator}', only {', '.join(OPERATORS)}"
    if operator and dtype is not None and type_name(dtype) is None:
        return f"NCCL cannot reduce elements of type {dtype}"
    return ""


def nccl_library() -> Any:
    """Return CuPy's module of NCCL.

    Raises:
        ImportError: NCCL is missing; names the package to install.
    """
    if not has_cupy():
        raise ImportError("CuPy is not installed")
    nccl: Any = importlib.import_module("cupy.cuda.nccl")
    if not nccl.available:
        raise ImportError("CuPy finds no NCCL: pip install nvidia-nccl-cu12, or the one of CUDA's "
                          "version that CuPy is for")
    return nccl


def nccl_version() -> tuple[str, str]:
    """Return NCCL's version and an error text; one of the two is empty."""
    try:
        nccl = nccl_library()
        number = nccl.get_version()
    except Exception as error:  # includes a library that cannot be loaded
        return "", str(error)
    major, rest = divmod(number, 10000) if number >= 10000 else divmod(number, 1000)
    return f"{major}.{rest // 100}.{rest % 100}", ""


class Member(NamedTuple):
    """Properties of a rank that ranks exchange before they create an NCCL communicator.

    Attributes:
        host: the node of the rank.
        device: PCI address of its GPU.
        version: the version of NCCL, which must be the same on all ranks.
        enabled: True if the variable that enables several ranks per GPU is set.
        has_mps: True if NVIDIA's MPS lets the kernels of several processes overlap.
        problem: the reason why it cannot participate; empty if it can.
    """

    host: str
    device: str = ""
    version: str = ""
    enabled: bool = False
    problem: str = ""
    has_mps: bool = False


def introduce(device: Any) -> Member:
    """Return the properties of this rank and of the GPU of its arrays."""
    from mpi4py import MPI  # here: programs that only read NCCL's limits must not start MPI
    host = MPI.Get_processor_name()
    number, problem = nccl_version()
    try:
        cupy: Any = importlib.import_module("cupy")
        return Member(host, cupy.cuda.runtime.deviceGetPCIBusId(device.id), number,
                      os.environ.get(SHARED_GPU_VARIABLE) == "1", problem, has_mps())
    except Exception as error:  # any driver error
        return Member(host, problem=problem or f"{type(error).__name__}: {error}")


def has_mps() -> bool:
    """Return True if the daemon of NVIDIA's MPS has its pipe where this process looks for it."""
    folder = os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or "/tmp/nvidia-mps"
    return os.path.exists(os.path.join(folder, "control"))


def takes_turns(members: Sequence[Member]) -> bool:
    """Return True if ranks share a GPU without MPS: then their kernels never overlap."""
    users = Counter((one.host, one.device) for one in members if one.device)
    return any(users[one.host, one.device] > 1 and not one.has_mps for one in members)


def obstacle(members: Sequence[Member]) -> str:
    """Return why these ranks cannot create an NCCL communicator; empty if they can."""
    problems = [(rank, one.problem) for rank, one in enumerate(members) if one.problem]
    if problems:
        rank, problem = problems[0]
        more = f" (and {len(problems) - 1} more)" * (len(problems) > 1)
        return f"rank {rank}{more}: {problem}"
    users = ranks_by_value((one.host, one.device) for one in members)
    lacking = _lacking_for_shared_gpu(members)
    for (host, device), ranks in users.items():
        if len(ranks) > 1 and lacking:
            return (f"{ranks_text(ranks)} share GPU {device} of {host}: {SHARED_GPU_NEEDS}, on all "
                    f"ranks; {lacking}")
    difference = first_difference([[one.version] for one in members])
    return f"ranks have different versions of NCCL: {difference}" if difference else ""


def _lacking_for_shared_gpu(members: Sequence[Member]) -> str:
    """Return what ranks that share a GPU lack, and on which ranks; empty if they may."""
    unset = [rank for rank, one in enumerate(members) if not one.enabled]
    versions = ranks_by_value(one.version for one in members).items()
    return "; ".join([f"NCCL is {number} on {ranks_text(ranks)}" for number, ranks in versions
                      if tuple(map(int, number.split(".")[:2])) < SHARED_GPU_VERSION]
                     + [f"{SHARED_GPU_VARIABLE} is not 1 on {ranks_text(unset)}"] * bool(unset))
