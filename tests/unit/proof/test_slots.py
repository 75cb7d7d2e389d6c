"""Proofs of slots, with operations of the network and without."""

from dataclasses import replace
from pathlib import Path

import pytest

from hpccoll.algorithms import Algorithm, schedule
from hpccoll.algorithms.outside import load
from hpccoll.errors import ProofError
from hpccoll.ir.collectives import IN, OUT, TMP
from hpccoll.ir.in_network import ABILITIES, MULTICAST, REDUCTION, in_network, multicast
from hpccoll.ir.order import lanes
from hpccoll.ir.schedule import LEFT, RIGHT, Program, at, copy, recv, reduce, send
from hpccoll.proof.cases import BlockSizes, cases
from hpccoll.proof.slots import prove_slots
from hpccoll.proof.verifier import programs_of, prove, verify
from hpccoll.testing import every
from support.extra_schedules import extra_schedules


# The proof on slots: faults that show at few block sizes only are found, whatever is sampled
def slots(made, in_place=False):
    return prove_slots(made, made.collective, programs_of(made), in_place)


def lowered_alone(made, sizes, in_place=False):
    """What only looking at these sizes says."""
    return prove(made, made.collective, BlockSizes(sizes.__getitem__, len(sizes), in_place))


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 3, 4, 7])
def test_slots_and_elements_agree_on_the_table(size):
    for _, made in every(size, None if size < 5 else range(2, 3)):
        one, *_ = cases(made, made.collective)
        assert slots(made) == prove(made, made.collective, one), made.title
        if made.collective.in_place:
            assert slots(made, True) == slots(made), made.title


# -- what samples of sizes had missed ------------------------------------------------------------
def parcel(rank, size):
    """Reduce-scatter; blocks 2 and 4 are passed round the ring in one buffer."""
    spans, mine = (at(TMP, 2), at(TMP, 4)), at(TMP, size)
    rounds = [(copy(mine, at(IN, rank)), copy(at(TMP, 2, 5), at(IN, 2, 5)))]
    for _ in range(size - 1):
        steps = [send((rank + 1) % size, *spans), recv((rank - 1) % size, *spans)]
        steps += [reduce(mine, at(TMP, rank))] if rank in (2, 4) else []
        rounds.append(tuple(steps))
    others = [k for k in range(size) if k not in (2, 4)]
    last = [send(k, at(IN, k)) for k in others if k != rank]
    last += [recv(k, mine, reduce=LEFT) for k in range(size) if k != rank and rank in others]
    return Program((*rounds, tuple(last), (copy(at(OUT, 0), mine),)), (*range(size), rank))


def test_a_race_that_packing_hides():
    made = schedule("reduce_scatter", parcel, 6)
    lowered_alone(made, [1] * 6)  # packed on both sides: no race to be seen
    with pytest.raises(ProofError, match="same round"):
        lowered_alone(made, [1, 1, 1, 0, 1, 1])
    with pytest.raises(ProofError, match=r"'recv 5 tmp\[2\] tmp\[4\]'") as caught:
        verify(made)
    assert (caught.value.rank, caught.value.round) == (0, 1)
    assert caught.value.step == "send 1 tmp[2] tmp[4]"


def swap(keys):
    """An allreduce of two ranks whose scratch is sized like the blocks of some keys."""
    def build(rank, size):
        return Program(((copy(at(OUT, 0, 4), at(IN, 0, 4)),),
                        (send(1 - rank, at(OUT, 0, 4)), recv(1 - rank, at(TMP, 0, 4))),
                        (reduce(at(OUT, 0, 4), at(TMP, 0, 4)),)), keys)
    return schedule("allreduce", build, 2, nblocks=4)


def test_scratch_sized_like_another_block():
    verify(swap((0, 1, 2, 3)))
    lowered_alone(swap((0, 1, 1, 3)), [2, 1, 1, 1])
    with pytest.raises(ProofError, match=r"blocks \[0, 1, 2, 3\].*blocks \[0, 1, 1, 3\]"):
        verify(swap((0, 1, 1, 3)))


def test_scratch_in_another_order_is_of_another_size():
    # The sizes add up, so the message fits; but its blocks lie across the borders of the slots.
    with pytest.raises(ProofError, match="sizes"):
        verify(swap((0, 2, 1, 3)))


def test_blocks_that_had_equal_sizes_in_every_sample():
    def build(rank, size):
        other = (rank + 4) % size
        return Program(((copy(at(OUT, rank), at(IN, 0)),), tuple(
            step for k in range(size) if k != rank for step in (
                send(k, at(IN, 0)), recv(k, at(TMP, 0) if k == other else at(OUT, k)))),
            (copy(at(OUT, other), at(TMP, 0)),)), (rank,))  # sized like k, not k + 4
    with pytest.raises(ProofError, match="block 4.*block 0"):
        verify(schedule("allgather", build, 8))


def in_place_race(rank, size):
    other = 1 - rank
    return Program((
        (send(other, at(IN, 0, 3)), recv(other, at(TMP, 0, 3))),
        (copy(at(TMP, 3), at(IN, 0)), copy(at(TMP, 4), at(IN, 2)), copy(at(OUT, 1), at(IN, 1)),
         reduce(at(OUT, 1), at(TMP, 1)), copy(at(OUT, 0), at(IN, 0)), copy(at(OUT, 2), at(IN, 2))),
        (send(other, at(OUT, 0), at(OUT, 2)), recv(other, at(OUT, 0), at(OUT, 2))),
        (reduce(at(OUT, 0), at(TMP, 3)), reduce(at(OUT, 2), at(TMP, 4)))), (0, 1, 2, 0, 2))


def test_a_race_in_place_with_one_element():
    made = schedule("allreduce", in_place_race, 2, nblocks=3)
    lowered_alone(made, [1, 1, 1], True)
    for in_place in (False, True):
        with pytest.raises(ProofError, match=r"'recv 1 out\[0\] out\[2\]'"):
            slots(made, in_place)


def chain(rank, size):
    """A chain that writes ``out`` before it reads ``in``: wrong in place."""
    rounds = []
    if rank:
        rounds.append((recv(rank - 1, at(OUT, 0)),))
        rounds.append((reduce(at(OUT, 0), at(IN, 0), RIGHT),))
    else:
        rounds.append((copy(at(OUT, 0), at(IN, 0)),))
    if rank < size - 1:
        rounds += [(send(rank + 1, at(OUT, 0)),), (recv(rank + 1, at(OUT, 0)),)]
    return Program((*rounds, (send(rank - 1, at(OUT, 0)),) if rank else ()))


@pytest.mark.parametrize("size", [2, 127, 128, 200])
def test_large_worlds_are_proved_in_place_too(size):
    made = schedule("allreduce", chain, size)
    slots(made)
    with pytest.raises(ProofError, match="instead.*contributions"):
        verify(made)


@pytest.mark.parametrize("size", [3, 130])
def test_large_worlds_are_proved_for_unequal_blocks(size):
    def build(rank, size, root):
        if rank:
            return Program(((send(0, at(IN, 0)),),))
        return Program((tuple(recv(k, at(TMP, 0) if k == 1 else at(OUT, k))
                              for k in range(1, size)),
                        (copy(at(OUT, 0), at(IN, 0)), copy(at(OUT, 1), at(TMP, 0)))), (2,))
    lowered_alone(schedule("gather", build, size), [1] * size)
    with pytest.raises(ProofError, match="block 1.*block 2"):
        verify(schedule("gather", build, size))
    verify(schedule("gather", Algorithm(build, uniform=True), size))


# -- memory that in place shares -------------------------------------------------------------------
def test_in_place_the_result_may_lie_on_any_block_before_it():
    # Rank 1 writes out and then reads in[0]: with blocks of one size that is another place.
    def build(rank, size):
        other = 1 - rank
        rounds = [(copy(at(TMP, 0), at(IN, rank)),), (send(other, at(IN, other)),
                                                     recv(other, at(TMP, 0), reduce=LEFT)),
                  (copy(at(OUT, 0), at(TMP, 0)),)]
        late = (send(0, at(IN, 0)),) if rank else (
            recv(1, at(TMP, 1)), copy(at(OUT, 0), at(TMP, 0)))
        return Program((*rounds, late), (rank, 0))
    made = schedule("reduce_scatter", build, 2)
    slots(made)
    verify(made)  # what arrives late is not used

    def use(rank, size):
        program = build(rank, size)
        last = (recv(1, at(TMP, 1)), copy(at(OUT, 0), at(IN, 0)), reduce(at(OUT, 0), at(TMP, 1)))
        return program._replace(rounds=(*program.rounds[:3], last if not rank
                                        else program.rounds[3]))
    made = schedule("reduce_scatter", use, 2)
    slots(made)
    with pytest.raises(ProofError, match="never written|instead of"):
        slots(made, True)


def test_in_place_a_root_scatters_from_its_own_block():
    for name in ("linear", "binomial"):
        for root in range(3):
            made = schedule("scatter", name, 3, root=root)
            assert slots(made, True) == slots(made)


# -- blocks across the borders of slots ------------------------------------------------------------
def relay(keys):
    """A gather through scratch sized by some keys, which is passed on as a whole."""
    mine, other = keys.index(1), keys.index(2)

    def build(rank, size, root):
        if rank == 2:
            return Program(((send(1, at(IN, 0)),),))
        if rank == 1:
            return Program(((recv(2, at(TMP, other)),), (copy(at(TMP, mine), at(IN, 0)),),
                            (send(0, at(TMP, 0, 2)),)), keys)
        return Program(((copy(at(OUT, 0), at(IN, 0)),), (recv(1, *(at(OUT, k) for k in keys)),)))
    return schedule("gather", build, 3)


def test_slots_in_any_order_are_right_if_both_ends_say_so():
    verify(relay((1, 2)))
    verify(relay((2, 1)))


def forward(keys, parts):
    """Rank 0's blocks 0 and 1 go to rank 1's scratch, sized by keys, and on to rank 2 in parts."""
    def build(rank, size, root):
        if rank == 0:
            return Program(((send(1, at(OUT, 0, 2)),),))
        if rank == 1:
            return Program(((recv(0, at(TMP, 0, 2)),),
                            tuple(send(2, *(at(TMP, i) for i in part)) for part in parts),
                            (recv(2, at(OUT, 0, 2)),)), keys)
        whole = (recv(1, at(OUT, 0, 2)),)
        return Program((tuple(recv(1, *(at(OUT, i) for i in part)) for part in parts)
                        if len(parts) > 1 else whole, (send(1, at(OUT, 0, 2)),)))
    return schedule("bcast", build, 3, nblocks=2)


def test_blocks_that_lie_across_slots_are_whole_again_side_by_side():
    verify(forward((0, 1), [(0, 1)]))
    verify(forward((1, 0), [(0, 1)]))
    lowered_alone(forward((1, 0), [(0, 1)]), [3, 1])
    with pytest.raises(ProofError, match="another size"):
        verify(forward((1, 0), [(0,), (1,)]))
    with pytest.raises(ProofError, match="parts.*sizes"):
        verify(forward((1, 0), [(1, 0)]))


def test_slots_beside_a_row_in_another_order_are_whole():
    made = schedule("scatter", "binomial", 8, root=4)
    swapped = made.program(0)._replace(scratch=(0, 1, 3, 2))
    alike = schedule("scatter", lambda rank, size, root: (
        made.program(rank) if rank else swapped), 8, root=4)
    assert slots(alike) == slots(made)
    verify(alike)
    swapped = swapped._replace(scratch=(1, 0, 2, 3))  # rank 0 keeps the first block alone
    with pytest.raises(ProofError, match="another size|operands"):
        verify(alike)


def mixed_rows(first, second):
    """Rank 1 has four blocks in slots of two orders, and copies one slot of a row to the other."""
    everything = at(OUT, 0, 4)
    place = next(i for i in range(4) if first[i] == second[i])

    def build(rank, size, root):
        if rank == 0:
            return Program(((send(1, everything), send(1, everything), send(1, everything)),))
        if rank == 1:
            return Program(((recv(0, at(TMP, 0, 4)), recv(0, at(TMP, 4, 8)), recv(0, everything)),
                            (copy(at(TMP, place), at(TMP, 4 + place)),),
                            (send(2, at(TMP, 0, 4)),)), (*first, *second))
        return Program(((recv(1, everything),),))
    return schedule("bcast", build, 3, nblocks=4)


def test_parts_of_rows_in_two_orders_are_not_whole_together():
    verify(mixed_rows((2, 3, 1, 0), (2, 3, 1, 0)))
    made = mixed_rows((1, 3, 0, 2), (2, 3, 1, 0))  # block 3's slot begins after 1, or after 2
    lowered_alone(made, [1, 1, 1, 1])
    with pytest.raises(ProofError):
        lowered_alone(made, [1, 1, 2, 3])
    with pytest.raises(ProofError, match="parts.*sizes"):
        slots(made)


def test_parts_are_reduced_with_parts():
    def build(rank, size, root):
        if rank:
            return Program(((send(0, at(IN, 0, 2)),),))
        return Program(((recv(1, at(TMP, 0, 2)), recv(2, at(TMP, 0, 2), reduce=LEFT),
                         copy(at(TMP, 2, 4), at(IN, 0, 2))),
                        (send(3, at(TMP, 0, 2)),), (recv(3, at(OUT, 0, 2)),),
                        (reduce(at(OUT, 0, 2), at(TMP, 2, 4)),)), (1, 0, 0, 1))

    def all_of(rank, size, root):
        if rank < 3:
            return build(rank, size, root)
        return Program(((recv(0, at(TMP, 0, 2)),), (reduce(at(TMP, 0, 2), at(IN, 0, 2)),),
                        (send(0, at(TMP, 0, 2)),)), (0, 1))
    made = schedule("reduce", all_of, 4, nblocks=2)
    for sizes in ([1, 1], [3, 1], [2, 5], [0, 2]):
        lowered_alone(made, sizes)
    verify(made)


# Operations of the network: what the proof accepts, and every slip that it must find
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
