"""Messages used where they lie leave the same memory as messages received first.

Random phases, most of which no algorithm would make: whatever :func:`hpccoll.lower.consumers`
accepts is carried out on arrays, with messages that arrive in any order, that are used from the
sender's memory or put aside into their landing space first, and sends that are read early or late.
"""

import numpy
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from hpccoll.collective import IN, OUT, TMP
from hpccoll.lower import Extent, Local, Message, Phase, consumers, within
from hpccoll.schedule import RECV, SEND

#: Elements of a cell; buffers are made of CELLS cells, scratch of that many and landing space.
WIDTH, CELLS = 4, 3
SPACE = WIDTH * CELLS
SIZES = {IN: SPACE, OUT: SPACE, TMP: 2 * SPACE}
LANDING = [Extent(TMP, start, WIDTH) for start in range(SPACE, 2 * SPACE, WIDTH)]
HELD = [Extent(buffer, start, WIDTH) for buffer in (IN, OUT, TMP)
        for start in range(0, SPACE, WIDTH)]


@st.composite
def phases(draw):
    """Messages that do not meet, and local steps of which most use what arrives."""
    landings = draw(st.permutations(LANDING))
    held = draw(st.permutations([e for e in HELD if e.buffer != IN]))
    messages = []
    for _ in range(draw(st.integers(1, 3))):
        cell = landings.pop() if draw(st.integers(0, 5)) else held.pop()
        messages.append(Message(RECV, len(messages), cell))
    free = [e for e in HELD if e not in [m.extent for m in messages]]
    for _ in range(draw(st.integers(0, 2))):
        messages.insert(draw(st.integers(0, len(messages))),
                        Message(SEND, 9, draw(st.sampled_from(free))))
    received = [m.extent for m in messages if m.kind == RECV]
    users = draw(st.lists(st.sampled_from(range(len(received))), max_size=4))
    after = []
    for user in sorted(users) if draw(st.integers(0, 5)) else users:
        start = draw(st.integers(0, WIDTH - 1))
        count = draw(st.integers(1, WIDTH - start))

        def part(cells):
            buffer, offset, _ = draw(st.sampled_from(cells))
            return Extent(buffer, offset + start, count)

        arriving = part([received[user]])
        mine = part(free if draw(st.integers(0, 5)) else free + received)
        into = part([e for e in (free if draw(st.integers(0, 5)) else free + received)
                     if e.buffer != IN])
        operands = draw(st.sampled_from([(arriving,), (arriving, mine), (mine, arriving)]))
        after.append(Local(into, *operands))
    return Phase((), tuple(messages), tuple(after))


def carry_out(memory, step, arriving=None, landing=None):
    """Run a local step; operands in the landing space are taken from what is arriving."""
    def value(extent):
        if arriving is not None and within(extent, landing):
            start = extent.offset - landing.offset
            return arriving[start:start + extent.count]
        return memory[extent.buffer][extent.offset:extent.offset + extent.count].copy()

    left = value(step.left)
    result = left if step.right is None else 3 * left - 5 * value(step.right) + 1
    memory[step.into.buffer][step.into.offset:step.into.offset + step.into.count] = result


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


@settings(suppress_health_check=[HealthCheck.filter_too_much])
@given(phases(), st.data())
def test_any_order_of_arrival_gives_the_same_memory(phase, data):
    uses = consumers(phase, SPACE)
    assume(uses is not None and phase.after)
    assert tuple(step for steps in uses for step in steps) == phase.after
    receives = [m for m in phase.messages if m.kind == RECV]
    arriving = {m: numpy.arange(WIDTH) + 100_000 * (m.peer + 1) for m in receives}
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


@settings(max_examples=200)
@given(phases())
def test_many_of_these_phases_are_accepted(phase):
    """The law above says nothing if there is nothing that it is about."""
    if phase.after and consumers(phase, SPACE) is not None:
        test_many_of_these_phases_are_accepted.found += 1


test_many_of_these_phases_are_accepted.found = 0
