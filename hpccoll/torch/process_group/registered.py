"""Tensors in registered memory: what other ranks of the node read in place, without a copy.

Such memory stays until the communicator is freed, so blocks whose tensors are gone are given out
again. Ranks collect their garbage at different times: all agree on a block that is free
everywhere.
"""

from __future__ import annotations

import weakref

import numpy
import torch
from mpi4py import MPI

from hpccoll import Comm
from hpccoll.errors import ArgumentTypeError

#: Bytes of the smallest block, and the most blocks of one size that are looked through.
SMALLEST, MOST = 1 << 12, 63


class Registered:
    """The registered memory of one communicator."""

    def __init__(self, comm: Comm):
        self.comm = comm
        #: Blocks by their size, the same on all ranks, and which of them are free, as bits.
        self.blocks: dict[int, list[numpy.ndarray]] = {}
        self.free: dict[int, int] = {}

    def tensor(self, count: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """A flat tensor of so many elements; collective, all ranks ask for as many bytes.

        Its values are arbitrary.

        Raises:
            ArgumentTypeError: for a device that is not the CPU.
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
        # The tensor holds this view, and nothing else does: it goes with the tensor.
        view = blocks[number][:max(nbytes, 1)]
        self.free[size] = self.free.get(size, 0) & ~(1 << number)
        weakref.finalize(view, self._give_back, size, number).atexit = False
        return torch.from_numpy(view)[:nbytes].view(dtype)

    def _free_everywhere(self, size: int) -> int:
        """The number of a block that no rank uses; -1 if there is none."""
        free = numpy.array([self.free.get(size, 0) & (1 << MOST) - 1], numpy.int64)
        self.comm.Allreduce(MPI.IN_PLACE, free, MPI.BAND)
        bits = int(free[0])
        return (bits & -bits).bit_length() - 1

    def _give_back(self, size: int, number: int) -> None:
        self.free[size] |= 1 << number
