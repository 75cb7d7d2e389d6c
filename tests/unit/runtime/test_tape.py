"""Tapes say what the lowered programs say that they were made of; nothing else passes for one."""

import random
from array import array

import pytest

from hpccoll.algorithms import ALGORITHMS, schedule
from hpccoll.errors import HpccollError
from hpccoll.ir.collectives import IN, OUT, TMP
from hpccoll.ir.extents import Extent, Local, Lowered, Message, Phase, Segment, shifted
from hpccoll.ir.schedule import RECV, SEND
from hpccoll.proof.cases import cases, lower_all
from hpccoll.runtime.moments import PHASE_BITS, PLAN_BITS, Activity, Noting
from hpccoll.runtime.tape import (
    WIDTH,
    Code,
    Instruction,
    decode,
    encode,
    encode_segments,
    normal_form,
)
from hpccoll.runtime.tape_text import as_text

PAIRS = [(collective, name) for collective, entries in ALGORITHMS.items() for name in entries]
PLACES = 4


def programs(collective, name, sizes):
    """Lowered programs of some ranks of an algorithm, each with bytes of an element."""
    for size in sizes:
        try:
            made = schedule(collective, name, size, **(
                {"topology": f"1x{size}"} if ALGORITHMS[collective][name].hierarchical else {}))
        except HpccollError:
            continue  # it is not for so many ranks
        for rank in sorted({0, size // 2, size - 1}):
            for case in cases(made, made.collective)[-2:]:
                for segment in lower_all(made, made.collective, rank, case)[:1]:
                    yield segment.program, 8


@pytest.mark.parametrize("collective, name", PAIRS)
def test_a_tape_says_what_its_program_says(collective, name):
    encoded = 0
    for program, itemsize in programs(collective, name, range(1, 18)):
        for chains in (False, True):
            code = encode(program, itemsize, PLACES, chains)
            if code is not None:
                encoded += 1
                assert decode(code, itemsize, program.single_block if chains else ()
                              ) == normal_form(program.phases)
    assert encoded


@pytest.mark.parametrize("collective, name", [
    ("allreduce", "recursive_doubling"), ("allreduce", "ring"), ("bcast", "binomial"),
    ("reduce_scatter", "pairwise"), ("alltoall", "bruck"), ("scan", "linear")])
def test_moments_are_noted_beside_the_program(collective, name):
    """Without what notes them it is the same tape; each instruction is noted as what it does."""
    doing = {Instruction.SEND: {Activity.SENDING}, Instruction.TAKE: {Activity.WAITING},
             Instruction.FLUSH: {Activity.DRAINING}, Instruction.REDUCE: {Activity.REDUCING},
             Instruction.COPY: {Activity.COPYING, Activity.REDUCING},
             Instruction.TAKEN: {Activity.COPYING, Activity.REDUCING}}
    for program, itemsize in programs(collective, name, (2, 3, 5)):
        plain = encode(program, itemsize, PLACES)
        code = encode_segments((Segment(program, 0),), 1, itemsize, PLACES,
                               noting=Noting(None, 7))
        assert decode(code, itemsize) == normal_form(program.phases)
        kept, now = [], None
        for step in code.steps():
            if step[0] == Instruction.NOTE:
                assert step[2] >> PLAN_BITS == 7 and step[3] >> PHASE_BITS == step[1]
                now = Noting.activity(step[3])
                assert now.name.lower() in as_text(code)
                continue
            assert step[0] == Instruction.END or now in doing[step[0]]
            kept.append(step)
        assert kept == list(plain.steps())


def moved(phase, shift):
    """A phase in the memory of another segment."""
    def steps(locals_):
        return tuple(Local(*(extent and shifted(extent, shift) for extent in step))
                     for step in locals_)
    return Phase(steps(phase.before), tuple(message._replace(extent=shifted(message.extent, shift))
                                            for message in phase.messages), steps(phase.after))


@pytest.mark.parametrize("collective, name", [
    ("allreduce", "recursive_doubling"), ("allreduce", "ring"), ("reduce_scatter", "pairwise"),
    ("bcast", "binomial"), ("alltoall", "bruck"), ("allgather", "ring"), ("scan", "linear")])
def test_segments_follow_each_other(collective, name):
    """Each on its part of the memory, by the channels of its turn."""
    for program, itemsize in programs(collective, name, (4,)):
        cut = [Segment(program, shift) for shift in (0, 5, 10)]
        code = encode_segments(cut, 2, itemsize, PLACES)
        assert decode(code, itemsize) == normal_form(
            [moved(phase, segment.shift) for segment in cut for phase in segment.program.phases])
        sent = [code.ways[step[2]].slot for step in code.steps() if step[0] in (
            Instruction.SEND, Instruction.TAKE)]
        each = len(sent) // 3
        assert sent == [0] * each + [1] * each + [0] * each


@pytest.mark.parametrize("name", ["allpairs", "recursive_multiplying"])
def test_chains_are_where_the_interpreter_has_them(name):
    """Forms that were left out, or put where blocks differ, are no tape of the program."""
    chained = 0
    for program, itemsize in programs("allreduce", name, (3, 4, 5)):
        code = encode(program, itemsize, PLACES, True)
        if code is not None and code.held:
            chained += 1
            assert "held" in as_text(code)
            for wrong in (encode(program, itemsize, PLACES), code._replace(held=code.held - 1)):
                with pytest.raises(ValueError, match="chain|accumulator"):
                    decode(wrong, itemsize, program.single_block)
            with pytest.raises(ValueError, match="chain"):
                decode(code, itemsize)
    assert chained


@pytest.mark.parametrize("collective, name", [
    ("allreduce", "recursive_doubling"), ("allreduce", "ring"), ("reduce_scatter", "pairwise"),
    ("bcast", "binomial"), ("alltoall", "bruck"), ("scan", "linear"), ("allgather", "ring")])
def test_a_tape_with_another_word_is_another_program(collective, name):
    """Every word of a tape counts: changed, it says something else, or is no tape."""
    numbers = random.Random(1)
    changes = survived = 0
    for program, itemsize in list(programs(collective, name, (2, 4, 5)))[:6]:
        code = encode(program, itemsize, PLACES)
        for place in range(len(code.words)):
            words = array("q", code.words)
            words[place] += numbers.choice([-8, -1, 1, 2, 8, 1 << 48])
            changes += 1
            try:
                survived += decode(code._replace(words=words), itemsize) == normal_form(
                    program.phases)
            except ValueError:
                pass
    assert changes > 20
    assert not survived


def test_a_tape_with_an_instruction_less_or_twice_is_another_program():
    changed = 0
    for program, itemsize in programs("allreduce", "recursive_doubling", (2, 3, 4)):
        code = encode(program, itemsize, PLACES)
        for start in range(0, len(code.words), WIDTH):
            one = code.words[start:start + WIDTH]
            for words in (code.words[:start] + code.words[start + WIDTH:],
                          code.words[:start] + one + code.words[start:]):
                try:
                    assert decode(code._replace(words=words), itemsize) != normal_form(
                        program.phases), as_text(code)
                except ValueError:
                    changed += 1
    assert changed


def test_messages_are_used_in_their_cells():
    landing = Extent(TMP, 0, 2)
    phase = Phase((), (Message(SEND, 1, Extent(IN, 0, 2)), Message(RECV, 1, landing)),
                  (Local(Extent(OUT, 0, 2), Extent(IN, 0, 2), landing),))
    code = encode(Lowered((phase,), 2, 0), 8, PLACES)
    assert [Instruction(step[0]).name for step in code.steps()] == [
        "SEND", "TAKE", "REDUCE", "TAKEN", "FLUSH", "END"]
    assert "out+0 <- in+0 op cell+0" in as_text(code)
    assert code.longest == 16 and [tuple(way) for way in code.ways] == [(SEND, 1, 0), (RECV, 1, 0)]


def test_what_no_tape_can_do():
    """More messages than places in a phase, and results that overlap an operand in part."""
    many = Phase((), tuple(Message(RECV, 1, Extent(OUT, i, 1)) for i in range(5)), ())
    assert encode(Lowered((many,), 0, 0), 8, 4) is None
    assert encode(Lowered((many,), 0, 0), 8, 5) is not None
    shifted = Local(Extent(OUT, 1, 2), Extent(OUT, 0, 2), Extent(IN, 0, 2))
    assert encode(Lowered((Phase((shifted,), (), ()),), 0, 0), 8, 4) is None


def test_an_empty_program():
    code = encode(Lowered((), 0, 0), 8, PLACES)
    assert decode(code, 8) == () and as_text(code).split() == ["0", "end"]
    with pytest.raises(ValueError, match="no end"):
        decode(Code(array("q"), (), 0), 8)
