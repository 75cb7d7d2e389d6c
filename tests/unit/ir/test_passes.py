"""Passes: what embedding, joining and reversing do to programs, and that the results are right."""

import pytest

from hpccoll.algorithms import schedule
from hpccoll.algorithms.flat import (
    chain,
    circulant,
    knomial,
    recursive_doubling,
    recursive_multiplying,
    ring,
)
from hpccoll.errors import ScheduleError
from hpccoll.ir.collectives import (
    ALLGATHER,
    ALLREDUCE,
    ALLTOALL,
    BCAST,
    IN,
    OUT,
    REDUCE,
    TMP,
    slot_keys,
)
from hpccoll.ir.passes import Piece, allot, concatenate, embed, rename_buffers, reverse, runs
from hpccoll.ir.schedule import LEFT, Program, at, copy, recv, reduce, send
from hpccoll.proof.verifier import verify


def home(buffer):
    return lambda keys: runs(buffer, keys)


def steps(program):
    return [step for steps in program.rounds for step in steps]


# -- spans -------------------------------------------------------------------------------------
def test_neighbouring_slots_become_one_span():
    assert runs(OUT, [0, 1, 2, 5, 7, 8]) == (at(OUT, 0, 3), at(OUT, 5), at(OUT, 7, 9))
    assert runs(OUT, [0]) == (at(OUT, 0),)
    assert runs(OUT, range(2, 6)) == (at(OUT, 2, 6),)
    assert runs(OUT, range(0, 6, 2)) == (at(OUT, 0), at(OUT, 2), at(OUT, 4))
    assert runs(OUT, []) == runs(OUT, range(0)) == ()


def test_order_is_kept():
    assert runs(OUT, [3, 2, 1]) == (at(OUT, 3), at(OUT, 2), at(OUT, 1))


# -- embedding ---------------------------------------------------------------------------------
@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
def test_embedding_in_itself_changes_nothing(size):
    for rank in range(size):
        program = ring.reduce_scatter(rank, size)
        same = embed(program, {IN: range(size), OUT: (rank,)},
                     lambda key: [Piece(range(size), [key])],
                     {IN: home(IN), OUT: lambda keys: (at(OUT, 0),)})
        assert same.rounds == program.rounds
        assert list(same.scratch) == list(program.scratch)


@pytest.mark.parametrize("players", [(0, 1, 2, 3), (2, 0, 3, 1)])
@pytest.mark.parametrize("cut", [lambda k: [2 * k, 2 * k + 1], lambda k: [k, k + 4],
                                 lambda k: range(8) if k == 2 else []])
def test_ranks_and_blocks_can_be_mapped_at_will(players, cut):
    """A ring of four on eight blocks: neighbours, far apart, or one with all, three with none."""
    def build(rank, size):
        me = players.index(rank)
        return embed(ring.allreduce(me, size), slot_keys(ALLREDUCE, me, size, nblocks=size),
                     lambda key: [Piece(players, cut(key))], {IN: home(IN), OUT: home(OUT)})

    verify(schedule("allreduce", build, 4, nblocks=8))


@pytest.mark.parametrize("size", [2, 3, 4, 7, 9])
def test_scratch_without_a_place_stays_scratch(size):
    """Several scratch slots of one block, which consists of three: each gets three."""
    def build(rank, size):
        return embed(recursive_multiplying.allreduce(rank, size, 4),
                     slot_keys(ALLREDUCE, rank, size),
                     lambda key: [Piece(range(size), [0, 1, 2])],
                     {IN: home(IN), OUT: home(OUT)})

    flat = recursive_multiplying.allreduce(0, size, 4)
    assert len(build(0, size).scratch) == 3 * len(flat.scratch)
    verify(schedule("allreduce", build, size, nblocks=3), commutative=False)


def test_scratch_with_a_place_needs_no_copies_and_no_memory():
    program = embed(ring.reduce_scatter(1, 3), {IN: range(3), OUT: (1,)},
                    lambda key: [Piece(range(3), [key])],
                    {IN: home(OUT), OUT: home(OUT), TMP: home(OUT)})
    assert program.scratch == ()
    assert {step.kind for step in steps(program)} == {"send", "recv"}


def test_only_the_first_scratch_slot_of_a_block_gets_its_place():
    program = Program(((recv(1, at(TMP, 0), at(TMP, 1), at(TMP, 2)),),), (0, 0, 1))
    found = embed(program, {}, lambda key: [Piece((4, 5), [key + 6])], {TMP: home("work")})
    assert steps(found) == [recv(5, at("work", 6), at(TMP, 0), at("work", 7))]
    assert found.scratch == (6,)


def test_messages_split_between_the_ranks_that_play_the_peer():
    """Pieces with other players go to other ranks; those with the same player travel together."""
    blocks = {0: [Piece((0, 5), [0]), Piece((0, 6), [1]), Piece((0, 5), [2])],
              1: [Piece((0, 6), [3])]}
    program = Program(((send(1, at(OUT, 0, 2)), recv(1, at(OUT, 1), reduce=LEFT)),))
    found = embed(program, {OUT: (0, 1)}, blocks.__getitem__, {OUT: home(OUT)})
    assert steps(found) == [send(5, at(OUT, 0), at(OUT, 2)), send(6, at(OUT, 1), at(OUT, 3)),
                            recv(6, at(OUT, 3), reduce=LEFT)]


def test_a_message_of_no_blocks_vanishes_but_a_token_stays():
    program = Program(((send(1, at(OUT, 0)),), (send(1),)))
    found = embed(program, {OUT: (0,)}, lambda key: [Piece((3, 7), [])], {OUT: home(OUT)}, (3, 7))
    assert found.rounds == ((), (send(7),))


def test_local_steps_pair_slots_of_different_spans():
    program = Program(((copy(at(OUT, 0, 2), at(IN, 0, 2)), reduce(at(OUT, 0), at(IN, 1))),))
    found = embed(program, {IN: (0, 1), OUT: (0, 1)}, lambda key: [Piece((0,), [key, 3 - key])],
                  {IN: home(IN), OUT: lambda keys: runs(OUT, [2 * key for key in keys])})
    assert steps(found) == [
        copy(at(OUT, 0), at(IN, 0)), copy(at(OUT, 6), at(IN, 3)),
        copy(at(OUT, 2), at(IN, 1)), copy(at(OUT, 4), at(IN, 2)),
        reduce(at(OUT, 0), at(IN, 1)), reduce(at(OUT, 6), at(IN, 2))]


def test_copies_onto_themselves_vanish_but_reductions_stay():
    program = Program(((copy(at(OUT, 0), at(IN, 0)), reduce(at(OUT, 0), at(IN, 0))),))
    found = embed(program, {IN: (0,), OUT: (0,)}, lambda key: [Piece((0,), [0])],
                  {IN: home(OUT), OUT: home(OUT)})
    assert steps(found) == [reduce(at(OUT, 0), at(OUT, 0))]


def test_slots_are_those_of_the_collective():
    assert slot_keys(BCAST, 1, 4, 2, 3) == {OUT: [0, 1, 2]}
    assert {b: list(ks) for b, ks in slot_keys(REDUCE, 1, 4, 2, 3).items()} == {IN: [0, 1, 2]}
    assert {b: list(ks) for b, ks in slot_keys(ALLTOALL, 1, 3).items()} == {
        IN: [3, 4, 5], OUT: [1, 4, 7]}


# -- joining -----------------------------------------------------------------------------------
@pytest.mark.parametrize("size", [1, 2, 5, 8])
def test_reduce_then_bcast_is_allreduce(size):
    def build(rank, size):
        up = embed(knomial.reduce(rank, size, 0), slot_keys(REDUCE, rank, size),
                   lambda key: [Piece(range(size), [key])], {IN: home(IN), OUT: home(OUT)})
        return concatenate(up, knomial.bcast(rank, size, 0))

    verify(schedule("allreduce", build, size), commutative=False)


def test_programs_in_sequence_share_no_scratch():
    one = Program(((recv(1, at(TMP, 0)),),), (5,))
    two = Program(((recv(1, at(TMP, 0, 2)),), (copy(at(OUT, 0), at(TMP, 1)),)), (6, 7))
    both = concatenate(one, two, one)
    assert both.scratch == (5, 6, 7, 5)
    assert both.rounds == ((recv(1, at(TMP, 0)),), (recv(1, at(TMP, 1, 3)),),
                           (copy(at(OUT, 0), at(TMP, 2)),), (recv(1, at(TMP, 3)),))


def test_concatenation_is_associative_and_the_empty_program_its_unit():
    parts = [ring.reduce_scatter(0, 3), circulant.allgather(1, 5), ring.reduce_scatter(2, 4)]
    one, two, three = parts
    assert concatenate(one, concatenate(two, three)) == concatenate(concatenate(one, two), three)
    assert concatenate(one, Program(())) == concatenate(one) == concatenate(Program(()), one)


def test_a_work_buffer_becomes_scratch_after_what_there_is():
    program = Program(((send(1, at(TMP, 0), at("work", 1)),),), (4,))
    assert allot(program, "work", (8, 9)) == Program(((send(1, at(TMP, 0), at(TMP, 2)),),),
                                                     (4, 8, 9))


# -- reversing ---------------------------------------------------------------------------------
@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 12])
@pytest.mark.parametrize("allgather", [ring.allgather, circulant.allgather])
def test_allgather_backwards_is_reduce_scatter(size, allgather):
    def build(rank, size):
        back = rename_buffers(reverse(allgather(rank, size)), {OUT: ("work", 0), IN: (OUT, 0)})
        start = Program(((copy(at("work", 0, size), at(IN, 0, size)),),))
        return allot(concatenate(start, back), "work", range(size))

    proof = verify(schedule("reduce_scatter", build, size))
    forth = verify(schedule("allgather", allgather, size))
    assert (proof.rounds, proof.sent) == (forth.rounds, forth.sent)


@pytest.mark.parametrize("size", [1, 2, 5, 8])
@pytest.mark.parametrize("root", [0, 1])
@pytest.mark.parametrize("bcast", [knomial.bcast, chain.bcast])
def test_bcast_backwards_is_reduce(size, root, bcast):
    root %= size

    def build(rank, size, root):
        start = Program(((copy(at(OUT, 0), at(IN, 0)),),))
        program = concatenate(start, reverse(bcast(rank, size, root)))
        return program if rank == root else allot(rename_buffers(program, {OUT: ("work", 0)}),
                                                  "work", (0,))

    verify(schedule("reduce", build, size, root=root))


def test_backwards_twice_moves_data_the_same_way():
    program = circulant.allgather(2, 5)
    back = reverse(program)
    again = reverse(Program(tuple(tuple(step._replace(side="") for step in steps_)
                                  for steps_ in back.rounds[:-1])))
    assert [[(s.kind, s.peer, s.spans) for s in steps_] for steps_ in again.rounds] == [
        [(s.kind, s.peer, s.spans) for s in steps_] for steps_ in program.rounds[1:]]


@pytest.mark.parametrize("program", [recursive_doubling.allreduce(0, 2), ring.reduce_scatter(0, 2),
                                     knomial.gather(0, 4, 0)._replace(rounds=(
                                         (copy(at(OUT, 0), at(TMP, 0)),),))])
def test_what_cannot_be_reversed_is_named(program):
    with pytest.raises(ScheduleError, match="reverse"):
        reverse(program)


def test_a_token_backwards_is_a_token():
    assert reverse(Program(((send(1),), (recv(2),)))) == Program(((send(2),), (recv(1),)))


def test_allgather_slots_agree_with_the_program():
    assert {b: list(ks) for b, ks in slot_keys(ALLGATHER, 2, 4).items()} == {IN: [2],
                                                                         OUT: [0, 1, 2, 3]}
