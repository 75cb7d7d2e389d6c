"""Whatever the call: the proof accepts every algorithm, running it agrees, lowering is sound."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from law.strategies import calls

from hpccoll.algorithms import ALGORITHMS
from hpccoll.ir.collectives import IN, OUT, TMP, slot_keys
from hpccoll.ir.extents import shift_scratch
from hpccoll.ir.schedule import RECV, SEND
from hpccoll.proof.cases import lower_all
from hpccoll.proof.verifier import prove
from hpccoll.testing.world import run

pytestmark = pytest.mark.parametrize("collective", ALGORITHMS)


def lowered(call):
    """Every rank's segments."""
    made = call.schedule
    return [lower_all(made, made.collective, rank, call.case()) for rank in range(made.size)]


@given(st.data())
def test_the_proof_accepts_every_call(collective, data):
    call = data.draw(calls(collective))
    proof = prove(call.schedule, call.schedule.collective, call.case())
    if call.rank_order:
        assert proof.rank_order
    if collective == "allreduce" and not call.entry.exact_only:
        assert proof.replicas_identical


@given(st.data())
def test_running_gives_what_was_wanted(collective, data):
    call = data.draw(calls(collective))
    ops = [("sum", "i8"), ("sum", "f4"), ("prod", "f8"), ("band", "u2")]
    ops += [("affine", "c16")] * 4 if call.rank_order else []
    op, dtype = data.draw(st.sampled_from(ops))
    assert not run(call.schedule, call.problem(op=op, dtype=dtype, seed=1), in_place=call.in_place,
                   segment=call.segment, **data.draw(st.fixed_dictionaries({
                       "gap": st.integers(0, 2), "seed": st.integers(0, 99),
                       "eager": st.booleans(), "direct": st.booleans(),
                       "repeats": st.integers(1, 2)})))


@given(st.data())
def test_builders_are_pure(collective, data):
    made = data.draw(calls(collective)).schedule
    for rank in range(made.size):
        assert made.program(rank) == made.program(rank)


# -- lowering ----------------------------------------------------------------------------------
@given(st.data())
def test_extents_lie_inside_their_buffers(collective, data):
    call = data.draw(calls(collective))
    made, case = call.schedule, call.case()
    for rank, segments in enumerate(lowered(call)):
        keys = slot_keys(made.collective, rank, made.size, made.root, made.nblocks)
        room = {buffer: sum(map(case.size_of, held)) for buffer, held in keys.items()}
        if call.in_place:
            room[OUT] = room[IN] = max(room.get(IN, 0), room.get(OUT, 0))
        for program, shift in segments:
            assert 0 <= program.landing <= program.scratch
            room[TMP] = program.scratch
            for phase in program.phases:
                extents = [message.extent for message in phase.messages]
                extents += [e for step in (*phase.before, *phase.after) for e in step if e]
                for extent in extents:
                    buffer, offset, count = shift_scratch(extent, shift)
                    assert count >= 0 and 0 <= offset <= offset + count <= room[buffer]


@given(st.data())
def test_what_is_sent_is_received(collective, data):
    """Of equal sizes and in one order, pair by pair and segment by segment."""
    moved = {SEND: {}, RECV: {}}
    for rank, segments in enumerate(lowered(data.draw(calls(collective)))):
        for number, segment in enumerate(segments):
            for phase in segment.program.phases:
                for kind, peer, extent in phase.messages:
                    pair = (rank, peer) if kind == SEND else (peer, rank)
                    moved[kind].setdefault((pair, number), []).append(extent.count)
    assert moved[SEND] == moved[RECV]


@given(st.data())
def test_segments_write_every_wanted_element_and_none_twice(collective, data):
    """Each element is the work of one segment; a root that holds the result already has none."""
    call = data.draw(calls(collective))
    made, case = call.schedule, call.case()._replace(in_place=False)
    for rank, segments in enumerate(lowered(call._replace(in_place=False))):
        wanted = [w.block for w in made.collective.wanted(rank, made.size, made.root,
                                                          made.nblocks)]
        if collective == "bcast" and rank == made.root:
            wanted = []
        written = []
        for program, shift in segments:
            cells = set()
            for phase in program.phases:
                extents = [m.extent for m in phase.messages if m.kind == RECV]
                extents += [step.into for step in (*phase.before, *phase.after)]
                for buffer, offset, count in (shift_scratch(e, shift) for e in extents):
                    assert buffer != IN or not count
                    cells.update(range(offset, offset + count) if buffer == OUT else ())
            written += cells
        assert sorted(written) == list(range(sum(map(case.size_of, wanted))))
