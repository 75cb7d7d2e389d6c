"""What rounds wait for: what is written, what the order of messages adds, and lanes."""

import numpy
import pytest

from hpccoll.errors import ScheduleError
from hpccoll.ir.collectives import IN, OUT
from hpccoll.ir.order import (
    by_lane,
    chain_waits,
    lane_numbers,
    lanes,
    one_after_another,
    pasts,
    waits,
)
from hpccoll.ir.passes import concatenate, relabel_ranks, reverse
from hpccoll.ir.schedule import Program, at, copy, recv, send

TO_ONE, TO_TWO, FROM_ONE = send(1, at(OUT, 0)), send(2, at(OUT, 0)), recv(1, at(OUT, 1))


def test_without_after_there_is_one_lane():
    assert waits(Program(((TO_ONE,), (TO_TWO,)))) == ()
    assert waits(lanes()) == ()


def test_lanes_are_dealt_out_behind_what_comes_before_them():
    program = lanes([(TO_ONE,), (FROM_ONE,)], [(TO_TWO,)], [], before=[(), (copy(at(OUT, 0),
                                                                                 at(IN, 0)),)])
    assert program.rounds[2:] == ((TO_ONE,), (TO_TWO,), (FROM_ONE,))
    assert program.after == ((), (0,), (1,), (1,), (2,)) == waits(program)
    assert lane_numbers(waits(program)) == [0, 0, 0, 1, 0]
    assert list(by_lane(waits(program))) == [[0, 1, 2, 4], [3]]
    assert pasts(waits(program)) == [0b0, 0b1, 0b11, 0b11, 0b111]


@pytest.mark.parametrize(("other", "order"), [
    (TO_ONE, (0,)), (TO_TWO, ()), (FROM_ONE, ()), (recv(1), ()), (send(1), (0,))])
def test_messages_of_one_rank_and_direction_keep_their_order(other, order):
    assert waits(Program(((TO_ONE,), (other,)), (), ((), ()))) == ((), order)


def test_what_is_waited_for_anyway_is_left_out():
    rounds = ((TO_ONE,), (TO_TWO,), (FROM_ONE,), (TO_ONE, TO_TWO))
    assert waits(Program(rounds, (), ((), (0,), (1,), (0, 1, 2)))) == ((), (0,), (1,), (2,))
    assert waits(Program(rounds, (), ((), (), (0,), (2, 2)))) == ((), (), (0,), (1, 2))


def test_programs_after_programs_wait_for_all_ends():
    two, one = lanes([(TO_ONE,)], [(TO_TWO,)]), Program(((FROM_ONE,), ()))
    assert one_after_another([one, one]) == ()
    assert one_after_another([two, one, two]) == ((), (), (0, 1), (2,), (3,), (3,))
    assert concatenate(two, one).after == ((), (), (0, 1), (2,))
    assert concatenate(one, one).after == ()
    assert chain_waits(3) == ((), (0,), (1,))


def test_passes_keep_lanes_or_say_that_they_cannot():
    two = lanes([(send(1),)], [(recv(1),)])
    assert relabel_ranks(two, [2, 0]).after == two.after
    with pytest.raises(ScheduleError, match="lanes.*reverse"):
        reverse(two)


def test_builders_may_count_with_numpy():
    """Sets of rounds are bits: those of NumPy's integers end with the 64th."""
    rounds = [()] * 80
    counted = [(), *((number,) for number in numpy.arange(79))]
    assert waits(Program(tuple(rounds), (), tuple(counted))) == chain_waits(80)
