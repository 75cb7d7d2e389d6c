"""A call: one collective on the buffers of one rank, checked and brought into one form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy
from mpi4py import MPI

from hpccoll.arrays.half import is_bfloat16
from hpccoll.calls.datatypes import element_type
from hpccoll.calls.specification import Buffer, hosted
from hpccoll.errors import ArgumentError
from hpccoll.ir import collectives
from hpccoll.ir.extents import SlotLayout
from hpccoll.ir.schedule import Schedule

#: Method name in lower case -> what its algorithms are registered under.
METHODS = collectives.METHODS


def collective_of(method: str) -> str:
    """What the algorithms of a method are registered under.

    Raises:
        ArgumentError: there is no such method.

    >>> collective_of("iallgatherv"), collective_of("allreduce_init")
    ('allgather', 'allreduce')
    """
    name = collectives.method_named(method)
    if name not in METHODS:
        raise ArgumentError.unknown("collective", method, METHODS)
    return METHODS[name]


class Call(NamedTuple):
    """One collective call of one rank, resolved.

    Attributes:
        name: the method's name in lower case, e.g. ``allgatherv``.
        collective: what its algorithms are registered under, e.g. ``allgather``.
        source, sink: the input and output buffers, where this rank has them.
        datatype: MPI type of an element; ``None`` for a barrier.
        op: the reduction operator, if any.
        root: root rank.
        in_place: input and output share memory.
        nbytes: size that every rank knows and may choose by; ``None`` where none is known.
        uniform: all blocks are known to have one size.
        key: everything the layout depends on, hashable.
        layout: makes the layout and the longest block for a schedule and this rank.
        shared: every rank knows the longest block, so segments may be evened out.
        learn: where only the root knows all counts, makes the call of a rank that has learnt them.
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
        """NumPy's type of an element.

        Raises:
            TypeError: the call has no elements.
        """
        dtype = element_type(self.datatype) if self.datatype is not None else None
        if dtype is None:
            raise TypeError(f"{self.name} has no elements of a NumPy type")
        return dtype


def lacks_mpi_type(call: Call) -> bool:
    """Tell whether mpi4py has no MPI type for the elements of a call."""
    return any(one is not None and one.dtype is not None and is_bfloat16(one.dtype)
               for one in (call.source, call.sink))


def is_loaded(call: Call) -> bool:
    """Tell whether a buffer of a call is a copy, which has to be made when the call starts."""
    return any(one is not None and (one.load is not None or one.staged is not None)
               for one in (call.source, call.sink))


def is_staged(call: Call) -> bool:
    """Return whether a buffer is device memory that messages reach through the host."""
    return any(one is not None and one.staged is not None for one in (call.source, call.sink))


def on_host(call: Call) -> Call:
    """The same call on buffers in host memory, in one piece each, that have yet to be loaded."""
    source = call.source and hosted(call.source)
    sink = source if call.sink is call.source else call.sink and hosted(call.sink)
    return call._replace(source=source, sink=sink)
