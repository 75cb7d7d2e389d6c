"""Collectives of NCCL's double: ranks in one process, each with a device, its streams and a call.

Every call has work on another stream before it, which makes its input, and work behind it, which
reads its result and destroys both.
"""

from __future__ import annotations

import numpy
from mpi4py import MPI

from hpccoll.calls import resolve
from hpccoll.cuda.nccl import nccl_library
from hpccoll.cuda.nccl_group import NcclGroup
from hpccoll.cuda.stream_ordered import as_resident, queue_of
from hpccoll.ir.collectives import COLLECTIVES
from hpccoll.testing.exact import wrong
from hpccoll.testing.world import Problem
from support.gpu.device import installed
from support.gpu.streams import Devices

OPS = {"sum": MPI.SUM, "prod": MPI.PROD, "max": MPI.MAX, "min": MPI.MIN}
REDUCING = ("allreduce", "reduce", "reduce_scatter_block")
METHODS = (*REDUCING, "bcast", "allgather", "alltoall", "gather", "scatter")
DTYPES = ("i1", "u1", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "bfloat16")
#: Elements of a block.
EACH = 3


def dtype_of(name):
    """A dtype by its name; bfloat16 is another package's."""
    if name != "bfloat16":
        return numpy.dtype(name)
    import ml_dtypes
    return numpy.dtype(ml_dtypes.bfloat16)


class NcclRanks:
    """Ranks of one NCCL communicator on a machine's devices."""

    def __init__(self, cupy, size):
        self.cupy, self.size, nccl = cupy, size, nccl_library()
        number, self.groups = nccl.get_unique_id(), []
        for rank in range(size):
            with cupy.cuda.Device(rank) as device:
                mine = nccl.NcclCommunicator(size, number, rank)
                self.groups.append(NcclGroup(nccl, mine, device))

    def free(self):
        for group in self.groups:
            group.free()


class NcclRank:
    """One rank's streams and buffers in a call."""

    def __init__(self, ranks, rank, kind, problem, in_place):
        self.cupy, self.rank, self.problem = ranks.cupy, rank, problem
        self.group, self.device = ranks.groups[rank], ranks.groups[rank].device
        self.in_place = in_place
        with self.device:
            self.stream = (self.cupy.cuda.get_current_stream() if kind == "null" else
                           self.cupy.cuda.Stream(non_blocking=kind == "non_blocking"))
            self.other = self.cupy.cuda.Stream(non_blocking=True)
        self.waits = self.stream.synchronized

    def array(self, values):
        """A device array that the other stream fills."""
        array = self.cupy.empty(values.size, values.dtype)
        array[...] = self.cupy.asarray(values)
        return array

    def buffers(self, method):
        """Input, output, and the part of the output that is looked at; numpy arrays are filled."""
        problem, rank = self.problem, self.rank
        given, wanted = (numpy.concatenate(blocks) if blocks else None for blocks in
                         (problem.input_blocks(rank), problem.expected_blocks(rank)))
        self.wanted, self.part = wanted, slice(None)
        if method == "bcast":
            self.sink = self.array(numpy.zeros_like(wanted) if given is None else given)
            return None
        if not self.in_place or method in ("reduce", "gather", "scatter") and rank != problem.root:
            source = None if given is None else self.array(given)
            self.sink = None if wanted is None else self.array(numpy.zeros_like(wanted))
            return source
        if method == "reduce_scatter_block":
            self.sink, self.part = self.array(given), slice(0, wanted.size)
        elif method == "scatter":
            self.sink = self.array(given)
            self.part = slice(rank * EACH, rank * EACH + EACH)
            return self.sink
        elif method in ("allgather", "gather"):
            whole = numpy.zeros_like(wanted)
            whole[rank * EACH:rank * EACH + EACH] = given
            self.sink = self.array(whole)
        else:
            self.sink = self.array(given)
        return MPI.IN_PLACE

    def call(self, method, op):
        """Queue the call, what makes its input, and what uses its result."""
        size, rank, root = self.problem.size, self.rank, self.problem.root
        with self.device:
            with self.other:
                source = self.buffers(method)
                self.stream.wait_event(self.other.record())
            sink = MPI.IN_PLACE if method == "scatter" and source is self.sink else self.sink
            specs = [as_resident(one) for one in ((source, sink) if method != "bcast" else (sink,))]
            extra = ([OPS[op]] if method in REDUCING else []) + (
                [root] if method in ("reduce", "bcast", "gather", "scatter") else [])
            with self.stream:
                call = getattr(resolve, method)(size, rank, *specs, *extra)
                self.group.queue(call, queue_of(specs).stream)
                if self.sink is not None:
                    self.read = self.sink.copy()
                    self.sink[...] = 77
                if source is not None and source is not MPI.IN_PLACE:
                    source[...] = 78

    def is_wrong(self):
        """Tell whether what was read is not what was wanted."""
        with self.device:
            self.stream.synchronize()
        return self.wanted is not None and bool(wrong(self.read.raw[self.part], self.wanted))


def make(ranks, method, dtype, op="sum", in_place=False, kind="non_blocking"):
    """Make a call on all ranks; return those that got something wrong."""
    collective = COLLECTIVES["reduce_scatter" if method == "reduce_scatter_block" else method]
    number = {"vector": 1, "blocks": ranks.size, "pairs": ranks.size ** 2}[collective.payload]
    problem = Problem(collective, ranks.size, [7 if number == 1 and collective.payload == "vector"
                                               else EACH] * number,
                      ranks.size // 2 if collective.rooted else 0, op, dtype_of(dtype))
    places = [NcclRank(ranks, rank, kind, problem, in_place) for rank in range(ranks.size)]
    for place in places:
        place.call(method, op)
    if any(place.stream.synchronized != place.waits for place in places):
        raise AssertionError("the host waited for a stream")
    return [place.rank for place in places if place.is_wrong()]


def world(size, seed=None, cuda_aware=True):
    """A machine with a device for each rank, and CuPy on it."""
    machine = Devices(size, seed)
    return machine, installed(cuda_aware, machine)
