"""Programs in arrays say what the rounds say."""

import pytest

from hpccoll.algorithms import schedule
from hpccoll.ir.collectives import COLLECTIVES, OUT
from hpccoll.ir.cost.workload import Workload
from hpccoll.ir.order import lanes
from hpccoll.ir.schedule import Program, Schedule, at, recv, send
from hpccoll.simulator.packed import LONG, pack


def unpacked(programs, number):
    """The rounds of a rank as data, kind by kind."""
    kinds = []
    for place in range(number * programs.kinds, (number + 1) * programs.kinds):
        rounds = []
        for n in range(*programs.first_round[place:place + 2]):
            held = slice(*programs.first_message[n:n + 2])
            rounds.append(([(code & 1, code >> 1, nbytes) for code, nbytes in zip(
                programs.codes[held], programs.nbytes[held])],
                programs.reduced[n], programs.copied[n], programs.waits.get(n)))
        kinds.append(rounds)
    return kinds


def expected(work, rank):
    return [[([tuple(m) for m in messages], reduced, copied, waits)
             for messages, reduced, copied, waits in work.rounds(rank, segment)]
            for segment in work.kinds]


@pytest.mark.parametrize("how", [{}, {"itemsize": 8, "segment_bytes": 64}],
                         ids=["equal", "whole elements in segments"])
@pytest.mark.parametrize(("collective", "name", "size"), [
    ("allreduce", "rabenseifner", 7), ("bcast", "linear", 5), ("alltoall", "bruck", 6),
    ("scan", "census", 1)])
def test_packed_programs_are_the_programs(collective, name, size, how):
    work = Workload(schedule(collective, name, size), 808, **how)
    programs = pack(work, range(size))
    assert len(programs) == size
    for rank in range(size):
        assert unpacked(programs, rank) == expected(work, rank)
    few = programs.select([size - 1, 0])
    assert len(few) == 2
    assert [unpacked(few, n) for n in (0, 1)] == [expected(work, size - 1), expected(work, 0)]


def test_what_rounds_of_lanes_wait_for_is_packed_and_shapes_them():
    """Two lanes of one message each, on two ranks: in one lane, ranks look different."""
    def build(rank):
        half = [(send(1 - rank, at(OUT, rank)),), (recv(1 - rank, at(OUT, 1 - rank)),)]
        return lanes(half[:1], half[1:]) if rank else Program(tuple(half))

    work = Workload(Schedule(COLLECTIVES["allgather"], "lanes", 2, build), 16)
    programs = pack(work, range(2))
    assert programs.waits == {2: (), 3: ()}
    assert unpacked(programs, 1) == expected(work, 1)
    assert unpacked(programs.select([1, 0]), 0) == expected(work, 1)
    assert programs.shape(0) != programs.shape(1)


def test_a_message_is_found_in_short_and_long_programs():
    size = 2 * LONG
    programs = pack(Workload(schedule("bcast", "linear", size), 8), range(size))
    assert [programs.place(0, 2 * rank + 1) for rank in (1, 2, size - 1)] == [0, 1, size - 2]
    assert programs.place(5, 0) == 0
    for rank in (0, 5):
        with pytest.raises((KeyError, ValueError)):
            programs.place(rank, 2 * rank)


def test_shapes_tell_ranks_apart_by_what_they_do_and_not_with_whom():
    programs = pack(Workload(schedule("bcast", "binomial", 8), 8), range(8))
    assert programs.shape(3) == programs.shape(7) != programs.shape(0)


def test_it_is_told_how_many_are_made():
    told = []
    pack(Workload(schedule("scan", "linear", 300), 8), range(300), progress=told.append)
    assert told == sorted(told) and len(told) == 4 and 0 < told[0] < told[-1] < 1
