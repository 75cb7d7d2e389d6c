"""Which way the messages of a batch take: channels, or the remote endpoint."""

from types import SimpleNamespace

import numpy
import pytest

from hpccoll.transport import MessageSpec
from hpccoll.transport.shm.channels import PLACES, Channel
from hpccoll.transport.shm.endpoint import TINY, BothBatch, RendezvousBatch, SharedEndpoint
from support.gpu.device import installed

CELL_BYTES = 2 * TINY


class Remote:
    """An endpoint that notes what it is asked for."""

    rank, size = 0, 4

    def batch(self, postings, tag, repeated):
        return SimpleNamespace(peers=[posting.peer for posting in postings], repeated=repeated)


class Node:
    """Ranks 0 to 2 are near; tag 0 has channels. Arrays of one-byte numbers are registered."""

    fence = readv = None
    tags, local = {0: 0}, {1: 1, 2: 2}

    def locate(self, array):
        return 1 << 48 if array.dtype == "u1" else None

    def send_channel(self, peer, tag):
        words = memoryview(numpy.zeros(16, "i8"))
        return Channel(words, words, list(numpy.zeros((PLACES, CELL_BYTES), "u1")), tag, None)

    recv_channel = send_channel


@pytest.fixture
def endpoint():
    return SharedEndpoint(Node(), Remote())


def send(peer, nbytes, dtype="i2"):
    return MessageSpec(True, peer, numpy.zeros(nbytes // numpy.dtype(dtype).itemsize, dtype))


def recv(peer, nbytes):
    return send(peer, nbytes)._replace(sends=False)


def test_messages_to_other_nodes_are_for_the_remote_endpoint(endpoint):
    remote = endpoint.batch([send(3, 8), recv(3, 8)], 0, True)
    assert remote.peers == [3, 3] and remote.repeated
    both = endpoint.batch([send(1, 8), send(3, 8)], 0, False)
    assert type(both) is BothBatch and type(both.local) is RendezvousBatch
    assert both.remote.peers == [3] and not both.remote.repeated


def test_a_tag_without_channels_is_for_the_remote_endpoint(endpoint):
    assert endpoint.batch([send(1, 8)], 7, False).peers == [1]
    assert endpoint.direct([1, 2], 0) and not endpoint.direct([1, 2], 7)
    assert not endpoint.direct([1, 3], 0)


def test_what_uses_a_cell(endpoint):
    assert endpoint.uses_cell(send(1, CELL_BYTES), 0)
    assert not endpoint.uses_cell(send(1, CELL_BYTES + 2), 0)
    # Registered memory is read in place, unless it is tiny.
    assert endpoint.uses_cell(send(1, TINY, "u1"), 0)
    assert not endpoint.uses_cell(send(1, TINY + 1, "u1"), 0)
    endpoint.node.send_channel = lambda peer, tag: SimpleNamespace(cells_for=lambda nbytes: ())
    assert not endpoint.uses_cell(send(1, 8), 0)


def test_device_memory_uses_no_cells(endpoint):
    with installed(True) as cupy:
        batch = endpoint.batch([MessageSpec(True, 1, cupy.empty(3))], 0, False)
        assert type(batch) is RendezvousBatch and not batch.sends[0].copies


def test_both_parts_of_a_batch_must_complete():
    tests = {"local": [False, True, True, True], "remote": [False, False, True]}
    local, remote = (SimpleNamespace(start=lambda: None, test=lambda name=name: tests[name].pop(0))
                     for name in ("local", "remote"))
    both = BothBatch(local, remote)
    both.start()
    assert [both.test() for _ in range(4)] == [False, False, True, True]
    assert not tests["remote"]  # what has completed is not tested again
