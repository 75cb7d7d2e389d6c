"""Memory rules: what messages of a round, and segments, may share."""

import pytest

from hpccoll.algorithms import schedule
from hpccoll.errors import ProofError
from hpccoll.ir.collectives import ALLREDUCE, IN, OUT
from hpccoll.ir.extents import Extent, Local, LoweredProgram, Phase, Segment
from hpccoll.ir.schedule import Program, at, copy, recv, reduce, send
from hpccoll.proof.cases import BlockSizes
from hpccoll.proof.verifier import prove_segments, verify


def proved(collective, size, *programs, scratch=(), **options):
    """Prove hand-made programs: a list of rounds for each rank."""
    def mine(rank, size, root=0):
        return Program(tuple(map(tuple, programs[rank])), scratch)
    return verify(schedule(collective, mine, size), **options)


def refused(complaint, collective, size, *programs, scratch=(), **options):
    with pytest.raises(ProofError, match=complaint) as caught:
        proved(collective, size, *programs, scratch=scratch, **options)
    assert f"{collective} mine size={size}" in str(caught.value)
    return caught.value


TAKE = copy(at(OUT, 0), at(IN, 0))


def test_two_receives_into_one_place():
    error = refused(r"'recv 1 out\[0\]'.*same round", "bcast", 3,
                    [[recv(1, at(OUT, 0)), recv(2, at(OUT, 0))]], [[]], [[]])
    assert (error.rank, error.round) == (0, 0)


def test_a_receive_into_what_is_being_sent():
    refused("same round", "allreduce", 2, *(
        [[TAKE, reduce(at(OUT, 0), at(IN, 0))], [send(1 - r, at(OUT, 0)), recv(1 - r, at(OUT, 0))]]
        for r in (0, 1)))


def test_two_sends_from_one_place_are_fine():
    proved("bcast", 3, [[send(1, at(OUT, 0)), send(2, at(OUT, 0))]],
           *([[recv(0, at(OUT, 0))]] for _ in (1, 2)))


def segments_of(*phases, scratch=0, landing=0):
    return [Segment(LoweredProgram(tuple(Phase(*phase) for phase in phases), scratch, landing), 0)]


def test_two_segments_in_one_place():
    made = schedule("allreduce", "linear", 1)
    case = BlockSizes(lambda key: 2, 1)
    one = segments_of(((), (), (Local(Extent(OUT, 0, 1), Extent(IN, 0, 1)),)))
    other = segments_of(((), (), (Local(Extent(OUT, 0, 2), Extent(IN, 0, 2)),)))
    with pytest.raises(ProofError, match="segments"):
        prove_segments(made, ALLREDUCE, case, [one + other])


def test_overwriting_a_part_of_what_is_read():
    made = schedule("allreduce", "linear", 1)
    shift = segments_of(((), (), (Local(Extent(OUT, 0, 2), Extent(OUT, 1, 2)),)))
    with pytest.raises(ProofError, match="overwrites"):
        prove_segments(made, ALLREDUCE, BlockSizes(lambda key: 3, 1), [shift])
