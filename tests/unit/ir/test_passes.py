"""Passes over schedules and their lowering to programs."""

import numpy
import pytest

from hpccoll.algorithms import schedule
from hpccoll.algorithms.flat import (
    knomial,
    recursive_doubling,
    ring,
)
from hpccoll.errors import ScheduleError
from hpccoll.ir.collectives import (
    IN,
    OUT,
    TMP,
)
from hpccoll.ir.extents import (
    Extent,
    Local,
    SlotLayout,
    alias,
    overlap,
    pack_extents,
    shift_scratch,
)
from hpccoll.ir.in_network import (
    MULTICAST,
    REDUCTION,
    InNetwork,
    in_network,
    multicast,
    playing_ranks,
)
from hpccoll.ir.lowering import lower, segments
from hpccoll.ir.passes import (
    concatenate,
    relabel_ranks,
    reverse,
)
from hpccoll.ir.schedule import LEFT, RIGHT, Program, at, copy, recv, reduce, send
from hpccoll.ir.wellformed import program_of
from hpccoll.proof.verifier import verify


def steps(program):
    return [step for steps in program.rounds for step in steps]


# -- reversing ---------------------------------------------------------------------------------


@pytest.mark.parametrize("program", [recursive_doubling.allreduce(0, 2), ring.reduce_scatter(0, 2),
                                     knomial.gather(0, 4, 0)._replace(rounds=(
                                         (copy(at(OUT, 0), at(TMP, 0)),),))])
def test_what_cannot_be_reversed_is_named(program):
    with pytest.raises(ScheduleError, match="reverse"):
        reverse(program)


# Lowering: what becomes of a program on concrete block sizes
def lowered(*rounds, counts=(2, 2, 2), outs=None, scratch=()):
    """Lower rounds on blocks of the given counts in ``in`` and ``out``."""
    layout = SlotLayout({IN: pack_extents(IN, counts), OUT: pack_extents(OUT, outs or counts)},
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
    layout = SlotLayout({IN: pack_extents(OUT, (2,)), OUT: pack_extents(OUT, (2,))}, lambda key: 2)
    assert lower(Program(((copy(at(OUT, 0), at(IN, 0)),),)), layout).phases == ()


@pytest.mark.parametrize("steps, complaint", [
    ([send(1, at(OUT, 3))], r"out\[3\].*3 slots"),
    ([recv(1, at(TMP, 0))], r"tmp\[0\].*0 slots"),
    ([send(1, at("work", 0))], r"work\[0\].*0 slots"),
    ([recv(1, at(OUT, 2, 1))], r"out\[2:1\]"),
    ([recv(1, at(OUT, -1))], r"out\[-1\]"),
    ([recv(1, at(IN, 0))], r"in\[0\].*read-only"),
    ([copy(at(IN, 0), at(OUT, 0))], r"in\[0\].*written"),
    ([reduce(at(IN, 0), at(OUT, 0))], r"in\[0\].*written")])
def test_memory_that_does_not_exist_is_refused(steps, complaint):
    with pytest.raises(ScheduleError, match=complaint):
        lowered(steps)


# -- sharing memory -----------------------------------------------------------------------------
def places(ins, outs):
    return {IN: pack_extents(IN, ins), OUT: pack_extents(OUT, outs)}


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
    layout = SlotLayout({IN: pack_extents(IN, counts), OUT: pack_extents(OUT, counts)},
                        counts.__getitem__)
    return segments(EXCHANGE, layout, max(counts), segment)


def test_one_segment_when_none_is_asked_for():
    whole, = cut((5, 5), 0)
    assert whole.shift == 0 and whole.program.phases[0].messages[0].extent == Extent(IN, 0, 5)


def test_segments_of_equal_blocks_share_a_lowering():
    made = cut((7, 7), 3)
    assert [segment.shift for segment in made] == [0, 3, 0]
    assert made[0].program is made[1].program is not made[2].program
    sent = [shift_scratch(one.program.phases[0].messages[0].extent, one.shift) for one in made]
    assert sent == [Extent(IN, 0, 3), Extent(IN, 3, 3), Extent(IN, 6, 1)]


def test_segments_of_uneven_blocks_end_where_their_blocks_end():
    made = cut((1, 4), 2)
    sent = [[shift_scratch(m.extent, segment.shift) for phase in segment.program.phases
             for m in phase.messages if m.kind == "send"] for segment in made]
    assert sent == [[Extent(IN, 0, 1)], []]


@pytest.mark.parametrize("counts", [(5, 5), (0, 3), (7, 6), (0, 0), (1, 9)])
@pytest.mark.parametrize("segment", [0, 1, 2, 4, 100])
def test_segments_cover_every_element_once(counts, segment):
    made = cut(counts, segment)
    written = sorted(cell for segment in made for phase in segment.program.phases
                     for step in phase.after for extent in [shift_scratch(step.into, segment.shift)]
                     for cell in range(extent.offset, extent.offset + extent.count))
    assert written == list(range(sum(counts)))


# -- lanes ---------------------------------------------------------------------------------------
def test_lanes_land_apart_and_empty_rounds_hand_on_what_they_waited_for():
    blocks = {0: 2, 1: 0, 2: 3}
    layout = SlotLayout({IN: pack_extents(IN, blocks.values()),
                         OUT: pack_extents(OUT, blocks.values())},
                        blocks.__getitem__)
    program = Program((
        (copy(at(OUT, 0, 3), at(IN, 0, 3)),),
        (recv(1, at(OUT, 0), reduce=LEFT),), (recv(2, at(OUT, 2), reduce=LEFT),),
        (recv(3, at(OUT, 1), reduce=LEFT),), (send(1, at(OUT, 0)),)), (),
        ((), (0,), (0,), (1, 2), (3,)))
    lowered = lower(program, layout)
    assert lowered.rounds == (0, 1, 2, 4)           # nothing is left of round 3
    assert lowered.waits == ((), (0,), (0,), (1, 2))
    landing = [phase.messages[0].extent for phase in lowered.phases[1:3]]
    assert not overlap(*landing) and lowered.scratch == 5
    # Another lane may read what is copied: it is copied at once.
    assert lowered.phases[0].after == (Local(Extent(OUT, 0, 5), Extent(IN, 0, 5)),)
    assert lower(program._replace(after=()), layout).scratch == 3


# Operations of the network as nouns: how they are named, and what is no such name
def test_equal_ranks_are_one_operation_however_they_are_named():
    named = in_network([3, 0, 1, 2], numpy.array([4, 1, 2]))
    assert named == in_network(range(4), [1, 2, 4]) == InNetwork(
        (range(4),), (range(1, 3), range(4, 5)))
    assert str(named) == "[0-3 > 1-2,4]"
    assert hash(named) == hash(in_network(range(4), [1, 4, 2]))
    assert (named.ends, list(named.senders), list(named.receivers)) == (7, [0, 1, 2, 3], [1, 2, 4])
    assert named.has(3, True) and not named.has(3, False) and named.has(4, False)
    assert named.others(0) == [1, 2, 3, 4]


@pytest.mark.parametrize("size", [2, 3, 5, 8])
def test_a_multicast_is_to_all_but_the_root(size):
    for root in range(size):
        made = multicast(root, range(size))
        assert made == in_network([root], (r for r in range(size) if r != root))
        assert made.backwards.backwards == made and made.backwards.reduces == (size > 2)
    assert multicast(7, range(size, size + 2)) == in_network([7], {size, size + 1} - {7})


def test_what_operations_take():
    assert in_network([0], [1, 2]).needs == in_network([0], [1]).needs == (MULTICAST,)
    assert in_network([0, 1], [1]).needs == (REDUCTION,)
    assert in_network([0, 1], [0, 1]).needs == (MULTICAST, REDUCTION)


def test_a_large_world_costs_no_more():
    everybody, root = in_network(range(10**9), range(10**9)), multicast(5, range(10**9))
    assert everybody.has(10**8, False) and everybody.ends == 2 * 10**9 == root.ends + 10**9
    with pytest.raises(ScheduleError, match="ranks.*0.*3"):
        one(send(everybody, at(OUT, 0)))


def one(step):
    return program_of(schedule("allreduce", lambda rank, size: Program(((step,),)), 4), 0)


@pytest.mark.parametrize(("peer", "problem"), [
    (in_network([0], [4]), r"\[0 > 4\].*0..3"),
    (in_network([1], [2]), "among.*sources"),
    (in_network([0], [0]), "no other rank"),
    (in_network([0], []), "no ranks.*in_network"),
    (in_network([-1, 0], [1]), "no ranks"),
    (InNetwork(([0],), (range(1, 2),)), "no ranks"),
    (InNetwork(range(2), (range(2),)), "no ranks"),
    (InNetwork((range(0, 4, 2),), (range(1, 2),)), "no ranks"),
    (InNetwork((range(1, 2), range(1)), (range(1, 2),)), "no ranks"),
    (InNetwork((range(1), range(1, 2)), (range(1, 2),)), "no ranks"),
    (InNetwork(None, 5), "no ranks")])
def test_what_is_no_operation(peer, problem):
    with pytest.raises(ScheduleError, match=problem):
        one(send(peer, at(OUT, 0)))


def test_the_input_is_not_received_into():
    with pytest.raises(ScheduleError, match="among"):
        one(recv(in_network([0], [1]), at(OUT, 0)))
    with pytest.raises(ScheduleError, match="read-only"):
        one(recv(in_network([1], [0, 2]), at(IN, 0)))
    assert one(recv(in_network([1], [0, 2]), at(OUT, 0))).rounds


def test_passes_carry_operations_along():
    assert playing_ranks(2, [5, 3, 4]) == 4
    assert playing_ranks(in_network([0], [1, 2]), [5, 3, 4]) == in_network([5], [3, 4])
    spread = Program(((send(multicast(0, range(3)), at(OUT, 0)),),))
    moved = relabel_ranks(spread, (2, 0, 1))
    assert moved.rounds == ((send(multicast(2, range(3)), at(OUT, 0)),),)
    assert concatenate(spread, moved).rounds == (*spread.rounds, *moved.rounds)


def test_a_multicast_backwards_is_a_reduction():
    def reduce(rank, size, root):
        network = multicast(root, range(size))
        forth = Program(((send(network, at(OUT, 0)) if rank == root else
                          recv(network, at(OUT, 0)),),))
        take = Program(((copy(at(OUT, 0), at(IN, 0)),),))
        return concatenate(take, reverse(forth)) if rank == root else Program(
            ((send(network.backwards, at(IN, 0)),),))

    for size in (2, 3, 5):
        found = verify(schedule("reduce", reduce, size, root=size - 1))
        assert (found.rank_order, found.rounds, found.network) == (
            size == 2, 1, (REDUCTION,) if size > 2 else (MULTICAST,))


def test_a_reduction_cannot_be_reversed():
    everybody = in_network(range(3), range(3))
    for step in (send(everybody, at(OUT, 0)), recv(everybody, at(OUT, 0))):
        with pytest.raises(ScheduleError, match="reverse"):
            reverse(Program(((step,),)))
