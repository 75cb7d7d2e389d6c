"""Lowering: what becomes of a program on concrete block sizes."""

import pytest

from hpccoll.errors import ScheduleError
from hpccoll.ir.collectives import IN, OUT, TMP
from hpccoll.ir.lowering import (
    Extent,
    Local,
    SlotLayout,
    alias,
    consumers,
    fused_with_next,
    lower,
    packed,
    segments,
    shifted,
)
from hpccoll.ir.schedule import LEFT, RIGHT, Program, at, copy, recv, reduce, send


def lowered(*rounds, counts=(2, 2, 2), outs=None, scratch=()):
    """Lower rounds on blocks of the given counts in ``in`` and ``out``."""
    layout = SlotLayout({IN: packed(IN, counts), OUT: packed(OUT, outs or counts)},
                    lambda key: counts[key])
    return lower(Program(tuple(map(tuple, rounds)), scratch), layout)


def text(program):
    """Every phase as (before, messages, after), in words."""
    return [tuple(list(map(str, part)) for part in phase) for phase in program.phases]


def test_messages_name_elements():
    assert text(lowered([send(1, at(OUT, 1)), recv(2, at(OUT, 2))])) == [
        ([], ["send 1 out<2+2>", "recv 2 out<4+2>"], [])]


def test_the_input_is_read_where_it_lies():
    # The copy is only remembered: the send reads in, the reduction takes in as its operand.
    program = lowered([copy(at(OUT, 0, 3), at(IN, 0, 3))],
                      [send(1, at(OUT, 0)), recv(1, at(OUT, 1), reduce=LEFT)])
    assert text(program) == [
        ([], ["send 1 in<0+2>", "recv 1 tmp<0+2>"], ["out<2+2> <- tmp<0+2> op in<2+2>"]),
        ([], [], ["out<0+2> <- in<0+2>", "out<4+2> <- in<4+2>"])]


def test_what_is_overwritten_is_not_copied_first():
    program = lowered([copy(at(OUT, 0, 3), at(IN, 0, 3))], [recv(1, at(OUT, 0, 3))])
    assert text(program) == [([], ["recv 1 out<0+6>"], [])]


def test_scratch_that_is_never_read_is_never_filled():
    assert lowered([copy(at(TMP, 0), at(IN, 0))], scratch=(0,)).phases == ()


@pytest.mark.parametrize("side, words", [
    (LEFT, "out<0+2> <- tmp<0+2> op in<0+2>"), (RIGHT, "out<0+2> <- in<0+2> op tmp<0+2>")])
def test_the_arriving_operand_stands_on_its_side(side, words):
    program = lowered([copy(at(OUT, 0), at(IN, 0))], [recv(1, at(OUT, 0), reduce=side)])
    assert text(program)[0][2] == [words]
    local = lowered([copy(at(OUT, 0), at(IN, 0)), reduce(at(OUT, 0), at(IN, 1), side)])
    assert text(local)[0][2] == [words.replace("tmp<0+2>", "in<2+2>")]


def test_copies_of_what_was_written_are_carried_out_once_and_joined():
    program = lowered([recv(1, at(TMP, 0, 2))], [copy(at(OUT, 0, 2), at(TMP, 0, 2))],
                      scratch=(0, 1))
    assert text(program)[1] == ([], [], ["out<0+4> <- tmp<0+4>"])


def test_scattered_memory_is_packed_for_the_wire():
    program = lowered([send(1, at(OUT, 0), at(OUT, 2)), recv(2, at(OUT, 2), at(OUT, 1))])
    assert text(program) == [(
        ["tmp<0+2> <- out<0+2>", "tmp<2+2> <- out<4+2>"],
        ["send 1 tmp<0+4>", "recv 2 tmp<4+4>"],
        ["out<4+2> <- tmp<4+2>", "out<2+2> <- tmp<6+2>"])]
    assert program.scratch == 8 and program.landing == 0


def test_adjacent_memory_is_not_packed():
    program = lowered([send(1, at(OUT, 0), at(OUT, 1, 3))])
    assert text(program) == [([], ["send 1 out<0+6>"], [])]


def test_landing_space_is_used_again_in_the_next_round():
    rounds = [[recv(1, at(OUT, 0), reduce=LEFT)], [recv(1, at(OUT, 0), reduce=LEFT)]]
    program = lowered(*rounds, scratch=(0, 1))
    assert program.scratch == 6 and program.landing == 4
    assert [phase.messages[0].extent for phase in program.phases] == [Extent(TMP, 4, 2)] * 2


def test_empty_blocks_vanish_and_tokens_stay():
    program = lowered([send(1, at(OUT, 1)), recv(1, at(OUT, 1), reduce=LEFT), send(2), recv(2),
                       send(1, at(OUT, 0, 0))], counts=(2, 0, 1))
    assert text(program) == [([], ["send 2 tmp<0+0>", "recv 2 tmp<0+0>"], [])]
    assert lowered([send(1, at(OUT, 0, 3))], counts=(0, 0, 0)).phases == ()


def test_sends_read_before_receives_of_the_same_round_overwrite():
    program = lowered([copy(at(OUT, 0), at(IN, 0))], [recv(1, at(OUT, 0)), send(1, at(OUT, 0))])
    assert text(program) == [([], ["recv 1 out<0+2>", "send 1 in<0+2>"], [])]


def test_a_copy_within_one_place_is_nothing():
    layout = SlotLayout({IN: packed(OUT, (2,)), OUT: packed(OUT, (2,))}, lambda key: 2)
    assert lower(Program(((copy(at(OUT, 0), at(IN, 0)),),)), layout).phases == ()


@pytest.mark.parametrize("steps, complaint", [
    ([send(1, at(OUT, 3))], r"out\[3\] does not exist: this rank has 3 slots there"),
    ([recv(1, at(TMP, 0))], r"tmp\[0\] does not exist: this rank has 0 slots there"),
    ([send(1, at("work", 0))], r"work\[0\] does not exist: this rank has 0 slots there"),
    ([recv(1, at(OUT, 2, 1))], r"out\[2:1\] does not exist"),
    ([recv(1, at(OUT, -1))], r"out\[-1\] does not exist"),
    ([recv(1, at(IN, 0))], r"in\[0\] is written, but the input is read-only"),
    ([copy(at(IN, 0), at(OUT, 0))], r"in\[0\] is written"),
    ([reduce(at(IN, 0), at(OUT, 0))], r"in\[0\] is written")])
def test_memory_that_does_not_exist_is_refused(steps, complaint):
    with pytest.raises(ScheduleError, match=complaint):
        lowered(steps)


# -- sharing memory -----------------------------------------------------------------------------
def places(ins, outs):
    return {IN: packed(IN, ins), OUT: packed(OUT, outs)}


def test_alias_same():
    shared = places((2, 3), (2, 3))
    alias("same", shared, 0, 0)
    assert shared[IN] == shared[OUT] == packed(OUT, (2, 3))
    only = {IN: packed(IN, (2,))}
    alias("same", only, 1, 0)  # a rank that is not the root of a reduction
    assert only == {IN: packed(IN, (2,))}


def test_alias_own():
    shared = places((3,), (2, 3, 4))
    alias("own", shared, 1, 0)
    assert shared[IN] == [Extent(OUT, 2, 3)]


def test_alias_front():
    shared = places((2, 3), (3,))
    alias("front", shared, 1, 0)
    assert shared[IN] == packed(OUT, (2, 3)) and shared[OUT] == [Extent(OUT, 0, 3)]


def test_alias_root():
    shared = places((2, 3), (3,))
    alias("root", shared, 1, 1)
    assert shared[OUT] == [Extent(IN, 2, 3)]
    elsewhere = {OUT: packed(OUT, (2,))}
    alias("root", elsewhere, 0, 1)
    assert elsewhere[OUT] == [Extent(OUT, 0, 2)]


def test_in_place_needs_no_copy():
    shared = places((2, 2), (2, 2))
    alias("same", shared, 0, 0)
    program = lower(Program(((copy(at(OUT, 0, 2), at(IN, 0, 2)),),
                             (send(1, at(OUT, 0)), recv(1, at(OUT, 1), reduce=LEFT)))),
                    SlotLayout(shared, lambda key: 2))
    assert text(program) == [
        ([], ["send 1 out<0+2>", "recv 1 tmp<0+2>"], ["out<2+2> <- tmp<0+2> op out<2+2>"])]


# -- segments -----------------------------------------------------------------------------------
EXCHANGE = Program(((copy(at(OUT, 0, 2), at(IN, 0, 2)),),
                    (send(1, at(OUT, 0)), recv(1, at(OUT, 1), reduce=LEFT))), (0,))


def cut(counts, segment):
    layout = SlotLayout({IN: packed(IN, counts), OUT: packed(OUT, counts)}, counts.__getitem__)
    return segments(EXCHANGE, layout, max(counts), segment)


def test_one_segment_when_none_is_asked_for():
    made, = cut((5, 5), 0)
    assert made.shift == 0 and made.program.phases[0].messages[0].extent == Extent(IN, 0, 5)


def test_segments_of_equal_blocks_share_a_lowering():
    made = cut((7, 7), 3)
    assert [lane.shift for lane in made] == [0, 3, 0]
    assert made[0].program is made[1].program is not made[2].program
    sent = [shifted(lane.program.phases[0].messages[0].extent, lane.shift) for lane in made]
    assert sent == [Extent(IN, 0, 3), Extent(IN, 3, 3), Extent(IN, 6, 1)]


def test_segments_of_uneven_blocks_end_where_their_blocks_end():
    made = cut((1, 4), 2)
    sent = [[shifted(m.extent, lane.shift) for phase in lane.program.phases
             for m in phase.messages if m.kind == "send"] for lane in made]
    assert sent == [[Extent(IN, 0, 1)], []]


@pytest.mark.parametrize("counts", [(5, 5), (0, 3), (7, 6), (0, 0), (1, 9)])
@pytest.mark.parametrize("segment", [0, 1, 2, 4, 100])
def test_segments_cover_every_element_once(counts, segment):
    made = cut(counts, segment)
    written = sorted(cell for lane in made for phase in lane.program.phases
                     for step in phase.after for extent in [shifted(step.into, lane.shift)]
                     for cell in range(extent.offset, extent.offset + extent.count))
    assert written == list(range(sum(counts)))


def test_scratch_does_not_shift():
    assert shifted(Extent(TMP, 3, 2), 10) == Extent(TMP, 3, 2)
    assert shifted(Extent(OUT, 3, 2), 10) == Extent(OUT, 13, 2)


# -- messages used where they lie ---------------------------------------------------------------
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
