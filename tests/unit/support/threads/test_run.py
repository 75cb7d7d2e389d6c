"""Worlds of threads end: with results, with the first failure, or when the time is up."""

import time

import numpy
import pytest
from mpi4py import MPI

from support.threads import Interrupted, run_ranks

WAITS = {
    "collective": lambda comm: comm.Allreduce(MPI.IN_PLACE, numpy.zeros(1)),
    "object": lambda comm: comm.bcast(None, 1),
    "receive": lambda comm: comm.recv(source=1),
    "send": lambda comm: comm.send(0, 1),
    "probe": lambda comm: comm.Probe(1),
    "split": lambda comm: comm.Split(0),
    "polling": lambda comm: poll(comm.Ibarrier()),
    "polling a probe": lambda comm: [None for _ in iter(comm.Iprobe, True)],
}


def poll(request):
    while not request.Test():
        time.sleep(1e-4)


@pytest.mark.parametrize("how", WAITS)
def test_a_rank_that_fails_ends_the_waits_of_the_others(how):
    ended = []

    def function(comm):
        if comm.rank == 1:
            raise KeyError("mine")
        try:
            WAITS[how](comm)
        except Interrupted as error:
            ended.append((comm.rank, str(error)))
            raise

    with pytest.raises(KeyError, match="mine"):
        run_ranks(3, function)
    assert sorted(rank for rank, _ in ended) == [0, 2]
    assert all("given up: KeyError: 'mine'" in text for _, text in ended)


def test_a_wait_that_never_ends_is_named_when_the_time_is_up():
    def function(comm):
        if comm.rank == 0:
            comm.Recv(numpy.zeros(1), 1, 4)
        elif comm.rank == 1:
            comm.Barrier()

    with pytest.raises(TimeoutError) as caught:
        run_ranks(3, function, timeout=0.2)
    assert str(caught.value) == (
        "no end after 0.2 s: rank 0 waits for a receive from rank 1, tag 4; "
        "rank 1 waits for barrier, call 1 of its communicator")
