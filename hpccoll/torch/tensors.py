"""Conversion of tensors to arrays for communicators, as views of their memory.

Non-contiguous tensors are copied before sending; results are copied back. GPU memory is accessed
with CuPy, on the device of the tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy
import torch

from hpccoll.errors import ArgumentTypeError, BufferArgumentError
from hpccoll.torch.huge_pages import LEAST, HugePages
from hpccoll.torch.streams import check_capture

#: Dtypes by their NumPy names; the package ml_dtypes provides bfloat16.
PLAIN = {kind: numpy.dtype(name).str for kind, name in {
    torch.float16: "f2", torch.float32: "f4", torch.float64: "f8", torch.complex64: "c8",
    torch.complex128: "c16", torch.bool: "b1", torch.int8: "i1", torch.int16: "i2",
    torch.int32: "i4", torch.int64: "i8", torch.uint8: "u1", torch.uint16: "u2",
    torch.uint32: "u4", torch.uint64: "u8"}.items()}

#: Huge pages of this process.
PAGES = HugePages()


def as_dense(tensor: torch.Tensor) -> torch.Tensor:
    """Return a contiguous, detached tensor without lazy conjugation or negation.

    Shares the memory if possible. Waits for a pending result of a functional collective.

    Raises:
        BufferArgumentError: the tensor is sparse.
        ArgumentTypeError: the tensor has no memory of its own.
    """
    if tensor.layout is not torch.strided:
        raise BufferArgumentError("tensor", f"has the layout {tensor.layout}",
                                  "reduce its dense form, tensor.to_dense()")
    try:
        has_memory = tensor.data_ptr() or not tensor.numel()
    except (RuntimeError, UserWarning):  # a tensor of vmap; a fake one, where warnings are errors
        has_memory = False
    if not has_memory:
        tensor = _result_of(tensor)
    if tensor.requires_grad:
        tensor = tensor.detach()
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    return tensor if tensor.is_contiguous() else tensor.contiguous()


def _result_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the result of a functional collective, for an ``AsyncCollectiveTensor``.

    Raises:
        ArgumentTypeError: another tensor without memory: a fake one, one that wraps others, or one
            of a transformation such as vmap.
    """
    if hasattr(tensor, "trigger_wait"):
        return tensor.trigger_wait()
    if tensor.is_meta:
        return tensor  # the error for other devices names it
    kind = type(tensor).__name__
    raise ArgumentTypeError("tensor", f"{kind} of {tensor.dtype} {tuple(tensor.shape)} has no "
                                      "memory of its own",
                            "pass a plain tensor: to_local() of a DTensor, clone() of a zero "
                            "tensor; and call outside of FakeTensorMode, vmap and functionalize")


def values(tensor: torch.Tensor) -> Any:
    """Return the memory of a dense tensor as an array for reductions.

    Raises:
        ArgumentTypeError: no array dtype for the elements, or no CuPy for the GPU.
    """
    if not tensor.is_cpu:
        return _on_device(tensor)
    if tensor.dtype in PLAIN:
        array = host(tensor)
        if array.nbytes >= LEAST:
            PAGES.count_use(tensor.data_ptr(), array.nbytes)
        return array
    if tensor.dtype is torch.bfloat16:
        return host(tensor.view(torch.int16)).view(_bfloat16())
    raise ArgumentTypeError("tensor", f"cannot reduce elements of type {tensor.dtype}",
                            "convert it, as in tensor.to(torch.float32)")


def memory(tensor: torch.Tensor) -> Any:
    """Return the memory of a dense tensor of any dtype as a flat array, for transfers."""
    if tensor.is_cpu and tensor.dtype in PLAIN:
        array = host(tensor)
        if array.nbytes >= LEAST:
            PAGES.count_use(tensor.data_ptr(), array.nbytes)
        return array.reshape(-1)
    flat = tensor.reshape(-1).view(torch.uint8)
    return host(flat) if flat.is_cpu else _on_device(flat)


class _Memory:
    """Array interface of a tensor's memory; NumPy keeps it alive with the array."""

    __slots__ = "__array_interface__", "tensor"

    def __init__(self, tensor: torch.Tensor):
        self.tensor = tensor
        self.__array_interface__ = {
            "version": 3, "data": (tensor.data_ptr(), False), "shape": tensor.shape,
            "typestr": PLAIN[tensor.dtype]}


def host(tensor: torch.Tensor) -> numpy.ndarray:
    """Return the memory of a contiguous CPU tensor as an array.

    Not ``tensor.numpy()``: torch could then no longer resize the storage, as FSDP does.
    """
    return numpy.asarray(_Memory(tensor))


def _bfloat16() -> numpy.dtype:
    try:
        return numpy.dtype(import_module("ml_dtypes").bfloat16)
    except ImportError as error:
        raise ArgumentTypeError("tensor", "NumPy has no bfloat16",
                                "pip install ml_dtypes, or 'hpccoll[torch]'") from error


def _on_device(tensor: torch.Tensor) -> Any:
    if tensor.device.type != "cuda":
        raise ArgumentTypeError("tensor", f"is on the device {tensor.device}",
                                "use tensors on the CPU or on CUDA devices")
    try:
        cupy = import_module("cupy")
    except ImportError as error:
        raise ArgumentTypeError("tensor", "is on a GPU, and CuPy is not installed",
                                "install cupy-cuda12x or cupy-cuda13x, or use "
                                "new_group(backend='nccl') for GPU tensors") from error
    check_capture()
    torch.cuda.current_stream(tensor.device).synchronize()
    if tensor.dtype is torch.bfloat16:
        return cupy.from_dlpack(tensor.view(torch.int16)).view(_bfloat16())
    return cupy.from_dlpack(tensor)


def concatenate(tensors: Sequence[torch.Tensor], fill: bool = True) -> torch.Tensor:
    """Concatenate dense tensors of one dtype to one flat tensor.

    The result shares their memory if they are contiguous. Otherwise its memory is new, and holds
    their values only with ``fill``.
    """
    # Empty tensors have no address.
    full = [tensor for tensor in tensors if tensor.numel()] or tensors[:1]
    first = full[0]
    end = first.data_ptr()
    for tensor in full:
        if tensor.data_ptr() != end or not tensor.is_contiguous():
            break
        end += tensor.nbytes
    else:
        storage = first.untyped_storage()
        if end <= storage.data_ptr() + storage.nbytes():
            return first.as_strided((sum(tensor.numel() for tensor in full),), (1,))
    if fill:
        return torch.cat([tensor.reshape(-1) for tensor in full])
    return first.new_empty(sum(tensor.numel() for tensor in full))


def split_back(flat: torch.Tensor, tensors: Sequence[torch.Tensor]) -> None:
    """Copy a flat tensor's values to tensors, except those that share its memory."""
    start = 0
    for tensor in tensors:
        part = flat[start:start + tensor.numel()]
        start += tensor.numel()
        if part.data_ptr() != tensor.data_ptr() or not tensor.is_contiguous():
            tensor.copy_(part.view(tensor.shape))


def overlap(one: torch.Tensor, another: torch.Tensor) -> bool:
    """Return True if two contiguous tensors share memory."""
    first, second = one.data_ptr(), another.data_ptr()
    return first < second + another.nbytes and second < first + one.nbytes
