"""Operations of the network as nouns: how they are named, and what is no such name."""

import numpy
import pytest

from hpccoll.algorithms import schedule
from hpccoll.errors import ScheduleError
from hpccoll.ir.collectives import IN, OUT
from hpccoll.ir.in_network import (
    MULTICAST,
    REDUCTION,
    InNetwork,
    in_network,
    multicast,
    playing_ranks,
)
from hpccoll.ir.passes import concatenate, relabel_ranks, reverse
from hpccoll.ir.schedule import Program, at, copy, recv, send
from hpccoll.ir.wellformed import program_of
from hpccoll.proof.verifier import verify


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
