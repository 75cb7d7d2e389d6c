"""Compiled plans say what the lowered programs say; nothing else passes for one."""

import random
from array import array

import pytest

from hpccoll.algorithms import ALGORITHMS, schedule
from hpccoll.errors import HpccollError
from hpccoll.ir.collectives import IN, OUT, TMP
from hpccoll.ir.extents import Extent, Local, LoweredProgram, Message, Phase, Segment, shift_scratch
from hpccoll.ir.schedule import RECV, SEND
from hpccoll.proof.cases import cases, lower_all
from hpccoll.runtime.events.phase_events import PHASE_BITS, PLAN_BITS, Activity, PhaseRecorder
from hpccoll.runtime.execution.compiled_plan import (
    WIDTH,
    Code,
    Instruction,
    MessageOverlap,
    Way,
    encode,
    encode_segments,
)
from support.compiled_plans import as_text
from support.decoding import decode, normal_form

PAIRS = [(collective, name) for collective, entries in ALGORITHMS.items() for name in entries]
PLACES = 4
#: The node of a rank of so many: two in order, three in turn, the first one alone.
NODES = {"in order": lambda rank, size: 2 * rank >= size, "dealt out": lambda rank, size: rank % 3,
         "one alone": lambda rank, size: rank > 0}


def programs(collective, name, sizes, node=lambda rank, size: 0, most=3):
    """Lowered programs of some ranks of an algorithm, and who is on another node than each."""
    for size in sizes:
        first = sum(node(rank, size) == node(0, size) for rank in range(size))
        layout = f"{first},{size - first}" if first < size else f"1x{size}"
        try:
            made = schedule(collective, name, size, **(
                {"topology": layout} if ALGORITHMS[collective][name].hierarchical else {}))
        except HpccollError:
            continue  # it is not for so many ranks
        for rank in sorted({0, size // 2, size - 1})[-most:]:
            far = {other for other in range(size) if node(other, size) != node(rank, size)}
            for case in cases(made, made.collective)[-2:]:
                for segment in lower_all(made, made.collective, rank, case)[:1]:
                    yield segment.program, 8, far


@pytest.mark.slow(every=10)
@pytest.mark.parametrize("collective, name", PAIRS)
def test_a_plan_says_what_its_program_says(collective, name):
    encoded = 0
    for program, itemsize, _ in programs(collective, name, range(1, 18)):
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
    """Without what notes them it is the same plan; each instruction is noted as what it does."""
    doing = {Instruction.SEND: {Activity.SENDING}, Instruction.TAKE: {Activity.WAITING},
             Instruction.FLUSH: {Activity.DRAINING}, Instruction.REDUCE: {Activity.REDUCING},
             Instruction.COPY: {Activity.COPYING, Activity.REDUCING},
             Instruction.TAKEN: {Activity.COPYING, Activity.REDUCING}}
    for program, itemsize, _ in programs(collective, name, (2, 3, 5)):
        plain = encode(program, itemsize, PLACES)
        code = encode_segments((Segment(program, 0),), 1, itemsize, PLACES,
                               noting=PhaseRecorder(7))
        assert decode(code, itemsize) == normal_form(program.phases)
        kept, now = [], None
        for step in code.steps():
            if step[0] == Instruction.NOTE:
                assert step[2] >> PLAN_BITS == 7 and step[3] >> PHASE_BITS == step[1]
                now = Activity(step[3] & (1 << PHASE_BITS) - 1)
                assert now.name.lower() in as_text(code)
                continue
            assert step[0] == Instruction.END or now in doing[step[0]]
            kept.append(step)
        assert kept == list(plain.steps())


@pytest.mark.slow(every=10)
@pytest.mark.parametrize("nodes", NODES)
@pytest.mark.parametrize("collective, name", PAIRS)
def test_messages_of_other_nodes_are_in_batches(collective, name, nodes):
    """All of them, and no others, whether the algorithm knows the nodes or not."""
    batches = encoded = 0
    for number, (program, itemsize, far) in enumerate(
            programs(collective, name, (*range(2, 13), 16, 17), NODES[nodes], 2)):
        chains = bool(number % 2)
        code = encode(program, itemsize, PLACES, chains, far)
        if code is None:
            continue
        encoded += 1
        assert decode(code, itemsize, program.single_block if chains else ()
                      ) == normal_form(program.phases, far)
        found = [message.way[:2] for batch in code.batches() for message in batch]
        assert found == [message[:2] for phase in program.phases for message in phase.messages
                         if message.peer in far]
        assert not {way.peer for way in code.ways} & far
        batches += len(code.batches())
    assert encoded and batches


def moved(phase, shift):
    """A phase in the memory of another segment."""
    def steps(locals_):
        return tuple(Local(*(extent and shift_scratch(extent, shift) for extent in step))
                     for step in locals_)
    return Phase(steps(phase.before),
                 tuple(message._replace(extent=shift_scratch(message.extent, shift))
                                            for message in phase.messages), steps(phase.after))


@pytest.mark.parametrize("collective, name", [
    ("allreduce", "recursive_doubling"), ("allreduce", "ring"), ("reduce_scatter", "pairwise"),
    ("bcast", "binomial"), ("alltoall", "bruck"), ("allgather", "ring"), ("scan", "linear")])
def test_segments_follow_each_other(collective, name):
    """Each on its part of the memory, by the channels of its turn."""
    for program, itemsize, _ in programs(collective, name, (4,)):
        cut = [Segment(program, shift) for shift in (0, 5, 10)]
        code = encode_segments(cut, 2, itemsize, PLACES)
        assert decode(code, itemsize, usual=MessageOverlap.PIPELINED) == normal_form(
            [moved(phase, segment.shift) for segment in cut for phase in segment.program.phases])
        sent = [code.ways[step[2]].slot for step in code.steps() if step[0] in (
            Instruction.SEND, Instruction.TAKE)]
        each = len(sent) // 3
        assert sent == [0] * each + [1] * each + [0] * each


@pytest.mark.parametrize("name", ["allpairs", "recursive_multiplying"])
def test_chains_are_where_the_interpreter_has_them(name):
    """Forms that were left out, or put where blocks differ, are no compiled plan of the program."""
    chained = 0
    for program, itemsize, _ in programs("allreduce", name, (3, 4, 5)):
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


@pytest.mark.slow(every=10)
@pytest.mark.parametrize("collective, name", [
    ("allreduce", "recursive_doubling"), ("allreduce", "ring"), ("reduce_scatter", "pairwise"),
    ("bcast", "binomial"), ("alltoall", "bruck"), ("scan", "linear"), ("allgather", "ring"),
    ("allreduce", "leader"), ("allreduce", "rails")])
@pytest.mark.parametrize("node", [lambda rank, size: 0, *NODES.values()],
                         ids=["one node", *NODES])
def test_a_plan_with_another_word_is_another_program(collective, name, node):
    """Every word of a plan counts: changed, it says something else, or is no plan."""
    numbers = random.Random(1)
    changes = survived = 0
    for program, itemsize, far in list(programs(collective, name, (2, 4, 5), node))[:6]:
        code = encode(program, itemsize, PLACES, remote=far)
        for place in range(len(code.words)):
            words = array("q", code.words)
            words[place] += numbers.choice([-8, -1, 1, 2, 8, 1 << 48])
            changes += 1
            try:
                survived += decode(code._replace(words=words), itemsize) == normal_form(
                    program.phases, far)
            except ValueError:
                pass
    assert changes > 20
    assert not survived


@pytest.mark.parametrize("node", [lambda rank, size: 0, *NODES.values()],
                         ids=["one node", *NODES])
@pytest.mark.parametrize("name", ["recursive_doubling", "ring", "leader"])
def test_a_plan_with_an_instruction_less_or_twice_is_another_program(name, node):
    changed = 0
    for program, itemsize, far in programs("allreduce", name, (2, 3, 4), node):
        code = encode(program, itemsize, PLACES, remote=far)
        for start in range(0, len(code.words), WIDTH):
            one = code.words[start:start + WIDTH]
            for words in (code.words[:start] + code.words[start + WIDTH:],
                          code.words[:start] + one + code.words[start:]):
                try:
                    assert decode(code._replace(words=words), itemsize) != normal_form(
                        program.phases, far), as_text(code)
                except ValueError:
                    changed += 1
    assert changed


def instruction(operation, *operands):
    return array("q", [operation, 0, *operands, *[0] * (WIDTH - 2 - len(operands))])


@pytest.mark.parametrize("order, problem", [
    ("post start send take copy taken flush await reduce end", None),
    ("post start send take copy taken await flush reduce end", "early"),
    ("post start send await take copy taken flush reduce end", "early"),
    ("post start await send take copy taken flush reduce end", "late"),
    ("post start await take copy taken reduce end", "late"),
    ("post start take copy taken reduce await end", "sent"),
    ("send post start take copy taken flush await reduce end", "phase"),
    ("post send start take copy taken flush await reduce end", "started"),
    ("post start post start await await end", "phase"),
    ("start await end", "messages"), ("post end", "started"),
    ("post start end", "sent"), ("await end", "under way"),
    ("post start await await end", "under way")])
def test_batches_have_their_place_in_a_phase(order, problem):
    """Started before everything else, waited for behind it, and before what uses their messages."""
    words = {"post": (Instruction.POST, 0, 0, 8), "start": (Instruction.START, 0),
             "await": (Instruction.AWAIT, 0), "send": (Instruction.SEND, 0, 0, 8),
             "take": (Instruction.TAKE, 1, 1 << 48, 8),
             "copy": (Instruction.COPY, 1 << 48, 3 << 48, 8), "taken": (Instruction.TAKEN, 1),
             "flush": (Instruction.FLUSH,), "end": (Instruction.END,),
             "reduce": (Instruction.REDUCE, 0, 1 << 48, 1 << 48, 2 << 48, 1)}
    code = Code(sum((instruction(*words[word]) for word in order.split()), array("q")),
                (Way(SEND, 1), Way(RECV, 1)), 8, remote=(Way(RECV, 2),))
    if problem is None:
        phase, = decode(code, 8, usual=MessageOverlap.PIPELINED)
        assert [message.peer for message in phase.messages] == [1, 2, 1] and len(phase.after) == 1
        assert code.batches()[0][0].way == Way(RECV, 2)
    else:
        with pytest.raises(ValueError, match=problem):
            decode(code, 8)


def test_a_rank_is_near_or_far():
    code = Code(instruction(Instruction.END), (Way(SEND, 1),), 8, remote=(Way(RECV, 1),))
    with pytest.raises(ValueError, match="near"):
        decode(code, 8)
    with pytest.raises(ValueError, match="that the compiled plan has not"):
        decode(Code(instruction(Instruction.POST, 1, 0, 8), (), 0, remote=(Way(RECV, 1),)), 8)


def test_messages_are_used_in_their_cells():
    landing = Extent(TMP, 0, 2)
    phase = Phase((), (Message(SEND, 1, Extent(IN, 0, 2)), Message(RECV, 1, landing)),
                  (Local(Extent(OUT, 0, 2), Extent(IN, 0, 2), landing),))
    code = encode(LoweredProgram((phase,), 2, 0), 8, PLACES)
    assert [Instruction(step[0]).name for step in code.steps()] == [
        "SEND", "TAKE", "REDUCE", "TAKEN", "FLUSH", "END"]
    assert "out+0 <- in+0 op cell+0" in as_text(code)
    assert code.longest == 16 and [tuple(way) for way in code.ways] == [(SEND, 1, 0), (RECV, 1, 0)]


def test_what_no_plan_can_do():
    """More messages than places in a phase, and results that overlap an operand in part."""
    many = Phase((), tuple(Message(RECV, 1, Extent(OUT, i, 1)) for i in range(5)), ())
    assert encode(LoweredProgram((many,), 0, 0), 8, 4) is None
    assert encode(LoweredProgram((many,), 0, 0), 8, 5) is not None
    shifted = Local(Extent(OUT, 1, 2), Extent(OUT, 0, 2), Extent(IN, 0, 2))
    assert encode(LoweredProgram((Phase((shifted,), (), ()),), 0, 0), 8, 4) is None


def test_an_empty_program():
    code = encode(LoweredProgram((), 0, 0), 8, PLACES)
    assert decode(code, 8) == () and as_text(code).split() == ["0", "end"]
    with pytest.raises(ValueError, match="no end"):
        decode(Code(array("q"), (), 0), 8)
