"""Calls of every upper-case collective, each with what must come out on this rank.

Inputs differ from rank to rank and are exact in every order; outputs lie poisoned between guards;
blocks of the v-forms are uneven, may be empty, and lie apart in another order than the ranks. A
case can be filled and run again, also with the data of a case of the same shape.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy
from mpi.buffers import Device, Host
from mpi4py import MPI

from hpccoll.arrays import exact
from hpccoll.measure import load, noise

#: Methods whose calls :class:`Calls` makes.
METHODS = ("Barrier", "Bcast", "Reduce", "Allreduce", "Scan", "Exscan", "Reduce_scatter_block",
           "Reduce_scatter", "Allgather", "Allgatherv", "Gather", "Gatherv", "Scatter",
           "Scatterv", "Alltoall", "Alltoallv", "Alltoallw")
REDUCTIONS = METHODS[2:8]
inputs = functools.lru_cache(64)(exact.inputs)
reduction = functools.lru_cache(64)(exact.exact_reduction)
sent = functools.lru_cache(256)(exact.sent_elements)


def works(comm, count=1000):
    """Raise unless a sum of so many elements is right; the communicator is set up for it."""
    assert comm.layout
    data = numpy.arange(count, dtype="f4") + comm.rank
    result = numpy.empty_like(data)
    comm.Allreduce(data, result)
    expected = numpy.arange(count) * comm.size + comm.size * (comm.size - 1) / 2
    assert numpy.array_equal(result, expected.astype("f4"))


class Case:
    """One call: ``method(*args)``, what to fill before it and what to find after it.

    Attributes:
        title: words that name the call among others of its kind.
        inputs: buffers and their values, which must not change.
        outputs: buffers, what they must hold, what they hold before, and the part that is checked.
    """

    def __init__(self, calls: Calls, method: str, in_place: bool | str = False):
        self.calls, self.method, self.args = calls, method, ()
        place = "in place" * bool(in_place) + " on some" * (in_place == "some")
        what = calls.op if method in REDUCTIONS else ""
        self.title = " ".join(f"{method} {place} {calls.dtype} {what} {calls.title}".split())
        self.inputs: list[tuple[Host, numpy.ndarray]] = []
        self.outputs: list[tuple[Host, numpy.ndarray, numpy.ndarray, slice]] = []

    def give(self, values: numpy.ndarray, blocks: int = 1) -> Host:
        """Make an input with these values; it must not change."""
        made = self.calls.memory(values.size, self.calls.dtype, blocks, False)
        self.inputs.append((made, values))
        return made

    def take(self, wanted: numpy.ndarray, initial: numpy.ndarray | None = None,
             checked: slice = slice(None), blocks: int = 1) -> Host:
        """Make an output that must hold these values in the ``checked`` part."""
        made = self.calls.memory(wanted.size, self.calls.dtype, blocks, True)
        if initial is None:
            initial = poisoned(wanted.size, self.calls.dtype)
        self.outputs.append((made, wanted, initial, checked))
        return made

    def call(self, *args: Any) -> Case:
        """Set the arguments of the call."""
        self.args = args
        return self

    def fill(self, data: Case | None = None) -> None:
        """Put the values of this case or another in place, and poison into the outputs."""
        data = data or self
        for (buffer, _), (_, values) in zip(self.inputs, data.inputs):
            buffer.write(values)
        for (buffer, *_), (_, _, initial, _) in zip(self.outputs, data.outputs):
            buffer.write(initial)

    def check(self, data: Case | None = None) -> None:
        """Raise unless the outputs are right and nothing else has changed."""
        data, where = data or self, f"rank {self.calls.rank}: {self.title}"
        for (buffer, _), (_, values) in zip(self.inputs, data.inputs):
            assert same(buffer.read(), values, bitwise=True), f"{where}: input changed"
            assert not buffer.overwritten(), f"{where}: written beside the input"
        for (buffer, _, _, checked), (_, wanted, *_) in zip(self.outputs, data.outputs):
            found, wanted = buffer.read()[checked], wanted[checked]
            assert same(found, wanted, bitwise=self.method not in REDUCTIONS), (
                f"{where}: {found} is not {wanted}")
            assert not buffer.overwritten(), f"{where}: written beside the output"


def same(found: numpy.ndarray, wanted: numpy.ndarray, bitwise: bool) -> bool:
    """Compare two arrays; their bytes first, since that is fast."""
    return found.tobytes() == wanted.tobytes() or not exact.wrong(found, wanted, bitwise)


def poisoned(count: int, dtype: Any) -> numpy.ndarray:
    """Return what an output holds that is not written."""
    if exact.has_padding(numpy.dtype(dtype)) and numpy.dtype(dtype).names is None:
        return numpy.full(count, -1, dtype)  # a NaN with other padding is not equal to itself
    return exact.GuardedArray(count, dtype).array.copy()


class Calls:
    """Calls of every collective with blocks of about ``count`` elements.

    Args:
        op: name of the operator in ``exact``; ``mpi_op`` where MPI has none of that name.
        form: how buffers are written, of ``FORMS``.
        blocks: where blocks of the v-forms lie: ``apart``, ``packed``, or ``in order`` with gaps.
        equal: v-forms with equal blocks.
        memory: makes the buffers.
        seed: of the data.
    """

    def __init__(self, rank: int, size: int, dtype: Any = "f8", count: int = 5, root: int = 0,
                 op: str = "sum", mpi_op: MPI.Op | None = None, *, form: str = "arrays",
                 blocks: str = "apart", equal: bool = False,
                 memory: Callable = lambda count, dtype, *_: Host(count, dtype), seed: int = 0):
        self.rank, self.size, self.dtype, self.count, self.root = (
            rank, size, numpy.dtype(dtype), count, root)
        self.op, self.mpi_op = op, mpi_op or getattr(MPI, op.upper())
        self.form, self.blocks, self.equal, self.memory = form, blocks, equal, memory
        self.seed, self.title = seed, f"count={count} root={root} {form}"
        self.everyone = range(size)

    def all(self) -> Iterator[Case]:
        """Calls of all methods."""
        yield Case(self, "Barrier").call()
        yield from self.reductions()
        yield from self.movements()

    # -- data ----------------------------------------------------------------------------------
    def own(self, count: int | None = None) -> numpy.ndarray:
        """This rank's contribution to a reduction."""
        count = self.count if count is None else count
        return inputs(self.op, self.dtype, self.rank, self.size, count, self.seed)

    def combined(self, ranks: range, count: int | None = None) -> numpy.ndarray:
        """Reduction of the contributions of some ranks."""
        count = self.count if count is None else count
        return reduction(self.op, self.dtype, ranks, self.size, count, self.seed)

    def block(self, source: int, count: int, to: int = 0) -> numpy.ndarray:
        """What a rank sends."""
        return sent(self.dtype, source, count, self.seed, to)

    def sizes(self, step: int, first: int) -> list[int]:
        """Block sizes by rank."""
        return [self.count if self.equal else (step * r + first) % (self.count + 1)
                for r in self.everyone]

    def places(self, counts: list[int]) -> tuple[list[int], list[int] | None, int]:
        """Where blocks begin, the displacements of the call, and the length of the buffer."""
        gap, order = int(self.blocks != "packed"), list(self.everyone)
        if self.blocks == "apart":
            order.reverse()
        starts, position = [0] * self.size, gap
        for r in order:
            starts[r] = position
            position += counts[r] + gap
        return starts, starts if gap else None, position

    def scattered(self, counts: list[int], starts: list[int], length: int,
                  block: Callable[[int], numpy.ndarray]) -> numpy.ndarray:
        """A buffer with one block for each rank, and poison between."""
        whole = poisoned(length, self.dtype)
        for r in self.everyone:
            whole[starts[r]:starts[r] + counts[r]] = block(r)
        return whole

    # -- calls ---------------------------------------------------------------------------------
    def reductions(self) -> Iterator[Case]:
        """Calls of the collectives that combine."""
        rank, form, op = self.rank, self.form, self.mpi_op
        for method, ranks in (("Allreduce", self.everyone), ("Scan", range(rank + 1)),
                              ("Exscan", range(rank))):
            for in_place in (False, True, *["some"] * (method == "Allreduce")):
                here = rank % 2 == 0 if in_place == "some" else in_place
                wanted = (self.combined(ranks) if ranks else
                          self.own() if here else poisoned(self.count, self.dtype))
                case = Case(self, method, in_place)
                out = case.take(wanted, self.own() if here else None)
                if not ranks and isinstance(out, Device):
                    case.outputs[0] = *case.outputs[0][:3], slice(0)  # undefined; may be written
                out = out.whole(form)
                given = MPI.IN_PLACE if here else case.give(self.own()).whole(form)
                yield case.call(given, out, op)
        for in_place in (False, True):
            case, out = Case(self, "Reduce", in_place), None
            if rank == self.root:
                out = case.take(self.combined(self.everyone), self.own() if in_place else None)
            here = in_place and rank == self.root
            yield case.call(MPI.IN_PLACE if here else case.give(self.own()).whole(form),
                            out and out.whole(form), op, self.root)
        for method, sizes in (("Reduce_scatter_block", [self.count] * self.size),
                              ("Reduce_scatter", self.sizes(3, 2))):
            start, whole, extra = sum(sizes[:rank]), sum(sizes), [sizes][:not method.endswith("k")]
            blocks = self.size if not extra else 1
            part = self.combined(self.everyone, whole)[start:start + sizes[rank]]
            case = Case(self, method)
            yield case.call(case.give(self.own(whole), blocks).whole(form, blocks),
                            case.take(part).whole(form), *extra, op)
            case, wanted = Case(self, method, True), self.own(whole).copy()
            wanted[:part.size] = part
            out = case.take(wanted, self.own(whole), slice(part.size), blocks)
            yield case.call(MPI.IN_PLACE, out.whole(form, blocks), *extra, op)

    def movements(self) -> Iterator[Case]:
        """Calls of the collectives that only move data."""
        size, form, at_root = self.size, self.form, self.rank == self.root
        case, data = Case(self, "Bcast"), self.block(self.root, self.count)
        buffer = case.give(data) if at_root else case.take(data)
        yield case.call(buffer.whole(form), self.root)
        yield from self.gathered("", [self.count] * size, [self.count * r for r in self.everyone],
                                 None, self.count * size)
        counts = self.sizes(2, self.count)
        yield from self.gathered("v", counts, *self.places(counts))
        given = numpy.concatenate([self.block(self.rank, self.count, to) for to in self.everyone])
        wanted = numpy.concatenate([self.block(source, self.count, self.rank)
                                    for source in self.everyone])
        for in_place in (False, True):
            case = Case(self, "Alltoall", in_place)
            out = case.take(wanted, given if in_place else None, blocks=size).whole(form, size)
            yield case.call(MPI.IN_PLACE if in_place else case.give(given, size).whole(form, size),
                            out)
        yield from self.pairs()

    def gathered(self, v: str, counts: list[int], starts: list[int], displs: list[int] | None,
                 length: int) -> Iterator[Case]:
        """Calls that bring blocks together, or hand them out."""
        form, rank, at_root = self.form, self.rank, self.rank == self.root
        whole = self.scattered(counts, starts, length, lambda r: self.block(r, counts[r]))
        mine, holding = slice(starts[rank], starts[rank] + counts[rank]), poisoned(
            length, self.dtype)
        holding[mine] = whole[mine]

        def blocks(buffer: Host) -> Any:
            return buffer.vector(form, counts, displs) if v else buffer.whole(form, self.size)

        for method, has in ((f"Allgather{v}", True), (f"Gather{v}", at_root)):
            for in_place in (False, True, *["some"] * (method == "Allgather")):
                here = has and (rank % 2 == 0 if in_place == "some" else in_place)
                case, out = Case(self, method, in_place), None
                if has:
                    out = blocks(case.take(whole, holding if here else None, blocks=self.size))
                given = MPI.IN_PLACE if here else case.give(whole[mine].copy()).whole(form)
                yield case.call(given, out, *([] if method.startswith("All") else [self.root]))
        for in_place in (False, True):
            case = Case(self, f"Scatter{v}", in_place)
            given = blocks(case.give(whole, self.size)) if at_root else None
            out = MPI.IN_PLACE if in_place and at_root else case.take(whole[mine].copy()).whole(
                form)
            yield case.call(given, out, self.root)

    def pairs(self) -> Iterator[Case]:
        """Alltoallv and Alltoallw with a block size of its own for every pair."""
        def many(source: int, to: int) -> int:
            return self.count if self.equal else (source + 2 * to) % (self.count + 1)

        out = [many(self.rank, to) for to in self.everyone]
        back = [many(source, self.rank) for source in self.everyone]
        (from_, displs, room), (into, landings, back_room) = self.places(out), self.places(back)
        given = self.scattered(out, from_, room, lambda r: self.block(self.rank, out[r], r))
        wanted = self.scattered(back, into, back_room, lambda r: self.block(r, back[r], self.rank))
        case = Case(self, "Alltoallv")
        yield case.call(case.give(given, self.size).vector(self.form, out, displs),
                        case.take(wanted, blocks=self.size).vector(self.form, back, landings))
        case = Case(self, "Alltoallw")
        yield case.call(case.give(given, self.size).pairwise(out, from_),
                        case.take(wanted, blocks=self.size).pairwise(back, into))


def cases(*args: Any, **named: Any) -> Iterator[Case]:
    """Calls of all methods; the arguments are those of :class:`Calls`."""
    return Calls(*args, **named).all()


def believe(monkeypatch):
    """However busy the machine is, a survey believes what it measures."""
    for name in ("ABSURD", "DOUBTFUL", "LATE", "LATE_BY_FAR"):
        monkeypatch.setattr(noise, name, float("inf"))
    monkeypatch.setattr(load, "MOST", float("inf"))
