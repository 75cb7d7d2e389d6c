"""Every order in which messages can arrive, for every algorithm on up to three ranks.

Four ranks, and 10,000 orders on eight, take three minutes:
``python -m hpccoll.testing.model_check``.
Here are those of four ranks that have few states, and a sample of the others. That an exploration
finds what depends on the order is seen with schedules that do: two receives into one place, a
receive that overlaps what is sent, sends that wait for each other.
"""

import pytest

from hpccoll.algorithms import schedule
from hpccoll.ir.collectives import ALLREDUCE, IN, OUT
from hpccoll.ir.schedule import Program, at, copy, recv, send
from hpccoll.testing import every
from hpccoll.testing.model_check import (
    MisfitMessage,
    Network,
    Rounding,
    Run,
    create_problem,
    explore,
    explore_schedule,
    wander,
)
from hpccoll.testing.world import Problem

#: In one round of four ranks that all send to all, 2 ** 12 states.
MANY = {"allpairs", "recursive_multiplying", "linear", "scattered"}


@pytest.mark.slow
@pytest.mark.parametrize("buffered", [False, True])
@pytest.mark.parametrize("size", [1, 2, pytest.param(3, marks=pytest.mark.long)])
def test_every_order_of_every_algorithm(size, buffered):
    states = 0
    for entry, made in every(size):
        found = explore_schedule(made, entry.rank_order, buffered)
        assert not found.faults
        states += found.states
    assert states >= {1: 1, 2: 200, 3: 1000}[size]


@pytest.mark.long(every=2)
@pytest.mark.slow
@pytest.mark.parametrize("buffered", [False, True])
def test_every_order_on_four_ranks(buffered):
    explored = 0
    for entry, made in every(4, range(3, 4)):
        rounds = max(len(made.program(rank).rounds) for rank in range(4))
        if made.algorithm not in MANY and rounds <= 3:
            assert not explore_schedule(made, entry.rank_order, buffered).faults
            explored += 1
    assert explored > 30


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("buffered", [False, True])
def test_some_orders_on_eight_ranks(buffered):
    for number, (entry, made) in enumerate(every(8, range(2, 3))):
        bits = set()
        for seed in range(2):
            exact = Run(made, create_problem(made, Problem, entry.rank_order), Network(8, buffered))
            assert not wander(exact, 100 * number + seed), made.title
            rounding = Run(made, create_problem(made, Rounding), Network(8, buffered))
            assert not wander(rounding, 100 * number + seed), made.title
            bits.add(rounding.result())
        assert len(bits) == 1, made.title


@pytest.mark.parametrize("name", ["ring", "rabenseifner", "recursive_doubling"])
def test_segments_in_flight(name):
    made = schedule("allreduce", name, 3)
    run = Run(made, create_problem(made, Rounding), Network(3), segment=1, calls=2)
    assert len({tag for _, _, tag in run.choices()}) == 2
    digests = set()
    for seed in range(20):
        run.begin()
        assert not wander(run, seed)
        digests.add(run.result())
    assert len(digests) == 1


# -- what is found ------------------------------------------------------------------------------
def explored(build, size=2, buffered=False, most=100_000, sizes=(2,)):
    made = schedule("allreduce", build, size)
    return explore(Run(made, Rounding(ALLREDUCE, size, sizes, 0, "sum", "f4"),
                       Network(size, buffered)), most)


def test_receives_into_one_place():
    """Whoever comes last is right: another order, other bits."""
    def both(rank, size):
        other = [peer for peer in range(size) if peer != rank]
        return Program(((*(send(peer, at(IN, 0)) for peer in other),
                         *(recv(peer, at(OUT, 0)) for peer in other)),))
    fault, = explored(both, 3).faults
    assert fault.startswith("another order of the messages changes the bits: (")


def test_memory_that_is_sent_and_received_into():
    def early(rank, size):
        left, right = (rank - 1) % size, (rank + 1) % size
        return Program(((copy(at(OUT, 0), at(IN, 0)),),
                        (send(right, at(OUT, 0)), recv(left, at(OUT, 0)))))
    made = schedule("allreduce", early, 2)
    exact = Problem(ALLREDUCE, 2, [2])
    for buffered in (False, True):
        assert len(wander(Run(made, exact, Network(2, buffered)), 0)) == 2


def head_on(rank, size):
    return Program(((send(1 - rank, at(IN, 0)),), (recv(1 - rank, at(OUT, 0)),)))


def test_sends_that_need_a_buffer_stall_without():
    fault, = explored(head_on).faults
    assert fault == ("stalled: rank 0 in round 0 waits for 1; rank 1 in round 0 waits for 0")
    assert not explored(head_on, buffered=True).faults


def test_sizes_and_leftovers():
    def longer(rank, size):
        if rank:
            return Program(((recv(0, at(OUT, 0)),),))
        return Program(((send(1, at(IN, 0, 2)),),))
    made = schedule("allreduce", longer, 2, nblocks=2)
    run = Run(made, Rounding(ALLREDUCE, 2, (4,), 0, "sum", "f4"), Network(2))
    with pytest.raises(MisfitMessage, match="rank 0 to rank 1.*16 bytes.*8"):
        run.deliver((0, 1, 0))
    run.begin()
    fault, = explore(run).faults
    assert "the receive" in fault and "after ((0, 1, 0),)" in fault

    def unheard(rank, size):
        return Program(() if rank else ((send(1, at(IN, 0)),),))
    assert explored(unheard, buffered=True).faults == ["messages left over: [(0, 1, 0)]"]


def test_too_many_states_are_no_success():
    made = schedule("alltoall", "linear", 3)
    found = explore(Run(made, create_problem(made, Rounding), Network(3)), 10)
    assert found.faults == ["there are more than 10 states"] and found.states == 11


def test_wrong_results_are_told():
    made = schedule("allreduce", lambda rank, size: Program(((copy(at(OUT, 0), at(IN, 0)),),)), 2)
    found = explore_schedule(made, False, False)
    assert len(found.faults) == 2 and "elements of block 0 are wrong" in found.faults[0]
