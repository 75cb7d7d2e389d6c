"""The proof on slots: faults that show at few block sizes only are found, whatever is sampled."""

import pytest

from hpccoll.algorithms import Algorithm, schedule
from hpccoll.errors import ProofError
from hpccoll.ir.collectives import IN, OUT, TMP
from hpccoll.ir.schedule import LEFT, RIGHT, Program, at, copy, recv, reduce, send
from hpccoll.proof.building import programs_of
from hpccoll.proof.cases import BlockSizes, cases
from hpccoll.proof.slots import prove_slots
from hpccoll.proof.verifier import prove, verify
from hpccoll.testing import every


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
