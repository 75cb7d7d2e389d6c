"""Ranks that call unlike each other in ways that no field of one call tells."""

import pickle
import time

import numpy
import pytest
from mpi4py import MPI

import hpccoll
from hpccoll.errors import BrokenCommunicatorError, CollectiveTimeout, HpccollError
from hpccoll.errors.contract import ContractError
from hpccoll.runtime.events.call_log import NUMBER

RAW = MPI.COMM_WORLD
RANK, SIZE = RAW.Get_rank(), RAW.Get_size()
ODD = SIZE - 1
OURS = {"allreduce": "recursive_doubling", "bcast": "binomial", "alltoall": "pairwise",
        "allgather": "ring", "barrier": "dissemination", "gather": "linear", "scatter": "linear"}
NATIVE = dict.fromkeys(OURS, "native")
pytestmark = pytest.mark.mpi(min_size=2)


@pytest.fixture
def make(monkeypatch):
    """A communicator with a deadline."""
    def made(timeout="20"):
        monkeypatch.setenv("HPCCOLL_TIMEOUT", timeout)
        return hpccoll.Comm(MPI.Intracomm(RAW).Dup())
    yield made
    RAW.Barrier()


@pytest.mark.parametrize("preferences", [OURS, NATIVE], ids=["ours", "native"])
def test_a_rank_with_nothing_may_have_any_type(make, capfd, preferences):
    """MPI allows it: what has no elements matches all types, also between pairs of ranks."""
    comm, nothing = make(), numpy.empty(0)
    counts = [1] * ODD + [0]  # the last rank has nothing
    mine, some = numpy.full(counts[RANK], RANK, "i4"), numpy.zeros(ODD, "i4")
    with comm.using(**preferences):
        for root in (0, ODD):
            some[:] = -1
            sink = [some, counts] if RANK == root else None
            comm.Gatherv(nothing if RANK == ODD else mine, sink, root)
            assert RANK != root or (some == numpy.arange(ODD)).all()
            mine[:] = -1
            comm.Scatterv([numpy.arange(ODD, dtype="i4"), counts] if RANK == root else None,
                          nothing if RANK == ODD else mine, root)
            assert (mine == RANK).all()
        # All only send to themselves, in types of their own.
        kind = "f8" if RANK == ODD else "i4"
        alone = (numpy.arange(SIZE) == RANK) * 3
        kept = numpy.zeros(3, kind)
        comm.Alltoallv([numpy.arange(3, dtype=kind), alone], [kept, alone])
        assert (kept == numpy.arange(3)).all()
        guard = comm._private().guard
        RAW.Barrier()
        for _ in range(3):
            comm._private().library._look_back()
        RAW.Barrier()
        assert not guard.alarm_raised and guard.failure is None
        comm.Barrier()
    assert "result may be wrong" not in capfd.readouterr().err
    comm.Free()


class Unreadable:
    """An object that cannot be unpickled."""

    def __reduce__(self):
        return int, ("made for a test",)


@pytest.mark.parametrize("method", ["gather", "allgather", "alltoall", "scatter"])
def test_an_object_that_one_rank_cannot_read_or_send(make, method):
    """What could not be read has been sent, and counts as a call; what was never sent does not."""
    comm = make()
    log = comm._private().guard.logs.mine
    several = method in ("alltoall", "scatter")
    mine, good = ([[one] * SIZE if several else one] for one in (Unreadable(), 1))
    wrong = [[lambda: None] * SIZE if several else lambda: None], [[1]] * several
    root = [0] * (method in ("gather", "scatter"))
    comm.Barrier()
    for args in (mine, good):
        number = log.words[NUMBER]
        try:
            getattr(comm, method)(*args, *root)
        except ValueError as error:
            assert "made for a test" in str(error)
        RAW.Barrier()
        assert log.words[NUMBER] == number + 1
    if RANK == 0 or method != "scatter":
        for args in filter(None, wrong):
            with pytest.raises((AttributeError, TypeError, ValueError, pickle.PicklingError)):
                getattr(comm, method)(*args, *root)
    assert log.words[NUMBER] == number + 1
    guard = comm._private().guard
    for _ in range(3):
        comm.Barrier()
        comm._private().library._look_back()
    assert guard.failure is None
    comm.Free()


def test_a_pair_of_ranks_that_disagrees_about_its_block(make):
    """The receiver and the sender are named; nobody gets a part of a block."""
    comm = make()
    counts = numpy.full(SIZE, 4)
    sent = counts + (numpy.arange(SIZE) == 0) * (RANK == ODD)  # one more to rank 0
    out = numpy.empty(4 * SIZE)
    with comm.using(**OURS), pytest.raises(HpccollError) as caught:
        comm.Alltoallv([numpy.ones(sent.sum()), sent], [out, counts])
        comm.Barrier()
    told = RAW.allgather(str(caught.value))
    assert f"rank {ODD}: another" in told[0] and "rank 0: another (alltoallv" in told[0], told


@pytest.mark.parametrize("odd", [0, ODD])
def test_one_call_more_or_less(make, odd):
    """Who is alone in a call is told so at the deadline; the others where they are missed."""
    comm = make("1")
    with comm.using(**OURS):
        comm.Barrier()
        start = time.monotonic()
        if odd == RANK:  # the others have one call less
            with pytest.raises(CollectiveTimeout, match=(
                    r"^hpccoll: rank \d .*call 3(.|\n)*call 2")):
                comm.Allreduce(numpy.ones(3), numpy.ones(3))
            assert 0.9 < time.monotonic() - start < 8
        RAW.Barrier()
        if odd != RANK:
            with pytest.raises((ContractError, BrokenCommunicatorError), match=(
                    f"rank {odd} .*call 3, allreduce|rank {odd}: allreduce")):
                comm.Barrier()


def test_crossed_calls_on_two_communicators(make):
    """The classic cycle: each is told at which line the other one is."""
    one, two = make("1.5"), make("1.5")
    x = numpy.ones(3)
    with one.using(**OURS), two.using(**OURS):
        one.Barrier()
        two.Barrier()
        first, second = (two, one) if RANK == ODD else (one, two)
        with pytest.raises((CollectiveTimeout, BrokenCommunicatorError)) as caught:
            first.Allreduce(x, x.copy())
            second.Allreduce(x, x.copy())
    told = str(caught.value)
    assert "allreduce" in told and f"{__file__}:" in told, told
    assert (f"rank {ODD} is at " if RANK != ODD else " is at ") in told


def test_other_traffic_with_the_same_tags(make):
    """Messages and receives of the program's, of any source and tag, never meet ours."""
    comm, private = make(), MPI.Intracomm(RAW).Dup()
    words = [numpy.zeros(1) for _ in range(3)]
    left, right = (RANK - 1) % SIZE, (RANK + 1) % SIZE
    waiting = [other.Irecv(word, MPI.ANY_SOURCE, MPI.ANY_TAG)
               for other, word in zip((comm, private, RAW), words)]
    with comm.using(**OURS, iallreduce="ring"):
        for turn in range(5):
            # The library serves the first one, and mpi4py 4.1 keeps no buffers for it.
            given, out = numpy.full(1000, turn + 1.0), numpy.zeros(1000)
            request = comm.Iallreduce(given, out)
            again = comm.Dup() if turn == 2 else None
            comm.Barrier()
            request.Wait()
            assert (out == SIZE * (turn + 1)).all()
            if again is not None:
                again.Free()
    assert [one.Test() for one in waiting] == [False] * 3
    RAW.Barrier()
    for other in (comm, private, RAW):
        other.Send(numpy.full(1, 7.0), right, 5)
    status = MPI.Status()
    for one, word in zip(waiting, words):
        one.Wait(status)
        assert word[0] == 7 and (status.Get_source(), status.Get_tag()) == (left, 5)
    private.Free()
    comm.Free()


def test_ranks_that_come_in_another_order_are_told(make):
    """A before B here, and B before A there: also where all messages find their calls by chance."""
    comm = make()
    x = numpy.ones(9)
    calls = [lambda: comm.Bcast(x, 0), lambda: comm.Allreduce(x, x.copy())]
    with comm.using(**OURS), pytest.raises(ContractError, match="collective") as caught:
        for call in calls[::-1] if RANK == ODD else calls:
            call()
        until, guard = time.monotonic() + 10, comm._private().guard
        while not guard.alarm_raised and time.monotonic() < until:
            time.sleep(0.01)
        comm.Barrier()
    assert caught.value.ranks == ((ODD,) if SIZE > 2 else ())
