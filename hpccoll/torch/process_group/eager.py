"""Exclusion of process group methods from ``torch.compile``."""

from __future__ import annotations

from types import FunctionType
from typing import TypeVar

from torch._C._dynamo import eval_frame

Class = TypeVar("Class", bound=type)


def run_eagerly(kind: Class) -> Class:
    """Mark the methods of a class for a graph break in ``torch.compile``.

    A compiled function may call a group or wait for its work. TorchDynamo cannot trace these
    methods: their objects hold MPI handles and locks. The public decorator,
    ``torch.compiler.disable``, would import the compiler with the backend, and wrap every call.
    PyTorch before 2.7 lacks this mark; then the function does nothing.
    """
    if not hasattr(eval_frame, "_FrameExecStrategy"):
        return kind
    skip = eval_frame._FrameAction.SKIP  # for the method and its callees
    for method in vars(kind).values():
        if isinstance(method, FunctionType):
            eval_frame.set_code_exec_strategy(
                method.__code__, eval_frame._FrameExecStrategy(skip, skip))
            method._torchdynamo_disable = True  # type: ignore[attr-defined]
    return kind
