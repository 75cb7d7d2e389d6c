"""Operations of the network: what the proof accepts, and every slip that it must find."""

from dataclasses import replace
from pathlib import Path

import pytest

from hpccoll.algorithms import schedule
from hpccoll.algorithms.outside import load
from hpccoll.errors import ProofError
from hpccoll.ir.collectives import IN, OUT, TMP
from hpccoll.ir.in_network import ABILITIES, MULTICAST, REDUCTION, in_network, multicast
from hpccoll.ir.order import lanes
from hpccoll.ir.schedule import LEFT, Program, at, copy, recv, send
from hpccoll.proof.verifier import verify
from support.extra_schedules import extra_schedules

EXAMPLE = str(Path(__file__).resolve().parents[3] / "examples" / "in_network.py")
ALLREDUCE, IN_PIECES, BCAST = (load(f"{EXAMPLE}:{name}")
                               for name in ("ALLREDUCE", "IN_PIECES", "BCAST"))
TAKE = (copy(at(OUT, 0), at(IN, 0)),)


def all_of(size):
    return in_network(range(size), range(size))


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 8])
def test_examples_are_proved_and_their_closed_forms_too(size):
    found = verify(schedule("allreduce", ALLREDUCE, size))
    assert found.network == (ABILITIES if size > 1 else ())
    assert (found.rank_order, found.replicas_identical, found.sent) == (
        size == 1, True, min(size - 1, 1))
    found = verify(schedule("allreduce", IN_PIECES, size))
    assert (found.rank_order, found.replicas_identical) == (size == 1, True)
    for root in range(size):
        assert verify(schedule("bcast", BCAST, size, root=root)).rank_order


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_every_kind_beyond_the_table_is_proved(size):
    for made in extra_schedules(size):
        assert verify(made).rounds <= 2 * size, made.title


def test_operators_that_do_not_commute_are_refused():
    with pytest.raises(ProofError, match="order"):
        verify(schedule("allreduce", ALLREDUCE, 2), commutative=False)


def test_two_operations_need_not_give_the_same_bits():
    def twice(rank, size):
        """The sum for the even ranks, and once more for the odd ones."""
        steps = [send(in_network(range(size), range(half, size, 2)), at(OUT, 0))
                 for half in (0, 1)]
        into = recv(in_network(range(size), range(rank % 2, size, 2)), at(TMP, 0))
        return Program((TAKE, (*steps, into), (copy(at(OUT, 0), at(TMP, 0)),)), (0,))

    found = verify(schedule("allreduce", twice, 4))
    assert not found.replicas_identical
    assert found.network == ABILITIES


def build(*programs):
    """All ranks' rounds after the first, which takes the input."""
    return lambda rank, size: Program((TAKE, *map(tuple, programs[rank])), (0,))


BOTH = all_of(2)
GIVE, GET = send(BOTH, at(OUT, 0)), recv(BOTH, at(OUT, 0))


@pytest.mark.parametrize(("programs", "problem"), [
    # An end is missing, or in another operation, or there once more.
    (([[GIVE, GET]], [[GIVE]]), "deadlock"),
    (([[GIVE, GET]], [[GET]]), "deadlock"),
    (([[GIVE], [GET]], [[GIVE], [GET]]), "deadlock"),
    (([[GIVE, GET], [GIVE]], [[GIVE, GET]]), "deadlock"),
    (([[GIVE, GET]], [[send(in_network([0, 1], [1]), at(IN, 0)), GET]]), "deadlock"),
    # Who gives what was added already.
    (([[GIVE, GET], [GIVE, GET]], [[GIVE, GET], [GIVE, GET]]), "once each"),
    (([[GIVE, recv(BOTH, at(OUT, 0), reduce=LEFT)]], [[GIVE, GET]]), "once each"),
    # Another message meets what is replaced.
    (([[GIVE, GET, send(1, at(OUT, 0))]], [[GIVE, GET, recv(0, at(TMP, 0))]]), "uses memory of"),
    (([[GIVE, GET, recv(BOTH, at(TMP, 0)), GIVE]], [[GIVE, GET, recv(BOTH, at(TMP, 0)), GIVE]]),
     "uses memory of"),
    (([[send(BOTH), recv(BOTH)]], [[send(BOTH), recv(BOTH)]]), "once each")])
def test_slips_are_found(programs, problem):
    with pytest.raises(ProofError, match=problem) as caught:
        verify(schedule("allreduce", build(*programs), 2))
    assert caught.value.rank in (0, 1)
    verify(schedule("allreduce", build([[GIVE, GET]], [[GIVE, GET]]), 2))


def test_the_same_memory_in_other_words_may_be_replaced_and_other_memory_may_not():
    def sums(rank, size):
        return Program(((copy(at(OUT, 0, 2), at(IN, 0, 2)),), (send(BOTH, *out), recv(BOTH, *into)))
                       )
    out, into = (at(OUT, 0), at(OUT, 1)), (at(OUT, 0, 2),)
    verify(schedule("allreduce", sums, 2, nblocks=2))
    out = (at(OUT, 1), at(OUT, 0))
    with pytest.raises(ProofError, match="uses memory of"):
        verify(schedule("allreduce", sums, 2, nblocks=2))


def test_blocks_of_other_sizes_do_not_meet():
    def deal(rank, size):
        mine = recv(in_network(range(size), [rank]), at(OUT, 0))
        return Program(((*(send(in_network(range(size), [to]), at(IN, to if rank else to ^ wrong))
                           for to in range(size)), mine),))
    wrong = 1
    with pytest.raises(ProofError, match="another size.*block 0.*block 1") as caught:
        verify(schedule("reduce_scatter", lambda rank, size: deal(rank, size), 2))
    assert caught.value.rank == 1


def test_in_place_a_reduce_scatter_needs_scratch():
    def deal(rank, size, into, *more):
        steps = [send(in_network(range(size), [to]), at(IN, to)) for to in range(size)]
        return Program(((*steps, recv(in_network(range(size), [rank]), into)), *more), (rank,))
    with pytest.raises(ProofError, match="uses memory of"):
        verify(schedule("reduce_scatter", lambda rank, size: deal(rank, size, at(OUT, 0)), 3))
    back = (copy(at(OUT, 0), at(TMP, 0)),)
    verify(schedule("reduce_scatter", lambda rank, size: deal(rank, size, at(TMP, 0), back), 3))


def test_who_has_the_result_knows_of_the_sources_only():
    def barrier(rank, size):
        network = in_network(sources, range(size))
        return Program((((send(network),) if rank in sources else ()) + (recv(network),),))
    sources = (0, 1, 2)
    verify(schedule("barrier", barrier, 3))
    sources = (0, 1)
    with pytest.raises(ProofError, match=r"barrier.*ranks \[2\]"):
        verify(schedule("barrier", barrier, 3))


def test_operations_in_lanes_wait_only_for_those_of_the_same_ranks():
    def gather(rank, size):
        def one(root):
            network = multicast(root, range(size))
            return [((send if rank == root else recv)(network, at(OUT, root)),)]
        order = range(size) if rank else reversed(range(size))
        return lanes(*map(one, order), before=[(copy(at(OUT, rank), at(IN, 0)),)])
    made = schedule("allgather", gather, 4)
    assert verify(made).network == (MULTICAST,)
    with pytest.raises(ProofError, match="deadlock"):
        verify(replace(made, build=lambda rank: made.program(rank)._replace(after=())))


def test_what_the_network_gives_may_be_reduced_on_arrival():
    def reduce(rank, size, root):
        network = multicast(root, range(size)).backwards
        return Program((TAKE, (recv(network, at(OUT, 0), reduce=LEFT),)) if rank == root else
                       ((send(network, at(IN, 0)),),))
    found = verify(schedule("reduce", reduce, 5, root=3))
    assert (found.network, found.rank_order) == ((REDUCTION,), False)
