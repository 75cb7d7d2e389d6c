"""Calls of every upper-case collective, each with what must come out on this rank.

Inputs differ from rank to rank and are exact in every order; outputs lie poisoned between guard
zones; blocks of the v-forms are uneven, may be empty, and lie apart in another order than the
ranks. A case can be filled and run again and again, as persistent requests need it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy
from mpi4py import MPI

from hpccoll.calls.datatypes import datatype_of
from hpccoll.measure import load, noise
from hpccoll.testing import exact

#: Methods in lower case, whose calls :func:`cases` makes.
METHODS = ("Barrier", "Bcast", "Reduce", "Allreduce", "Scan", "Exscan", "Reduce_scatter_block",
           "Reduce_scatter", "Allgather", "Allgatherv", "Gather", "Gatherv", "Scatter",
           "Scatterv", "Alltoall", "Alltoallv", "Alltoallw")
REDUCTIONS = METHODS[2:8]
#: Types with padding, which has no meaning and which not everyone copies along.
PADDED = "gG"


def works(comm, count=1000):
    """Raise unless a sum of so many elements is right; the communicator is set up for it."""
    assert comm.layout
    data = numpy.arange(count, dtype="f4") + comm.rank
    result = numpy.empty_like(data)
    comm.Allreduce(data, result)
    expected = numpy.arange(count) * comm.size + comm.size * (comm.size - 1) / 2
    assert numpy.array_equal(result, expected.astype("f4"))


class Case:
    """One call: ``method(*args)``, what to fill before it and what to find after it."""

    def __init__(self, method: str, title: str = ""):
        self.method, self.title, self.args = method, f"{method} {title}".strip(), ()
        self.inputs: list[tuple[numpy.ndarray, numpy.ndarray]] = []
        self.outputs: list[tuple[exact.GuardedArray, numpy.ndarray, numpy.ndarray, slice]] = []

    def give(self, values: numpy.ndarray) -> numpy.ndarray:
        """An input with these values; it must not change."""
        made = exact.GuardedArray(values.size, values.dtype)
        self.inputs.append((made.array, values))
        return made.array

    def take(self, wanted: numpy.ndarray, initial: numpy.ndarray | None = None,
             checked: slice = slice(None)) -> numpy.ndarray:
        """An output that must hold these values in the ``checked`` part."""
        made = exact.GuardedArray(wanted.size, wanted.dtype)
        if initial is None:
            initial = poisoned(wanted.size, wanted.dtype)
        self.outputs.append((made, wanted, initial, checked))
        return made.array

    def call(self, *args: Any) -> Case:
        self.args = args
        return self

    def fill(self) -> None:
        """Put the inputs in place, and poison into the outputs."""
        for array, values in self.inputs:
            array[...] = values
        for made, _, initial, _ in self.outputs:
            made.array[...] = initial

    def check(self) -> None:
        """Raise unless the outputs are right and nothing else has changed."""
        for array, values in self.inputs:
            assert not exact.wrong(array, values, bitwise=True), f"{self.title}: input changed"
        for made, wanted, _, checked in self.outputs:
            found, wanted = made.array[checked], wanted[checked]
            moved = self.method not in REDUCTIONS and found.dtype.char not in PADDED
            assert not exact.wrong(found, wanted, bitwise=moved), (
                f"{self.title}: {found} is not {wanted}")
            overwritten = made.describe_overwrites()
            assert not overwritten, f"{self.title}: written {overwritten} the output"


def poisoned(count: int, dtype: Any) -> numpy.ndarray:
    """What an output holds that is not written."""
    if numpy.dtype(dtype).char in PADDED:
        return numpy.full(count, -1, dtype)
    return exact.GuardedArray(count, dtype).array.copy()


def cases(rank: int, size: int, dtype: Any = "f8", count: int = 5, root: int = 0,
          op: str = "sum", mpi_op: MPI.Op = MPI.SUM) -> Iterator[Case]:
    """Calls of every collective with blocks of about ``count`` elements."""
    yield Case("Barrier").call()
    yield from reductions(rank, size, dtype, count, root, op, mpi_op)
    yield from movements(rank, size, dtype, count, root)


def reductions(rank, size, dtype, count, root, op="sum", mpi_op=MPI.SUM) -> Iterator[Case]:
    """Calls of the collectives that combine, separate and in place."""
    def own(n=count):
        return exact.inputs(op, dtype, rank, size, n)

    def combined(ranks, n=count):
        return exact.exact_reduction(op, dtype, ranks, size, n)

    everyone = range(size)
    for method, ranks in (("Allreduce", everyone), ("Scan", range(rank + 1)),
                          ("Exscan", range(rank))):
        for in_place in (False, True):
            wanted = combined(ranks) if ranks else own() if in_place else poisoned(count, dtype)
            case = Case(method, "in place" * in_place)
            out = case.take(wanted, own() if in_place else None)
            yield case.call(MPI.IN_PLACE if in_place else case.give(own()), out, mpi_op)
    for in_place in (False, True):
        case = Case("Reduce", "in place" * in_place)
        out = None
        if rank == root:
            out = case.take(combined(everyone), own() if in_place else None)
        given = MPI.IN_PLACE if in_place and rank == root else case.give(own())
        yield case.call(given, out, mpi_op, root)
    counts = [(3 * r + 2) % (count + 1) for r in everyone]
    for method, sizes, extra in (("Reduce_scatter_block", [count] * size, ()),
                                 ("Reduce_scatter", counts, (counts,))):
        start, whole = sum(sizes[:rank]), sum(sizes)
        part = combined(everyone, whole)[start:start + sizes[rank]]
        case = Case(method)
        yield case.call(case.give(own(whole)), case.take(part), *extra, mpi_op)
        case = Case(method, "in place")
        wanted = own(whole)
        wanted[:part.size] = part
        out = case.take(wanted, own(whole), slice(part.size))
        yield case.call(MPI.IN_PLACE, out, *extra, mpi_op)


def movements(rank, size, dtype, count, root) -> Iterator[Case]:
    """Calls of the collectives that only move data."""
    def block(source, n=count, to=0):
        if numpy.dtype(dtype).char in PADDED:
            return (numpy.arange(n) + 100 * source + 10 * to + 1).astype(dtype)
        return exact.sent_elements(dtype, source, n, to=to)

    def join(blocks):
        return numpy.concatenate([numpy.zeros(0, dtype), *blocks])

    everyone, at_root = range(size), rank == root
    counts = [(2 * r + count) % (count + 1) for r in everyone]
    displs, room = apart(counts)
    kind = datatype_of(numpy.dtype(dtype))

    case = Case("Bcast")
    yield case.call(case.give(block(root)) if at_root else case.take(block(root)), root)

    all_equal, all_uneven = join(map(block, everyone)), poisoned(room, dtype)
    for r in everyone:
        all_uneven[displs[r]:displs[r] + counts[r]] = block(r, counts[r])
    for v, sizes, whole in (("", [count] * size, all_equal), ("v", counts, all_uneven)):
        places = displs if v else [r * count for r in everyone]
        mine = slice(places[rank], places[rank] + sizes[rank])
        holding = poisoned(whole.size, dtype)
        holding[mine] = whole[mine]
        for in_place in (False, True):
            for method, has in ((f"Allgather{v}", True), (f"Gather{v}", at_root)):
                case = Case(method, "in place" * in_place)
                here = in_place and has
                out = case.take(whole, holding if here else None) if has else None
                given = MPI.IN_PLACE if here else case.give(block(rank, sizes[rank]))
                args = given, [out, (counts, displs), kind] if v and has else out
                yield case.call(*args, *(() if method.startswith("All") else (root,)))
            case = Case(f"Scatter{v}", "in place" * in_place)
            given = case.give(whole) if at_root else None
            if in_place and at_root:
                out = MPI.IN_PLACE
            else:
                out = case.take(whole[mine].copy())
            yield case.call([given, (counts, displs), kind] if v and at_root else given, out, root)

    sent = [block(rank, count, to) for to in everyone]
    got = [block(frm, count, rank) for frm in everyone]
    case = Case("Alltoall")
    yield case.call(case.give(join(sent)), case.take(join(got)))
    case = Case("Alltoall", "in place")
    yield case.call(MPI.IN_PLACE, case.take(join(got), join(sent)))
    yield from uneven_pairs(rank, size, dtype, count, kind, block)


def uneven_pairs(rank, size, dtype, count, kind, block) -> Iterator[Case]:
    """Alltoallv and Alltoallw with a block size of its own for every pair."""
    everyone = range(size)

    def many(frm, to):
        return (frm + 2 * to) % (count + 1)

    sent, got = [many(rank, to) for to in everyone], [many(frm, rank) for frm in everyone]
    (places, room), (landings, landing_room) = apart(sent), apart(got)
    given, wanted = poisoned(room, dtype), poisoned(landing_room, dtype)
    for r in everyone:
        given[places[r]:places[r] + sent[r]] = block(rank, sent[r], r)
        wanted[landings[r]:landings[r] + got[r]] = block(r, got[r], rank)
    case = Case("Alltoallv")
    yield case.call([case.give(given), (sent, places), kind],
                    [case.take(wanted), (got, landings), kind])
    case, width = Case("Alltoallw"), numpy.dtype(dtype).itemsize
    yield case.call(
        [case.give(given), (sent, [p * width for p in places]), [kind] * size],
        [case.take(wanted), (got, [p * width for p in landings]), [kind] * size])


def apart(counts: list[int]) -> tuple[list[int], int]:
    """Displacements in reverse order with gaps between the blocks, and the room they need."""
    displs, position = [0] * len(counts), 1
    for r in reversed(range(len(counts))):
        displs[r] = position
        position += counts[r] + 1
    return displs, position


def believe(monkeypatch):
    """However busy the machine is, a survey believes what it measures."""
    for name in ("ABSURD", "DOUBTFUL", "LATE", "LATE_BY_FAR"):
        monkeypatch.setattr(noise, name, float("inf"))
    monkeypatch.setattr(load, "MOST", float("inf"))
