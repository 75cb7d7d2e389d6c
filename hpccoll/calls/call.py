"""Call: one collective on the buffers of one rank, checked and normalized."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy
from mpi4py import MPI

from hpccoll.arrays.half import is_bfloat16
from hpccoll.calls.datatypes import element_type
from hpccoll.calls.specification import Buffer, host_buffer
from hpccoll.errors import ArgumentError
from hpccoll.ir import collectives
from hpccoll.ir.extents import SlotLayout
from hpccoll.ir.methods import METHODS
from hpccoll.ir.schedule import Schedule


def collective_of(method: str) -> str:
    """Return the collective under which the algorithms of a method are registered.

    Raises:
        ArgumentError: unknown method.

    >>> collective_of("iallgatherv"), collective_of("allreduce_init")
    ('allgather', 'allreduce')
    """
    name = collectives.method_named(method)
    if name not in METHODS:
        raise ArgumentError.unknown_word("collective", method, METHODS)
    return METHODS[name]


class Call(NamedTuple):
    """Resolved collective call of one rank.

    Attributes:
        name: the method's name in lower case, for example ``allgatherv``.
        collective: the collective of its algorithms, for example ``allgather``.
        source, sink: the input and output buffers; ``None`` if this rank has none.
        datatype: MPI type of an element; ``None`` for a barrier.
        op: the reduction operator, if any.
        root: root rank.
        in_place: True if input and output share memory.
        nbytes: size known to every rank, for the choice of the algorithm; ``None`` if there is
            none.
        uniform: True if all blocks are known to have the same size.
        key: hashable key of everything that the layout depends on.
        layout: returns the layout and the longest block for a schedule and this rank.
        shared: True if every rank knows the longest block, so that segments may have equal sizes.
        learn: if only the root has all counts, returns the call of a rank that has received them.
    """

    name: str
    collective: str
    source: Buffer | None = None
    sink: Buffer | None = None
    datatype: MPI.Datatype | None = None
    op: MPI.Op | None = None
    root: int = 0
    in_place: bool = False
    nbytes: int | None = 0
    uniform: bool = True
    key: tuple[Any, ...] = ()
    layout: Callable[[Schedule, int], tuple[SlotLayout, int]] = lambda schedule, rank: (
        SlotLayout({}, lambda key: 0), 0)
    shared: bool = True
    learn: Callable[[Sequence[int]], Call] | None = None

    @property
    def dtype(self) -> numpy.dtype[Any]:
        """NumPy type of an element.

        Raises:
            TypeError: the call has no elements.
        """
        dtype = element_type(self.datatype) if self.datatype is not None else None
        if dtype is None:
            raise TypeError(f"{self.name} has no elements of a NumPy type")
        return dtype


def lacks_mpi_type(call: Call) -> bool:
    """Return True if mpi4py has no MPI type for the elements of a call."""
    return any(one is not None and one.dtype is not None and is_bfloat16(one.dtype)
               for one in (call.source, call.sink))


def is_loaded(call: Call) -> bool:
    """Return True if a buffer of a call is a copy, to be made at the start of the call."""
    return any(one is not None and (one.load is not None or one.staged is not None)
               for one in (call.source, call.sink))


def is_staged(call: Call) -> bool:
    """Return True if a buffer is device memory that is staged through the host."""
    return any(one is not None and one.staged is not None for one in (call.source, call.sink))


def on_host(call: Call) -> Call:
    """Return the call on contiguous host buffers, which are not loaded yet."""
    source = call.source and host_buffer(call.source)
    sink = source if call.sink is call.source else call.sink and host_buffer(call.sink)
    return call._replace(source=source, sink=sink)
