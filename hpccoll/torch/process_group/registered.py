"""Tensors in registered memory, which other ranks of the node read without a copy.

Registered memory is freed only with the communicator, so blocks without live tensors are reused.
Ranks collect garbage at different times, so they agree on a block that is free on all ranks.
"""

from __future__ import annotations

import weakref
from contextlib import nullcontext
from importlib import import_module
from typing import Any

import numpy
import torch
from mpi4py import MPI

from hpccoll import Comm
from hpccoll.errors import ArgumentError, ArgumentTypeError
from hpccoll.torch.streams import current_in_cupy

#: Smallest block in bytes, and largest number of blocks of one size in the search.
SMALLEST, MOST = 1 << 12, 63


class DeviceView:
    """Device memory as an argument of ``torch.as_tensor``, which keeps the view."""

    def __init__(self, array: Any):
        self.array, self.__cuda_array_interface__ = array, array.__cuda_array_interface__


class RegisteredMemory:
    """Registered memory of one communicator."""

    def __init__(self, comm: Comm):
        self.comm = comm
        #: Blocks by device and size, the same on all ranks, and a bit mask of free blocks.
        self.blocks: dict[tuple[str, int], list[Any]] = {}
        self.free: dict[tuple[str, int], int] = {}
        #: Stream on which the last tensor of a device block was allocated.
        self.streams: dict[tuple[tuple[str, int], int], Any] = {}

    def tensor(self, count: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Return a flat tensor of ``count`` elements; collective, with equal sizes in bytes.

        Its contents are undefined. All device tensors of a communicator are on one GPU.

        Raises:
            ArgumentTypeError: neither the CPU nor a CUDA device.
            ArgumentError: there is no such GPU, or earlier tensors are on another one.
        """
        if device.type not in ("cpu", "cuda"):
            raise ArgumentTypeError("device", f"{device} has no registered memory",
                                    "allocate it as usual")
        on_gpu, nbytes = device.type == "cuda", count * dtype.itemsize
        if on_gpu:
            device = self._gpu(device)
        key = device.type, max(SMALLEST, 1 << (nbytes - 1).bit_length())
        blocks = self.blocks.setdefault(key, [])
        number = self._free_everywhere(key)
        with current_in_cupy(device) if on_gpu else nullcontext():
            if number < 0:
                number = len(blocks)
                blocks.append(self.comm.empty(
                    key[1], numpy.uint8, xp=import_module("cupy") if on_gpu else numpy))
            view = blocks[number][:max(nbytes, 1)]
            if on_gpu:
                view = DeviceView(view)
        # Only the tensor references this view, so both are freed together.
        self.free[key] = self.free.get(key, 0) & ~(1 << number)
        weakref.finalize(view, self._give_back, key, number).atexit = False
        if not on_gpu:
            return torch.from_numpy(view)[:nbytes].view(dtype)
        # Work of the tensor that had the block before may still be queued.
        stream = torch.cuda.current_stream(device)
        before = self.streams.get((key, number), stream)
        if before != stream:
            stream.wait_stream(before)
        self.streams[key, number] = stream
        return torch.as_tensor(view, device=device)[:nbytes].view(dtype)

    def _gpu(self, device: torch.device) -> torch.device:
        """Return a CUDA device with its number."""
        visible = torch.cuda.device_count() if torch.cuda.is_available() else 0
        number = device.index if device.index is not None or not visible else (
            torch.cuda.current_device())
        if number is None or number >= visible:
            raise ArgumentError("device", f"is {device}, but PyTorch sees {visible} GPUs",
                                "pass 'cuda', or a GPU that CUDA_VISIBLE_DEVICES contains")
        known = next((blocks[0].device.id for (kind, _), blocks in self.blocks.items()
                      if kind == "cuda" and blocks), number)
        if known != number:
            raise ArgumentError("device", f"is {device}, but registered tensors of this group are "
                                          f"on cuda:{known}", f"pass 'cuda:{known}'")
        return torch.device("cuda", number)

    def _free_everywhere(self, key: tuple[str, int]) -> int:
        """Return the index of a block that no rank uses; -1 if there is none."""
        free = numpy.array([self.free.get(key, 0) & (1 << MOST) - 1], numpy.int64)
        self.comm.Allreduce(MPI.IN_PLACE, free, MPI.BAND)
        bits = int(free[0])
        return (bits & -bits).bit_length() - 1

    def _give_back(self, key: tuple[str, int], number: int) -> None:
        self.free[key] |= 1 << number
