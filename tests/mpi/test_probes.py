"""Messages sent before a collective are found by the first probe after it.

Looked at as well: ``Request.Test`` of the libraries, which progresses before it looks;
``Win.Test``, which finds what a barrier has progressed; lower-case and matched probes.
"""

import numpy
import pytest
from mpi4py import MPI

pytestmark = pytest.mark.mpi
#: Messages to each rank in a round: tags beside the one that is probed for.
TAGS, ROUNDS = (4, 5, 5, 6, 5), 15
WORD = numpy.zeros(1)


MEETINGS = {
    "Barrier": lambda comm: comm.Barrier(),
    "Ibarrier": lambda comm: comm.Ibarrier().Wait(),
    "Allreduce": lambda comm: comm.Allreduce(MPI.IN_PLACE, WORD),
    "allreduce": lambda comm: comm.allreduce(1),
    "Allgather": lambda comm: comm.Allgather(WORD, numpy.zeros(comm.size)),
    "alltoall": lambda comm: comm.alltoall([0] * comm.size),
}


def receive(comm, how):
    """Receive messages of tag 5 until a probe finds none; return their number."""
    received = 0
    if how in ("Iprobe", "iprobe"):
        while getattr(comm, how)(MPI.ANY_SOURCE, 5):
            comm.recv(source=MPI.ANY_SOURCE, tag=5)
            received += 1
        return received
    while (message := getattr(comm, how)(MPI.ANY_SOURCE, 5)) is not None:
        message.Recv(bytearray(1000)) if how == "Improbe" else message.recv()
        received += 1
    return received


@pytest.mark.parametrize("how", ["Iprobe", "iprobe", "Improbe", "improbe"])
@pytest.mark.parametrize("meeting", MEETINGS)
def test_no_message_is_missed(world, meeting, how):
    comm, meet = world.Dup(), MEETINGS[meeting]
    meet(comm)
    meet(comm)
    missed, others = 0, [rank for rank in range(comm.size) if rank != comm.rank]
    for turn in range(ROUNDS):
        requests = [comm.isend(turn, rank, tag) for tag in TAGS for rank in others]
        meet(comm)
        missing = TAGS.count(5) * len(others) - receive(comm, how)
        missed += missing
        for _ in range(missing):
            comm.recv(source=MPI.ANY_SOURCE, tag=5)
        for rank in others:
            for tag in 4, 6:
                comm.recv(source=rank, tag=tag)
        MPI.Request.Waitall(requests)
        comm.Barrier()
    # The library's own barrier misses one in some thousand.
    assert comm.allreduce(missed) <= comm.size
    comm.Free()


def test_win_test_after_a_barrier(world):
    if world.size == 1:
        pytest.skip("needs two ranks")
    window = MPI.Win.Create(numpy.zeros(4), 8, comm=world)
    first, others = world.group.Incl([0]), world.group.Excl([0])
    missed = 0
    for _ in range(ROUNDS):
        if world.rank == 0:
            window.Start(others)
            world.Barrier()
            window.Complete()
            world.Barrier()
        else:
            window.Post(first)
            world.Barrier()
            world.Barrier()
            if not window.Test():
                missed += 1
                window.Wait()
        world.Barrier()
    assert world.allreduce(missed) <= world.size
    window.Free()
    first.Free()
    others.Free()
