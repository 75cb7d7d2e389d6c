"""Schedules and builders that a user brings along: what runs is what was proved."""

from pathlib import Path

import numpy
import pytest
from mpi4py import MPI

import hpccoll
from hpccoll.algorithms.flat import census
from hpccoll.errors import ArgumentError, CapabilityError, ProofError
from hpccoll.ir.collectives import IN, OUT, TMP
from hpccoll.ir.schedule import LEFT, Program, at, copy, recv, reduce, send

LANES, NETWORK = (str(Path(__file__).resolve().parents[2] / "examples" / name)
                  for name in ("lanes.py", "in_network.py"))


@pytest.fixture
def comm(world):
    return world


def staged(rank, size):
    """An alltoall whose blocks all land in scratch first, each in a slot of its own size."""
    others = [r for r in range(size) if r != rank]
    return Program((
        (copy(at(OUT, rank), at(IN, rank)),),
        tuple(send(o, at(IN, o)) for o in others) + tuple(recv(o, at(TMP, o)) for o in others),
        tuple(copy(at(OUT, o), at(TMP, o)) for o in others)),
        tuple(s * size + rank for s in range(size)))


@pytest.mark.parametrize("count", [lambda s, d: 2, lambda s, d: 1 + (s + d) % 3,
                                   lambda s, d: 1 + 2 * d, lambda s, d: s * (d + 1) % 4])
def test_pairs_through_scratch(comm, count):
    size, me = comm.size, comm.rank
    sent, received = ([count(me, d) for d in range(size)], [count(s, me) for s in range(size)])
    x = numpy.array([100. * me + d for d in range(size) for _ in range(sent[d])])
    out = numpy.full(sum(received), -1.)
    with comm.using(alltoall=staged):
        comm.Alltoallv([x, sent], [out, received])
    assert out.tolist() == [100. * s + me for s in range(size) for _ in range(received[s])]


def test_scratch_sized_like_a_block_between_others_is_refused(comm):
    def foreign(rank, size):
        return staged(rank, size)._replace(scratch=tuple(
            s * size + (rank + 1) % size for s in range(size)))
    if comm.size < 3:
        pytest.skip("two ranks know the sizes of all blocks that leave them")
    with comm.using(alltoall=foreign), pytest.raises(ProofError, match="does not have"):
        comm.Alltoallv([numpy.zeros(comm.size), [1] * comm.size],
                       [numpy.zeros(comm.size), [1] * comm.size])


def own_census(rank, size):
    return census.allreduce(rank, size)


def test_results_that_may_differ_between_ranks_are_refused(comm):
    # The table's entry is refused for the same reason; it is the schedule that decides, not who
    # brings it. Where all ranks combine alike, or sums are exact, it may serve.
    made = hpccoll.schedule("allreduce", "census", comm.size)
    differs = not hpccoll.verify(made).replicas_identical
    out = numpy.zeros(7, "f4")
    for what in (own_census, made):
        with comm.using(allreduce=what):
            if differs:
                with pytest.raises(ArgumentError, match="differ"):
                    comm.Allreduce(numpy.ones(7, "f4"), out)
            exact = numpy.zeros(7, "i8")
            comm.Allreduce(numpy.arange(7), exact)
            assert exact.tolist() == [comm.size * i for i in range(7)]
    if comm.size >= 5:
        assert differs


def wrong_scratch(rank, size):
    """An exchange of two ranks, in which one slot of scratch is sized like another block."""
    if size == 1:
        return Program(((copy(at(OUT, 0, 4), at(IN, 0, 4)),),))
    return Program(((copy(at(OUT, 0, 4), at(IN, 0, 4)),),
                    (send(rank ^ 1, at(OUT, 0, 4)), recv(rank ^ 1, at(TMP, 0, 4))),
                    (reduce(at(OUT, 0, 4), at(TMP, 0, 4)),)), (0, 1, 1, 3))


@pytest.mark.parametrize("count", [4, 6, 402])
def test_scratch_of_another_size_is_refused_for_every_count(comm, count):
    if comm.size != 2:
        pytest.skip("an exchange of two ranks")
    with comm.using(allreduce=(wrong_scratch, {"nblocks": 4})):
        with pytest.raises(ProofError, match="another size") as caught:
            comm.Allreduce(numpy.ones(count), numpy.zeros(count))
    assert caught.value.round == 1
    comm.Allreduce(MPI.IN_PLACE, numpy.ones(count))  # nobody has sent anything


def parcel(rank, size):
    """A reduce-scatter that passes blocks 1 and 3 round the ring in one buffer."""
    spans, mine = (at(TMP, 1), at(TMP, 3)), at(TMP, size)
    others = [k for k in range(size) if k not in (1, 3)]
    rounds = [(copy(mine, at(IN, rank)), copy(at(TMP, 0, size), at(IN, 0, size)))]
    for _ in range(size - 1):
        steps = [send((rank + 1) % size, *spans), recv((rank - 1) % size, *spans)]
        steps += [reduce(mine, at(TMP, rank))] if rank in (1, 3) else []
        rounds.append(tuple(steps))
    last = [send(k, at(IN, k)) for k in others if k != rank]
    last += [recv(k, mine, reduce=LEFT) for k in range(size) if k != rank and rank in others]
    return Program((*rounds, tuple(last), (copy(at(OUT, 0), mine),)), (*range(size), rank))


def test_a_receive_into_what_is_sent_is_refused_whatever_the_counts(comm):
    # With block 2 empty, the two blocks adjoin: nothing is packed, and what is sent is overwritten.
    if comm.size < 4:
        pytest.skip("needs four blocks")
    for counts in ([3] * comm.size, [0 if r == 2 else 3 for r in range(comm.size)]):
        with comm.using(reduce_scatter=parcel), pytest.raises(ProofError, match="of the same rou"):
            comm.Reduce_scatter(numpy.ones(sum(counts)), numpy.zeros(counts[comm.rank]), counts)


def test_a_builder_that_fails_is_named_on_every_rank(comm):
    def mine(rank, size):
        return {}[rank]
    with comm.using(allreduce=mine), pytest.raises(ProofError, match="KeyError") as caught:
        comm.Allreduce(numpy.ones(3), numpy.zeros(3))
    assert caught.value.rank == 0 and isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize("count", [0, 1, 1000, 300_001])
def test_lanes_run_on_their_own(comm, count):
    ways, chain = (f"{LANES}:{name}" for name in ("TWO_WAYS", "PIPELINE"))
    mine = numpy.arange(count, dtype="i8") + comm.rank
    total = numpy.arange(count, dtype="i8") * comm.size + sum(range(comm.size))
    with comm.using(allreduce=ways, bcast=chain):
        for _ in range(3):
            out = numpy.full(count, -1)
            comm.Allreduce(mine, out)
            assert (out == total).all()
            again = mine.copy()
            request = comm.Iallreduce(MPI.IN_PLACE, again)
            last = mine.copy()
            comm.Bcast(last, root=comm.size - 1)
            request.Wait()
            assert (again == total).all()
            assert (last == numpy.arange(count) + comm.size - 1).all()
        kept = comm.Allreduce_init(mine, out)
        for _ in range(2):
            out[:] = -1
            kept.Start()
            kept.Wait()
            assert (out == total).all()
        kept.Free()


@pytest.mark.parametrize("name", ["ALLREDUCE", "IN_PIECES"])
def test_what_mpi_cannot_do_is_refused_on_every_rank_and_the_next_call_works(comm, name):
    mine, total = numpy.full(7, comm.rank + 1.), numpy.empty(7)
    with comm.using(allreduce=f"{NETWORK}:{name}"):
        if comm.size == 1:
            comm.Allreduce(mine, total)
            return
        for begin in (comm.Allreduce, comm.Iallreduce, comm.Allreduce_init):
            with pytest.raises(CapabilityError, match="transport") as caught:
                begin(mine, total)
            assert (caught.value.rank, caught.value.round) == (0, 1)
    comm.Allreduce(mine, total)
    assert (total == comm.size * (comm.size + 1) / 2).all()
