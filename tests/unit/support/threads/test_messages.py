"""Messages between threads: tags, wildcards, order, probes, nothing buffered."""

import numpy
import pytest
from mpi4py import MPI

from hpccoll.errors import MessageSizeError
from support.threads import run_ranks


def test_messages_go_to_whom_they_name_and_say_where_they_come_from():
    def function(comm):
        right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        got, status = numpy.zeros(9, "f4"), MPI.Status()
        comm.Sendrecv(numpy.full(comm.rank + 1, comm.rank, "f4"), right, 5, got, left, 5, status)
        return (status.source, status.tag, status.Get_count(MPI.FLOAT), got[:left + 1].tolist(),
                comm.sendrecv(comm.rank, right, source=left), comm.sent_bytes)

    for rank, (source, tag, count, got, left, sent) in enumerate(run_ranks(5, function)):
        assert (source, tag, count) == ((rank - 1) % 5, 5, (rank - 1) % 5 + 1)
        assert got == [source] * count and left == source
        assert sent > 4 * (rank + 1)


def test_tags_choose_and_order_is_kept():
    def function(comm):
        if comm.rank:
            requests = [comm.isend((comm.rank, tag, turn), 0, tag)
                        for turn in range(2) for tag in (1, 2)]
            return [request.wait() for request in requests]
        twos = [comm.recv(source=1, tag=2), comm.recv(source=1, tag=2)]
        assert comm.iprobe(1, 1) and not comm.iprobe(1, 2)
        rest = [comm.recv() for _ in range(6)]
        return twos, sorted(rest), [one[2] for one in rest if one[:2] == (1, 1)]

    twos, rest, turns = run_ranks(3, function)[0]
    assert twos == [(1, 2, 0), (1, 2, 1)] and turns == [0, 1]
    assert rest == [(1, 1, 0), (1, 1, 1), (2, 1, 0), (2, 1, 1), (2, 2, 0), (2, 2, 1)]


def test_a_message_that_is_too_long_is_an_error_of_its_receiver():
    def function(comm):
        if comm.rank == 0:
            comm.Send(numpy.zeros(3), 1)
        else:
            with pytest.raises(MessageSizeError, match="24 bytes.*rank 0.*16 bytes"):
                comm.Recv(numpy.zeros(2))

    run_ranks(2, function)
