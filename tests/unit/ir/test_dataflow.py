"""What local steps do with messages, and with each other's results."""

import pytest

from hpccoll.ir.collectives import IN, OUT, TMP
from hpccoll.ir.dataflow import consumers, fused_with_next
from hpccoll.ir.extents import Extent, Local, SlotLayout, pack_extents
from hpccoll.ir.lowering import lower
from hpccoll.ir.schedule import LEFT, RIGHT, Program, at, copy, recv, reduce, send


def lowered(*rounds, counts=(2, 2, 2), outs=None, scratch=()):
    """Lower rounds on blocks of the given counts in ``in`` and ``out``."""
    layout = SlotLayout({IN: pack_extents(IN, counts), OUT: pack_extents(OUT, outs or counts)},
                    lambda key: counts[key])
    return lower(Program(tuple(map(tuple, rounds)), scratch), layout)


def used(program, number=0):
    found = consumers(program.phases[number], program.landing)
    return found and [list(map(str, steps)) for steps in found]


def test_reductions_and_unpacking_can_use_messages_in_place():
    program = lowered([recv(1, at(OUT, 0), reduce=LEFT), send(1, at(OUT, 1)),
                       recv(2, at(OUT, 0), reduce=RIGHT)])
    assert used(program) == [["out<0+2> <- tmp<0+2> op out<0+2>"], [],
                             ["out<0+2> <- out<0+2> op tmp<2+2>"]]
    scattered = lowered([recv(1, at(OUT, 2), at(OUT, 0))])
    assert used(scattered) == [["out<4+2> <- tmp<0+2>", "out<0+2> <- tmp<2+2>"]]


@pytest.mark.parametrize("steps", [
    # The message stays in memory that is looked at later.
    [recv(1, at(OUT, 0)), reduce(at(OUT, 1), at(OUT, 0))],
    [recv(1, at(TMP, 0)), copy(at(OUT, 1), at(TMP, 0))],
    # Memory that is being sent is written.
    [recv(1, at(OUT, 0), reduce=LEFT), send(2, at(OUT, 0))],
    # A local step uses no message.
    [recv(1, at(OUT, 0), reduce=LEFT), reduce(at(OUT, 1), at(OUT, 2))],
])
def test_where_messages_must_be_received_first(steps):
    assert used(lowered(steps, scratch=(0,))) is None


def test_nothing_to_do_means_nothing_to_use():
    phase = lowered([send(1, at(OUT, 0))]).phases[0]
    assert consumers(phase, 0) == [[]]


def test_steps_that_go_on_with_a_result():
    x, y, a, b, c = (Extent(TMP, 10 * i, 5) for i in range(5))
    half = Extent(TMP, 2, 5)
    for steps, wanted in (
            ([], []), ([Local(x, a, b)], [False]),
            ([Local(x, a, b), Local(x, x, c), Local(x, a, x)], [True, True, False]),
            ([Local(x, a, b), Local(y, x, c), Local(y, y, b)], [True, True, False]),
            ([Local(x, a, b), Local(y, a, c)], [False, False]),
            ([Local(x, a, b), Local(x, x, x)], [False, False]),  # taken twice
            ([Local(x, a, b), Local(x, x, half)], [False, False]),  # and a part of it
            ([Local(x, a), Local(x, x, b), Local(y, x)], [False, False, False])):
        assert fused_with_next(steps) == wanted
