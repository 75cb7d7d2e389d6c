"""Buffers of one rank for one case, on the host or on its device: filled, poisoned and checked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
from mpi4py import MPI

from hpccoll.arrays import exact
from hpccoll.cuda import copy_to_device, copy_to_host, device_namespace, synchronize
from hpccoll.ir.topology import Topology
from hpccoll.measure import inputs
from hpccoll.measure.cases import Case, arguments
from hpccoll.measure.wrapping import Wrap
from hpccoll.runtime.attributes import existing_context

#: Alignment in bytes of the start of a buffer in an arena.
ALIGNED = 64


class Arena:
    """Registered memory for the buffers of all cases, one case after the other.

    Such memory is freed only with its communicator, and allocation is collective, but ranks may
    need different numbers of buffers. So it is allocated once, for the largest case.

    Args:
        comm: the measured communicator; collective.
        nbytes: bytes of the larger buffer of the largest case.
        sets: number of pairs of buffers.
        topology: pretend layout; set by the first use of a communicator.
    """

    def __init__(self, comm: MPI.Intracomm, wrap: Wrap, nbytes: int, sets: int,
                 topology: Topology | None = None, xp: Any = numpy):
        self.bytes = wrap(comm, topology).empty(2 * sets * (nbytes + ALIGNED), "u1", xp=xp)
        self.used = 0
        context = existing_context(comm)
        node = context and context.node
        here = bool(node and node.local and node.locate(self.bytes) is not None)
        #: True if all ranks have registered memory; otherwise they allocate ordinary memory.
        self.registered = bool(comm.allreduce(here, MPI.LAND))

    def clear(self) -> None:
        """Release the buffers for the next case."""
        self.used = 0

    def empty(self, count: int, dtype: numpy.dtype) -> Any:
        """Return the next ``count`` elements."""
        start, end = self.used, self.used + count * dtype.itemsize
        self.used = -(-end // ALIGNED) * ALIGNED
        return self.bytes[start:end].view(dtype)


class CaseBuffers:
    """Buffers of one rank, and the arguments that pass them to the collective.

    ``source`` is this rank's input and ``result`` its output; either may be empty. In place they
    share memory; otherwise the call must not change the input.

    Args:
        empty: callback that makes an array of a number of elements and a type.
        op: the operator to pass; MPI's own for the case if omitted.
    """

    #: True if the arguments are arrays of a GPU.
    on_device = False

    def __init__(self, case: Case, rank: int,
                 empty: Callable[[int, numpy.dtype], numpy.ndarray] = numpy.empty,
                 op: MPI.Op | None = None):
        self.case, self.rank = case, rank
        self.given = case.input_blocks(rank)
        self.wanted = case.expected_blocks(rank)
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
            # Rank 0 of an exscan passes a buffer too; the call does not write to it.
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
        """True if the input must be restored: repeated in-place sums would overflow."""
        return self.case.rule.reduces and self.case.shares(self.rank)

    def restore(self) -> None:
        """Restore the input of an in-place reduction."""
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

    def count_changed_input(self, iteration: int) -> int:
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

    def timed_callable(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """Return a callable for timing, which returns when the result is complete."""
        return method

    def _contribution(self, block: int, iteration: int) -> numpy.ndarray:
        case = self.case
        return inputs.contribution(case.op, case.dtype, self.rank, case.size, block, iteration,
                                 case.extent(block))


def _share(case: Case, rank: int, shared: numpy.ndarray, inputs: int,
           outputs: int) -> tuple[numpy.ndarray, numpy.ndarray]:
    """Return input and output of an in-place call, as views of one buffer."""
    at = sum(case.counts[:rank])
    source, result = shared[:inputs], shared[:outputs]
    if case.rule.in_place == "own":
        source = shared[at:at + inputs]
    elif case.rule.in_place == "root":
        result = shared[at:at + outputs]
    return source, result


class DeviceBuffers(CaseBuffers):
    """Buffers of one rank on its current device; see :class:`CaseBuffers`.

    Host copies happen before and after calls, outside the measured time. A call ends with the
    synchronization of the current stream, which is in the measured time.

    Args:
        empty: callback that makes an array of a number of elements and a type on the device.
    """

    on_device = True

    def __init__(self, case: Case, rank: int,
                 empty: Callable[[int, numpy.dtype], Any] | None = None):
        super().__init__(case, rank)
        namespace = device_namespace()
        make = empty or namespace.empty
        hosts = [one for one in (self.send, self.recv) if isinstance(one, numpy.ndarray)]
        self.pairs = [(one, make(one.size, one.dtype)) for one in hosts]
        self.arguments = arguments(case, rank, self._there(self.send), self._there(self.recv))

    def _there(self, host: Any) -> Any:
        """Return the device counterpart of an array; other objects are returned unchanged."""
        return next((there for one, there in self.pairs if one is host), host)

    def refill(self, iteration: int) -> None:
        super().refill(iteration)
        self._push()

    def restore(self) -> None:
        super().restore()
        self._push()

    def wrong(self, iteration: int) -> int:
        self._fetch()
        return super().wrong(iteration)

    def count_changed_input(self, iteration: int) -> int:
        self._fetch()
        return super().count_changed_input(iteration)

    def timed_callable(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """Return a callable for timing, which also synchronizes the stream of the method."""
        def call(*args: Any) -> Any:
            returned = method(*args)
            synchronize()
            return returned

        return call

    def _push(self) -> None:
        for host, there in self.pairs:
            copy_to_device(host, there)
        synchronize()

    def _fetch(self) -> None:
        for host, there in self.pairs:
            copy_to_host(there, host)
