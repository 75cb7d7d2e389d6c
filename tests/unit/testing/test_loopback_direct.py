"""Loopback that uses messages in place: what sets it apart (its rules are in tests/contract)."""

import numpy
import pytest

from hpccoll.errors import MessageSizeError
from hpccoll.testing.loopback_direct import PATIENCE, Direct
from hpccoll.transport import MessageSpec


def start(world, rank, *postings, tag=0):
    batch = world.endpoint(rank).batch(postings, tag, False)
    batch.start()
    return batch


def adding(total, source):
    """A use of a message of one element: add it to a total."""
    return MessageSpec(False, source, numpy.empty(1), [(numpy.add, (total, None, total), 1, 0, 1)])


@pytest.mark.parametrize("eager, expected", [(False, 8), (True, 7)])
def test_a_message_is_read_at_its_use_or_at_the_post(eager, expected):
    world, sent, total = Direct(2, eager), numpy.array([7.0]), numpy.zeros(1)
    sending = start(world, 0, MessageSpec(True, 1, sent))
    sent[:] = 8
    receiving = start(world, 1, adding(total, 0))
    assert not sending.test()
    assert receiving.test() and sending.test() and total == expected


def test_messages_that_wait_for_their_turn_are_put_aside():
    """The second sender may go on although the first message, which comes before, is missing."""
    world, total = Direct(3), numpy.zeros(1)
    receiving = start(world, 0, adding(total, 1), adding(total, 2))
    sent = numpy.array([5.0])
    second = start(world, 2, MessageSpec(True, 0, sent))
    for _ in range(PATIENCE + 1):
        assert not second.test() and not receiving.test()
    assert second.test() and total == 0
    sent[:] = -1
    first = start(world, 1, MessageSpec(True, 0, numpy.array([3.0])))
    assert receiving.test() and first.test() and total == 8


def test_a_message_of_another_size_is_an_error():
    world = Direct(2)
    start(world, 0, MessageSpec(True, 1, numpy.zeros(3)))
    receiving = start(world, 1, MessageSpec(False, 0, numpy.zeros(2)))
    with pytest.raises(MessageSizeError, match="rank 0.*24 bytes.*16 bytes"):
        receiving.test()
