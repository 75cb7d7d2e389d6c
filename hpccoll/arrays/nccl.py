"""NCCL as CuPy has it: whether it is there, and what it has of MPI's types and operators.

Nothing here communicates; :mod:`hpccoll.runtime.execution.nccl` does. CuPy loads on first use.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

import numpy

from hpccoll.arrays.device import is_served
from hpccoll.arrays.half import BFLOAT16, is_bfloat16

#: NCCL's types by NumPy's kind of elements and bytes of one, as CuPy calls them.
TYPES = {("i", 1): "NCCL_INT8", ("u", 1): "NCCL_UINT8", ("i", 4): "NCCL_INT32",
         ("u", 4): "NCCL_UINT32", ("i", 8): "NCCL_INT64", ("u", 8): "NCCL_UINT64",
         ("f", 2): "NCCL_FLOAT16", ("f", 4): "NCCL_FLOAT32", ("f", 8): "NCCL_FLOAT64",
         BFLOAT16: "NCCL_BFLOAT16"}
#: NCCL's operators by MPI's name; its average is none of MPI's.
OPERATORS = {"sum": "NCCL_SUM", "prod": "NCCL_PROD", "max": "NCCL_MAX", "min": "NCCL_MIN"}
#: Methods that it serves: it has no scans, and knows one count for all blocks.
METHODS = ("allreduce", "reduce", "bcast", "allgather", "reduce_scatter_block", "alltoall",
           "gather", "scatter")
#: What ranks that share a GPU need, as messages name it.
SHARING = "NCCL allows that from version 2.30 on, with NCCL_MULTI_RANK_GPU_ENABLE=1"


def type_name(dtype: numpy.dtype) -> str | None:
    """What CuPy calls NCCL's type of elements; ``None`` where it has none."""
    if is_bfloat16(dtype):
        return TYPES[BFLOAT16]
    return TYPES.get((dtype.kind, dtype.itemsize)) if dtype.isnative else None


def lacks(method: str, operator: str, dtype: numpy.dtype | None) -> str:
    """What NCCL lacks for a call; empty where it has all.

    Args:
        method: its name in lower case.
        operator: MPI's name of the operator; empty where nothing is reduced.
        dtype: of the elements, where something is reduced; of others it moves the bytes.
    """
    if method not in METHODS:
        return f"NCCL has no {method}"
    if operator and operator not in OPERATORS:
        return f"NCCL has no operator '{operator}', only {', '.join(OPERATORS)}"
    if operator and dtype is not None and type_name(dtype) is None:
        return f"NCCL cannot combine elements of type {dtype}"
    return ""


def library() -> Any:
    """CuPy's module of NCCL.

    Raises:
        ImportError: there is none; says what to install.
    """
    if not is_served():
        raise ImportError("CuPy is not installed")
    nccl: Any = importlib.import_module("cupy.cuda.nccl")
    if not nccl.available:
        raise ImportError("CuPy finds no NCCL: pip install nvidia-nccl-cu12, or the one of CUDA's "
                          "version that CuPy is for")
    return nccl


def version() -> tuple[str, str]:
    """NCCL's version, and why there is none; one of both is empty."""
    try:
        nccl = library()
        number = nccl.get_version()
    except Exception as error:  # a library that is there and cannot be loaded, too
        return "", str(error)
    major, rest = divmod(number, 10000) if number >= 10000 else divmod(number, 1000)
    return f"{major}.{rest // 100}.{rest % 100}", ""


def shares_gpus(number: str) -> bool:
    """Return whether NCCL of a version accepts several ranks on one GPU in this process."""
    return (os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE") == "1"
            and tuple(map(int, number.split(".")[:2])) >= (2, 30))
