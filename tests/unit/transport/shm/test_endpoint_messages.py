"""Order on a channel of shared memory, one message at a time."""

import ctypes
from types import SimpleNamespace

import numpy
import pytest

from hpccoll.transport import MessageSpec
from hpccoll.transport.shm.channels import ELSEWHERE, PLACES, SIZE_BITS, Channel
from hpccoll.transport.shm.endpoint import BY_MPI, Receive, Send
from support.gpu.device import installed

NBYTES = 80


class Remote:
    """Counts the MPI messages that are begun, none of which arrives."""

    def __init__(self):
        self.begun = 0

    def batch(self, postings, tag, repeated):
        self.begun += len(postings)
        return SimpleNamespace(start=lambda: None, test=lambda: False)


@pytest.fixture
def channel():
    line, taken = (memoryview(numpy.zeros(16, "i8")) for _ in range(2))
    return Channel(line, taken, [], 0, None)


@pytest.fixture
def endpoint():
    node = SimpleNamespace(locate=lambda array: None, readv=None, on_device=lambda where: False)
    return SimpleNamespace(rank=0, node=node, remote=Remote(), on_alarm=None,
                           uses_cell=lambda *_: False)


def announce(channel, number, where=BY_MPI):
    place = number % PLACES
    channel.line[PLACES + place], channel.line[2 * PLACES + place] = where, NBYTES
    channel.line[place] = number << SIZE_BITS | ELSEWHERE


def test_an_mpi_message_is_not_received_before_an_earlier_one(channel, endpoint):
    """Message 2 was taken and 3 is announced, but 1 is not: 3's receive would get 1's data."""
    receives = [Receive(endpoint, MessageSpec(False, 1, numpy.zeros(NBYTES, "u1")), channel)
                for _ in range(3)]
    for receive in receives:
        receive.start()
    announce(channel, 3)
    channel.taken[2] = 2
    assert not receives[2].is_readable() and endpoint.remote.begun == 0
    announce(channel, 1)
    assert not receives[0].is_readable() and endpoint.remote.begun == 1
    channel.taken[1] = 1
    assert not receives[2].is_readable() and endpoint.remote.begun == 2


def test_an_mpi_message_does_not_leave_before_an_earlier_one(channel, endpoint):
    """Message 1 waits although 2, which needed no turn, is announced."""
    sends = [Send(endpoint, MessageSpec(True, 1, numpy.zeros(NBYTES, "u1")), channel)
             for _ in range(3)]
    channel.sent = 2
    channel.line[2] = 2 << SIZE_BITS | NBYTES
    sends[2].start()
    assert not sends[2].posted and endpoint.remote.begun == 0
    channel.line[1] = 1 << SIZE_BITS | NBYTES
    sends[2].test()
    assert sends[2].posted and endpoint.remote.begun == 1


@pytest.mark.parametrize("aside", [False, True])
def test_private_memory_is_read_onto_a_device(channel, endpoint, aside):
    """As where some ranks of a call have host arrays and others device arrays."""
    sent = numpy.arange(10.0)
    endpoint.node.read_private = lambda peer, address, into: ctypes.memmove(
        into.__array_interface__["data"][0], address, into.nbytes)
    with installed(True) as cupy:
        landing = cupy.empty(10)
        receive = Receive(endpoint, MessageSpec(False, 1, landing), channel)
        receive.start()
        announce(channel, 1, sent.__array_interface__["data"][0])
        assert receive.is_readable()
        if aside:
            receive.put_aside()
            assert channel.taken[1] == 1
            sent[:] = -1  # its sender goes on
        receive.use()
        assert channel.taken[1] == 1 and (cupy.asnumpy(landing) == numpy.arange(10)).all()
