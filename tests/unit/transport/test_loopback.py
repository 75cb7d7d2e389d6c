"""Loopback: what sets it apart from other transports (its rules are in tests/contract)."""

import numpy
import pytest

from hpccoll.errors import MessageSizeError
from hpccoll.transport import MessageSpec
from hpccoll.transport.loopback import Loopback, spoil


def message(value, count=4):
    return numpy.full(count, value, numpy.int64)


def start(world, rank, sends, peer, array, tag=0):
    batch = world.endpoint(rank).batch([MessageSpec(sends, peer, array)], tag, False)
    batch.start()
    return batch


def test_a_send_waits_for_its_receive():
    world, into = Loopback(2), message(0)
    sending = start(world, 0, True, 1, message(7))
    assert not sending.test()
    receiving = start(world, 1, False, 0, into)
    assert sending.test() and receiving.test() and list(into) == [7] * 4


@pytest.mark.parametrize("eager, expected", [(False, 8), (True, 7)])
def test_data_is_read_early_or_late(eager, expected):
    world, sent, into = Loopback(2, eager), message(7), message(0)
    start(world, 0, True, 1, sent)
    sent[:] = 8
    start(world, 1, False, 0, into)
    assert list(into) == [expected] * 4


def test_a_receive_spoils_its_buffer_at_once():
    world, into = Loopback(2), message(0)
    start(world, 1, False, 0, into)
    assert set(into.view("u1")) == {0xA5}
    other = message(0)
    spoil(other[1:3])
    assert list(other == 0) == [True, False, False, True]


@pytest.mark.parametrize("counts", [(3, 4), (4, 3), (0, 1)])
def test_both_sides_hear_of_another_size(counts):
    world = Loopback(2)
    sending = start(world, 0, True, 1, message(7, counts[0]))
    receiving = start(world, 1, False, 0, message(0, counts[1]))
    for batch in (sending, receiving):
        sent, awaited = (count * 8 for count in counts)
        with pytest.raises(MessageSizeError, match=f"rank 0 .*{sent} bytes.* {awaited} bytes"):
            batch.test()


def test_worlds_are_apart():
    one, other, into = Loopback(2), Loopback(2), message(0)
    start(one, 0, True, 1, message(7))
    assert not start(other, 1, False, 0, into).test()
    assert (one.endpoint(1).rank, one.endpoint(1).size) == (1, 2)
    assert not one.endpoint(0).direct([1], 0)
