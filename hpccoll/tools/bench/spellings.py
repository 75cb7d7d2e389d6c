"""Small calls with their buffers and counts spelled in different ways, beside plain mpi4py.

mpi4py takes any object that exports memory, and counts as any sequence of integers. Plain mpi4py
and hpccoll take turns in blocks of calls on the same memory; times are medians over the blocks, of
the slowest rank in each.
"""

from __future__ import annotations

import mmap
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy
from mpi4py import MPI

from hpccoll.comm import Comm
from hpccoll.measure.samples import sample, sample_in_turns

#: Elements of a rank's block; blocks of calls, calls of one, and blocks that are not counted.
COUNT, BLOCKS, CALLS, FIRST = 8, 25, 100, 3
#: Kinds of memory, from the bytes of doubles.
BUFFERS: Mapping[str, Callable[[bytes], Any]] = {
    "NumPy array": lambda data: numpy.frombuffer(bytearray(data)),
    "array.array": lambda data: array("d", data), "bytearray": bytearray,
    "mmap": lambda data: _memory_map(data), "memoryview": lambda data: memoryview(array("d", data))}
#: Kinds of counts, from a list.
COUNTS: Mapping[str, Callable[[list[int]], Any]] = {
    "list": list, "NumPy array": lambda counts: numpy.array(counts, "i4"),
    "array.array": lambda counts: array("i", counts),
    "column of a matrix": lambda counts: numpy.array([counts, counts]).T[:, 0]}


class SpelledCall(NamedTuple):
    """A call with one spelling.

    Attributes:
        method, buffer, counts: the method, its memory, and its counts; empty without counts.
        seconds, plain_seconds: median time of a call with hpccoll and with plain mpi4py.
        wrong: elements that differ from those of mpi4py.
    """

    method: str
    buffer: str
    counts: str
    seconds: float
    plain_seconds: float
    wrong: int


def _memory_map(data: bytes) -> mmap.mmap:
    memory = mmap.mmap(-1, len(data))
    memory[:] = data
    return memory


def calls(rank: int, size: int) -> Iterator[tuple[str, str, str, Callable[[Any], None], Any]]:
    """Yield method, buffer, counts, the call as a function of the communicator, and its result."""
    kind, wide = MPI.DOUBLE, COUNT * size
    for name, make in BUFFERS.items():
        given = make((numpy.arange(wide) + float(rank)).tobytes())
        block = [make(numpy.full(COUNT, float(rank)).tobytes()), kind]
        sink = make(numpy.zeros(wide).tobytes())

        def allreduce(comm: Any, block: Any = block, sink: Any = sink) -> None:
            comm.Allreduce(block, [sink, COUNT, kind])

        def bcast(comm: Any, given: Any = given) -> None:
            comm.Bcast([given, COUNT, kind])

        def allgather(comm: Any, block: Any = block, sink: Any = sink) -> None:
            comm.Allgather(block, [sink, COUNT, kind])
        yield "Allreduce", name, "", allreduce, sink
        yield "Bcast", name, "", bcast, given
        yield "Allgather", name, "", allgather, sink
        if name not in ("NumPy array", "mmap"):
            continue
        for form, spread in COUNTS.items():
            vector = spread([COUNT] * size), spread([COUNT * one for one in range(size)])

            def alltoallv(comm: Any, given: Any = given, sink: Any = sink, v: Any = vector) -> None:
                comm.Alltoallv([given, v, kind], [sink, v, kind])

            def allgatherv(comm: Any, block: Any = block, sink: Any = sink, v: Any = vector
                           ) -> None:
                comm.Allgatherv(block, [sink, v, kind])
            yield "Alltoallv", name, form, alltoallv, sink
            yield "Allgatherv", name, form, allgatherv, sink


def measure(control: MPI.Intracomm, meet: Callable[[], None], words: Sequence[str],
            call: Callable[[Any], None], sink: Any) -> SpelledCall:
    """Measure one spelling of :func:`calls` beside plain mpi4py; collective."""
    comms = Comm(MPI.Intracomm(control.Dup())), MPI.Intracomm(control.Dup())
    _ = comms[0].layout  # sets it up
    results: list[Any] = [None, None]

    def block(way: int, number: int) -> float:
        seconds, = sample(lambda: call(comms[way]), 1, meet, CALLS)
        results[way] = numpy.frombuffer(bytes(sink))
        return seconds

    medians = sample_in_turns(control, BLOCKS, FIRST, block)
    for comm in comms:
        comm.Free()
    method, buffer, counts = words
    wrong = control.allreduce(int((results[0] != results[1]).sum()))
    return SpelledCall(method, buffer, counts, *medians, wrong)
