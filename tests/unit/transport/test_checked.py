"""Checksums: what is found, what it is called, and that nothing is found where nothing is wrong."""

import numpy
import pytest

from hpccoll.errors import HpccollError, MessageSizeError
from hpccoll.errors.checks import CorruptMessage
from hpccoll.testing.loopback_direct import Direct
from hpccoll.transport import MessageSpec
from hpccoll.transport.call_hashes import tag_with_hash
from hpccoll.transport.checked import CheckedEndpoint, checksum
from hpccoll.transport.loopback import Loopback


class Tampering(Loopback):
    """A loopback that changes what its endpoints are given to send."""

    def __init__(self, change):
        super().__init__(2, eager=True)
        self.change = change

    def endpoint(self, rank):
        end, change = super().endpoint(rank), self.change
        original = end.batch

        def batch(postings, tag, repeated):
            return original(change(postings) if postings[0].sends else postings, tag, repeated)

        end.batch = batch
        return end


def exchanged(change=lambda postings: postings, turns=1, tag=0, round=None):
    """What arrives of one message, and its sender's endpoint."""
    world = Tampering(change)
    ends = [CheckedEndpoint(world.endpoint(rank)) for rank in range(2)]
    sent, into = numpy.arange(5.0), numpy.zeros(5)
    sending = ends[0].batch([MessageSpec(True, 1, sent)], tag, True)
    receiving = ends[1].batch([MessageSpec(False, 0, into)], tag, True)
    receiving.round = round
    for _ in range(turns):
        into[:] = 0
        sending.start()
        receiving.start()
        assert sending.test() and receiving.test() and receiving.test()
        assert (into == sent).all()
    return ends


def test_messages_are_numbered_by_peer_and_plain_tag():
    ends = exchanged(turns=3, tag=tag_with_hash(7, 99))
    assert dict(ends[0].numbers) == {(True, 1, 7): 3}
    assert dict(ends[1].numbers) == {(False, 0, 7): 3}


def damaged(part):
    """Flips a bit of what is sent, of the message or of its companion."""
    def change(postings):
        posting = postings[part]
        copy = posting.array.copy()
        copy.view("u1")[3] ^= 16
        return [*postings[:part], posting._replace(array=copy), *postings[part + 1:]]
    return change


def test_a_damaged_message():
    with pytest.raises(CorruptMessage) as caught:
        exchanged(damaged(0), round=4)
    error = caught.value
    assert isinstance(error, HpccollError) and isinstance(error, RuntimeError)
    assert (error.sender, error.receiver, error.number, error.round) == (0, 1, 1, 4)
    # Its companion was filled after the copy was made here: damage is all that there is.
    assert "from rank 0 to rank 1 in round 4 " in str(error) and "checksum" in str(error)


def test_a_companion_of_another_message_says_so():
    """As after a lost message, or a second one; see tests/unit/testing/test_fault_injection.py."""
    for mine, theirs, told in ((1, 3, "was lost: received message 3 instead"),
                               (4, 3, "did not arrive: received message 3 again")):
        world = Loopback(2, eager=True)
        ends = [CheckedEndpoint(world.endpoint(rank)) for rank in range(2)]
        ends[0].numbers[True, 1, 0], ends[1].numbers[False, 0, 0] = theirs - 1, mine - 1
        sending = ends[0].batch([MessageSpec(True, 1, numpy.ones(3))], 0, False)
        receiving = ends[1].batch([MessageSpec(False, 0, numpy.zeros(3))], 0, False)
        sending.start()
        receiving.start()
        with pytest.raises(CorruptMessage, match=told) as caught:
            receiving.test()
        assert caught.value.round is None and "in round" not in str(caught.value)


def test_sizes_are_still_the_transports_business():
    world = Loopback(2)
    ends = [CheckedEndpoint(world.endpoint(rank)) for rank in range(2)]
    ends[0].batch([MessageSpec(True, 1, numpy.ones(3))], 0, False).start()
    receiving = ends[1].batch([MessageSpec(False, 0, numpy.ones(4))], 0, False)
    receiving.start()
    with pytest.raises(MessageSizeError):
        receiving.test()


def test_what_is_used_in_place_elsewhere_is_received_here():
    world = Direct(2)
    ends = [CheckedEndpoint(world.endpoint(rank)) for rank in range(2)]
    assert world.endpoint(0).direct([1], 0) and not ends[0].direct([1], 0)
    assert (ends[0].rank, ends[1].rank, ends[0].size) == (0, 1, 2)


def test_every_single_bit_changes_the_checksum():
    array = numpy.arange(40, dtype="u1")
    seen = {checksum(array)}
    for bit in range(8 * array.size):
        array[bit // 8] ^= 1 << bit % 8
        seen.add(checksum(array))
        array[bit // 8] ^= 1 << bit % 8
    assert len(seen) == 1 + 8 * array.size

    class OnDevice:
        def get(self):
            return array

    assert checksum(OnDevice()) == checksum(array)
    assert checksum(numpy.zeros(0)) == 0


def test_a_batch_can_be_freed():
    freed = []
    end = Loopback(2).endpoint(0)
    original = end.batch
    end.batch = lambda *how: freed.append(original(*how)) or freed[-1]
    CheckedEndpoint(end).batch([MessageSpec(False, 1, numpy.ones(3))], 0, False).free()
    assert freed[0].pending == []
