"""Tensors in registered memory, which other ranks of the node read without a copy.

Such memory is freed with the communicator only, so blocks without live tensors are reused. Ranks
collect garbage at different times, so they agree on a block that is free on all ranks.
"""

from __future__ import annotations

import weakref

import numpy
import torch
from mpi4py import MPI

from hpccoll import Comm
from hpccoll.errors import ArgumentTypeError

#: Smallest block in bytes, and largest number of blocks of one size in the search.
SMALLEST, MOST = 1 << 12, 63


class RegisteredMemory:
    """Registered memory of one communicator."""

    def __init__(self, comm: Comm):
        self.comm = comm
        #: Blocks by size, the same on all ranks, and a bit mask of free blocks.
        self.blocks: dict[int, list[numpy.ndarray]] = {}
        self.free: dict[int, int] = {}

    def tensor(self, count: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Return a flat tensor of ``count`` elements; collective, with equal sizes in bytes.

        Its contents are undefined.

        Raises:
            ArgumentTypeError: the device is not the CPU.
        """
        if device.type != "cpu":
            raise ArgumentTypeError("device", f"{device} has no registered memory",
                                    "allocate it as usual")
        nbytes = count * dtype.itemsize
        size = max(SMALLEST, 1 << (nbytes - 1).bit_length())
        blocks = self.blocks.setdefault(size, [])
        number = self._free_everywhere(size)
        if number < 0:
            number = len(blocks)
            blocks.append(self.comm.empty(size, numpy.uint8))
        # Only the tensor references this view, so both are freed together.
        view = blocks[number][:max(nbytes, 1)]
        self.free[size] = self.free.get(size, 0) & ~(1 << number)
        weakref.finalize(view, self._give_back, size, number).atexit = False
        return torch.from_numpy(view)[:nbytes].view(dtype)

    def _free_everywhere(self, size: int) -> int:
        """Return the index of a block that no rank uses; -1 if there is none."""
        free = numpy.array([self.free.get(size, 0) & (1 << MOST) - 1], numpy.int64)
        self.comm.Allreduce(MPI.IN_PLACE, free, MPI.BAND)
        bits = int(free[0])
        return (bits & -bits).bit_length() - 1

    def _give_back(self, size: int, number: int) -> None:
        self.free[size] |= 1 << number
