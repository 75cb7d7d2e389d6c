"""Messages used where they lie leave the same memory as messages received first.

Random phases, most of which no algorithm would make: whatever :func:`hpccoll.ir.dataflow.consumers`
accepts is carried out on arrays, with messages that arrive in any order, that are used from the
sender's memory or put aside into their landing space first, and sends that are read early or late.
"""

import numpy
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hpccoll.ir.collectives import IN, OUT, TMP
from hpccoll.ir.dataflow import consumers
from hpccoll.ir.extents import Extent, Local, Message, Phase, is_within
from hpccoll.ir.schedule import RECV, SEND

#: Elements of a cell; buffers are made of CELLS cells, scratch of that many and landing space.
WIDTH, CELLS = 4, 3
SPACE = WIDTH * CELLS
SIZES = {IN: SPACE, OUT: SPACE, TMP: 2 * SPACE}
LANDING = [Extent(TMP, start, WIDTH) for start in range(SPACE, 2 * SPACE, WIDTH)]
HELD = [Extent(buffer, start, WIDTH) for buffer in (IN, OUT, TMP)
        for start in range(0, SPACE, WIDTH)]


def pieces(cells, count=None):
    """Parts of cells; of a certain number of elements, if that is given."""
    def cut(cell, count, start):
        return Extent(cell.buffer, cell.offset + min(start, WIDTH - count), count)

    counts = st.integers(1, WIDTH) if count is None else st.just(count)
    return st.builds(cut, st.sampled_from(cells), counts, st.integers(0, WIDTH))


@st.composite
def phases(draw):
    """Messages that do not meet, and local steps of which most use what arrives."""
    landings = draw(st.permutations(LANDING))
    held = draw(st.permutations([e for e in HELD if e.buffer != IN]))
    messages, taken = [], []
    for peer in range(draw(st.integers(1, 3))):
        taken.append(landings.pop() if draw(st.integers(0, 5)) else held.pop())
        messages.append(Message(RECV, peer, draw(pieces(taken[-1:]))))
    received = [message.extent for message in messages]
    free = [cell for cell in HELD if cell not in taken]
    for _ in range(draw(st.integers(0, 2))):
        messages.insert(draw(st.integers(0, len(messages))),
                        Message(SEND, 9, draw(pieces(free))))
    users = draw(st.lists(st.sampled_from(range(len(received))), min_size=1, max_size=4))
    after = []
    for user in sorted(users) if draw(st.integers(0, 5)) else users:
        landing, cell = received[user], taken[user:user + 1]
        count = draw(st.integers(1, landing.count))
        start = landing.offset + draw(st.integers(0, landing.count - count))
        arriving = Extent(landing.buffer, start, count)
        if not draw(st.integers(0, 9)):
            arriving = draw(pieces(cell, count))
        mine = draw(pieces(draw(st.sampled_from([free, free, free, taken, cell])), count))
        into = draw(pieces([cell for cell in (free if draw(st.integers(0, 5)) else HELD)
                            if cell.buffer != IN], count))
        after.append(Local(into, *draw(st.sampled_from(
            [(arriving,), (arriving, mine), (mine, arriving)]))))
    return Phase((), tuple(messages), tuple(after))


def carry_out(memory, step, message=None, landing=None):
    """Run a local step; with a message, on that in place of the operand that lies in landing."""
    operands = [cells(memory, extent).copy() for extent in step[1:] if extent]
    if message is not None:
        place = 0 if is_within(step.left, landing) else 1
        start = step[1 + place].offset - landing.offset
        operands[place] = message[start:start + step.into.count]
    left, *right = operands
    cells(memory, step.into)[:] = 3 * left - 5 * right[0] + 1 if right else left


def cells(memory, extent):
    return memory[extent.buffer][extent.offset:extent.offset + extent.count]


def start():
    return {buffer: numpy.arange(size) * 7 + 1000 * i
            for i, (buffer, size) in enumerate(SIZES.items())}


def received_first(phase, arriving):
    """What the phase means: everything arrives, then the local steps run."""
    memory = start()
    for message in phase.messages:
        if message.kind == RECV:
            cells(memory, message.extent)[:] = arriving[message]
    for step in phase.after:
        carry_out(memory, step)
    return memory


@pytest.mark.slow
@settings(max_examples=100)
@given(phases(), st.data())
def test_any_order_of_arrival_gives_the_same_memory(phase, data):
    uses = consumers(phase, SPACE)
    assume(uses is not None)
    assert tuple(step for steps in uses for step in steps) == phase.after
    receives = [m for m in phase.messages if m.kind == RECV]
    arriving = {m: numpy.arange(m.extent.count) + 100_000 * (m.peer + 1) for m in receives}
    expected = received_first(phase, arriving)

    memory, fresh = start(), start()
    waiting, here, aside = list(zip(phase.messages, uses)), set(), set()
    for message in data.draw(st.permutations(phase.messages)):
        if message.kind == SEND:  # the moment at which the receiver of it reads
            assert (cells(memory, message.extent) == cells(fresh, message.extent)).all()
        elif data.draw(st.booleans()):
            cells(memory, message.extent)[:] = arriving[message]
            aside.add(message)
        here.add(message)
        # Messages are used in the order of the phase, whenever the first of them is there.
        while waiting and (waiting[0][0] in here or waiting[0][0].kind == SEND):
            first, steps = waiting.pop(0)
            for step in steps:
                source = cells(memory, first.extent) if first in aside else arriving[first]
                carry_out(memory, step, source.copy(), first.extent)
            if first.kind == RECV and not steps:
                cells(memory, first.extent)[:] = arriving[first]
    assert not waiting
    for buffer in (IN, OUT, TMP):
        assert (memory[buffer][:SPACE] == expected[buffer][:SPACE]).all()
