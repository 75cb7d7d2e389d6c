"""The buffers of one rank for one case: filled, poisoned and checked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
from mpi4py import MPI

from hpccoll.arrays import exact
from hpccoll.ir.topology import Topology
from hpccoll.measure import inputs
from hpccoll.measure.cases import Case, arguments
from hpccoll.measure.wrapping import Wrap
from hpccoll.runtime.context import existing

#: Bytes that the start of a buffer in an arena is a multiple of.
ALIGNED = 64


class Arena:
    """Registered memory that the buffers of all cases are cut from, one case after the other.

    Such memory is kept until its communicator is freed, and allocating it is collective, though
    ranks may need different numbers of buffers: so it is allocated once, with room for the
    largest case.

    Args:
        comm: what is measured on; collective.
        wrap: the class of communicators that is timed.
        nbytes: the larger buffer of the largest case.
        sets: of buffers.
        topology: pretend layout; the first use of a communicator decides about it.
        xp: the module of its arrays.
    """

    def __init__(self, comm: MPI.Intracomm, wrap: Wrap, nbytes: int, sets: int,
                 topology: Topology | None = None, xp: Any = numpy):
        self.bytes = wrap(comm, topology).empty(2 * sets * (nbytes + ALIGNED), "u1", xp=xp)
        self.used = 0
        context = existing(comm)
        node = context and context.node
        here = bool(node and node.local and node.locate(self.bytes) is not None)
        #: Whether all ranks have registered memory; without it, what they have is ordinary.
        self.registered = bool(comm.allreduce(here, MPI.LAND))

    def clear(self) -> None:
        """Forget the buffers: the next case begins."""
        self.used = 0

    def empty(self, count: int, dtype: numpy.dtype) -> Any:
        """The next ``count`` elements."""
        start, end = self.used, self.used + count * dtype.itemsize
        self.used = -(-end // ALIGNED) * ALIGNED
        return self.bytes[start:end].view(dtype)


class CaseBuffers:
    """Buffers of one rank, and the arguments that pass them to the collective.

    ``source`` is where this rank's input lies and ``result`` where its output will; either may
    be empty. In place they share memory; elsewhere the input must survive the call.

    Args:
        case, rank: whose buffers.
        empty: makes an array of so many elements of a type.
        op: the operator to pass, where it is not the one that MPI has for the case's.
    """

    #: Whether the arguments are arrays of a GPU.
    on_device = False

    def __init__(self, case: Case, rank: int,
                 empty: Callable[[int, numpy.dtype], numpy.ndarray] = numpy.empty,
                 op: MPI.Op | None = None):
        self.case, self.rank = case, rank
        self.given = case.given(rank)
        self.wanted = case.wanted(rank)
        inputs = sum(case.extent(b) for b in self.given)
        outputs = sum(case.extent(w.block) for w in self.wanted)
        send: Any = None
        recv: Any = None
        if case.shares(rank):
            send = recv = MPI.IN_PLACE
            shared = empty(max(inputs, outputs), case.dtype)
            self.source, self.result = _share(case, rank, shared, inputs, outputs)
            if case.rule.in_place == "root":
                send = shared
            else:
                recv = shared
        else:
            self.source = empty(inputs, case.dtype)
            # Rank 0 of an exscan passes a buffer too, and gets nothing in it.
            room = case.count if case.collective == "exscan" else outputs
            whole = empty(room, case.dtype)
            self.result = whole[:outputs]
            if case.collective == "bcast":
                self.source = self.result[:inputs]
                recv = whole
            else:
                send = self.source if self.given else None
                recv = whole if self.wanted or not case.rule.rooted else None
        self.send, self.recv = send, recv
        self.arguments = arguments(case, rank, send, recv, op)
        self._kept: numpy.ndarray | None = None

    def refill(self, iteration: int) -> None:
        """Poison the output and write the input of an iteration."""
        if isinstance(self.recv, numpy.ndarray):
            exact.poison(self.recv)
        start = 0
        for block in self.given:
            count = self.case.extent(block)
            inputs.fill(self.source[start:start + count], self._contribution(block, iteration))
            start += count
        if self.restorable:
            self._kept = self.recv.copy()

    @property
    def restorable(self) -> bool:
        """In place, a reduction's output would grow without bounds from call to call."""
        return self.case.rule.reduces and self.case.shares(self.rank)

    def restore(self) -> None:
        """Put the input of an in-place reduction back."""
        self.recv[...] = self._kept

    def wrong(self, iteration: int) -> int:
        """Count the wrong elements of the output."""
        case, number, start = self.case, 0, 0
        for block, ranks in self.wanted:
            count = case.extent(block)
            expected = inputs.result(case.op, case.dtype, ranks, case.size, block, iteration, count)
            number += inputs.wrong(self.result[start:start + count], expected, case.op is None)
            start += count
        return number

    def changed(self, iteration: int) -> int:
        """Count the elements of a separate input that the call has changed."""
        if not isinstance(self.send, numpy.ndarray):
            return 0
        number, start = 0, 0
        for block in self.given:
            count = self.case.extent(block)
            number += inputs.wrong(self.source[start:start + count],
                                self._contribution(block, iteration), self.case.op is None)
            start += count
        return number

    def whole(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """A method as it is to be timed: until its result is there."""
        return method

    def _contribution(self, block: int, iteration: int) -> numpy.ndarray:
        case = self.case
        return inputs.contribution(case.op, case.dtype, self.rank, case.size, block, iteration,
                                 case.extent(block))


def _share(case: Case, rank: int, shared: numpy.ndarray, inputs: int,
           outputs: int) -> tuple[numpy.ndarray, numpy.ndarray]:
    """Where input and output lie in one buffer."""
    at = sum(case.counts[:rank])
    source, result = shared[:inputs], shared[:outputs]
    if case.rule.in_place == "own":
        source = shared[at:at + inputs]
    elif case.rule.in_place == "root":
        result = shared[at:at + outputs]
    return source, result
