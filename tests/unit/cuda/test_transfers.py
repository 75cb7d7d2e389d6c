"""Transfers of a program: loaded is what is read first, stored is what is written."""

import pytest

from hpccoll.algorithms import schedule
from hpccoll.calls.layouts import block_layout, vector_layout
from hpccoll.cuda.transfers import transfers
from hpccoll.ir.collectives import IN, OUT
from hpccoll.ir.extents import Extent, Local, LoweredProgram, Message, Phase
from hpccoll.ir.lowering import lower
from hpccoll.ir.schedule import RECV, SEND


def accesses(phase):
    """Elements that a phase reads and writes, in order: (writes, buffer, elements)."""
    for step in (*phase.before, *phase.messages, *phase.after):
        if isinstance(step, Message):
            yield step.kind == RECV, step.extent
        else:
            yield from ((False, operand) for operand in step.operands)
            yield True, step.into


def plain(program, names):
    """Element -> the phase that reads it before any writes it, and the one that writes it last."""
    first, last = {}, {}
    for number, phase in enumerate(program.phases):
        ordered = sorted(phase.messages, key=lambda message: message.kind == RECV)
        for writes, extent in accesses(phase._replace(messages=tuple(ordered))):
            for element in range(extent.offset, extent.offset + extent.count):
                if extent.buffer not in names:
                    continue
                if writes:
                    last[element] = number
                elif element not in last:
                    first.setdefault(element, number)
    return first, last


def check(program, names, fair):
    """Compare with :func:`plain`, element by element."""
    found, (first, last) = transfers(program, names, 1, fair), plain(program, names)
    loaded = {element: group for group, ranges in enumerate(found.loads)
              for start, stop in ranges for element in range(start, stop)}
    assert loaded.keys() == first.keys()
    for element, phase in first.items():
        assert loaded[element] in found.needs[phase]
    stored = [element for ranges in found.stores for start, stop in ranges
              for element in range(start, stop)]
    assert sorted(stored) == sorted(last)  # every one once
    for group, ranges in enumerate(found.stores):
        writers = {last[element] for start, stop in ranges for element in range(start, stop)}
        assert writers == {n for n, given in enumerate(found.gives) if given == group}
        assert found.shares[group] == len(writers)
    places = [found.place(element) for element in sorted({*first, *last})]
    assert len(set(places)) == len(places) and all(0 <= place < found.count for place in places)
    # Neighbours are neighbours in the window: an extent is one piece there.
    for one, other in zip(sorted({*first, *last}), sorted({*first, *last})[1:]):
        assert other != one + 1 or found.place(other) == found.place(one) + 1
    return found


@pytest.mark.parametrize("fair", [1, 7, 1 << 20])
@pytest.mark.parametrize(("collective", "algorithm"), [
    ("allreduce", "ring"), ("allreduce", "rabenseifner"), ("bcast", "binomial"),
    ("allgather", "bruck"), ("reduce_scatter", "pat"), ("scan", "recursive_doubling")])
def test_programs(collective, algorithm, fair):
    for size in (1, 2, 3, 5, 8):
        built = schedule(collective, algorithm, size)
        for rank in {0, size - 1}:
            for in_place in (False, True):
                if collective in ("allgather", "reduce_scatter"):
                    counts = [3, 0, 5, 1, 4, 2, 7, 1][:size]
                    layout, _ = block_layout(built, rank, counts, in_place)
                else:
                    layout, _ = vector_layout(built, rank, 23, in_place)
                program = lower(built.program(rank), layout)
                for names in ((IN,), (OUT,), (IN, OUT)):
                    if names == (IN, OUT) or not in_place:
                        found = check(program, names, fair)
                        assert fair < 1 << 20 or max(len(found.loads), len(found.stores)) <= 1


def test_a_ring_sends_before_all_is_there_and_stores_block_by_block():
    built = schedule("allreduce", "ring", 4)
    program = lower(built.program(1), vector_layout(built, 1, 40, False)[0])
    loads, stores = (transfers(program, (name,), 1, 1) for name in (IN, OUT))
    # Its own block is sent, and added to the next one; then one block after the other.
    assert loads.loads == (((0, 20),), ((30, 40),), ((20, 30),))
    assert loads.needs[:4] == ((0,), (1,), (2,), ())
    assert [ranges for ranges, in stores.stores] == [(20, 30), (10, 20), (0, 10), (30, 40)]
    assert transfers(program, (IN,), 1, 20).loads == (((0, 20),), ((20, 40),))


def test_what_has_no_order_is_loaded_before_everything_and_stored_after_everything():
    ends = (Message(SEND, 1, Extent(IN, 0, 4)), Message(RECV, 1, Extent(OUT, 0, 4)))
    phases = (Phase((), ends, ()), Phase((), (), (Local(Extent(OUT, 8, 2), Extent(IN, 4, 2)),)))
    ordered = LoweredProgram(phases, 0, 0)
    lanes = ordered._replace(waits=((), ()))
    assert [transfers(each, (IN,), 1, 1).needs for each in (ordered, lanes)] == [
        ((0,), (1,)), ((0,), (0,))]
    found = transfers(lanes, (OUT,), 1, 1)
    assert found.stores == (((0, 4), (8, 10)),) and found.gives == (0, 0) and found.shares == (2,)
    assert found.anywhere


def test_a_program_that_touches_nothing():
    found = transfers(LoweredProgram((Phase((), (), ()),), 0, 0), (IN,), 4, 1)
    assert found[:4] == ((), (), 0, ()) and found.needs == ((),) and found.gives == (-1,)
