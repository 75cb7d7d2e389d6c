"""Small messages through cells, both ranks in one process: what happens when one is late."""

import gc
import weakref
from collections import defaultdict
from types import SimpleNamespace

import numpy
import pytest

from hpccoll.ir.collectives import BCAST, OUT
from hpccoll.ir.schedule import Program, Schedule, Span, at, recv, send
from hpccoll.proof.verifier import verify
from hpccoll.testing.world import Problem, Seat, interleave
from hpccoll.transport import MessageSpec
from hpccoll.transport.shm import rendezvous
from hpccoll.transport.shm.channels import PLACES, SIZE_BITS, Channel
from hpccoll.transport.shm.eager import EagerBatch
from hpccoll.transport.shm.endpoint import SharedEndpoint

COUNT = 5


def side(memory, rank, fence):
    """A rank's view of two channels: 0 from rank 0 to rank 1, 1 back."""
    def channel(number):
        line, taken, cells = memory[number]
        return Channel(memoryview(line), memoryview(taken), list(cells), 0, fence)
    outgoing, incoming = channel(rank), channel(1 - rank)
    node = SimpleNamespace(send_channel=lambda peer, tag: outgoing, fence=fence,
                           recv_channel=lambda peer, tag: incoming,
                           region=lambda peer, where, nbytes: None)
    return SimpleNamespace(node=node, rank=rank, remote=None, on_alarm=None)


@pytest.fixture(params=["no fence", "fences"])
def fences(request):
    return [] if request.param == "fences" else None


@pytest.fixture
def ranks(fences):
    """Two ranks that exchange and add: (batch, input, output) of each."""
    memory = [(numpy.zeros(16, "i8"), numpy.zeros(16, "i8"),
               numpy.zeros((PLACES, 128), "u1")) for _ in range(2)]
    ranks = []
    for rank in range(2):
        mine, sum_ = numpy.zeros(COUNT), numpy.full(COUNT, numpy.nan)
        landing = numpy.empty(COUNT)
        fence = None if fences is None else lambda: fences.append(True)
        batch = EagerBatch(side(memory, rank, fence), [
            MessageSpec(True, 1 - rank, mine),
            MessageSpec(False, 1 - rank, landing, [
                (numpy.add, (mine, landing, sum_), 1, 0, COUNT)])], 0)
        ranks.append((batch, mine, sum_))
    return ranks


def fill(ranks, turn):
    for rank, (_, mine, _) in enumerate(ranks):
        mine[:] = numpy.arange(COUNT) + 100 * turn + 10 * rank


def right(sum_, turn):
    return (sum_ == 2 * numpy.arange(COUNT) + 200 * turn + 10).all()


def test_exchanges_repeat(ranks, fences):
    for turn in range(3 * PLACES):
        fill(ranks, turn)
        for batch, _, _ in ranks:
            batch.start()
        assert all(batch.test() and right(sum_, turn) for batch, _, sum_ in ranks)
    assert fences is None or len(fences) >= 3 * 3 * PLACES


@pytest.mark.parametrize("late", [False, True])
def test_a_test_after_the_last_one_does_nothing(ranks, late):
    """As where messages of other nodes, which complete together with these, are still missing."""
    (one, mine, sum_), (two, _, _) = ranks
    for turn in range(3):
        fill(ranks, turn)
        one.start()
        assert not late or not one.test()
        two.start()
        assert one.test() and two.test() and right(sum_, turn)
        mine += 1000  # would be added once more
        assert one.test() and one.test(7) and right(sum_, turn)


@pytest.mark.parametrize("tries", [1, 7])
def test_a_late_message_is_found_by_a_later_test(ranks, tries):
    (one, _, sum_), (two, _, other) = ranks
    for turn in range(3):
        fill(ranks, turn)
        one.start()
        assert not one.test(tries) and not one.test(tries)
        two.start()
        assert two.test(tries) and right(other, turn)
        assert one.test(tries) and right(sum_, turn)


def test_a_sender_without_a_free_cell_waits_for_one(ranks):
    (one, mine, sum_), (two, _, other) = ranks
    (outgoing, *_), = one.sends
    # Four messages that nobody has taken.
    outgoing.sent, two.numbered[0][1].received = PLACES, PLACES
    fill(ranks, 1)
    one.start()
    two.start()
    assert not two.test() and not one.test()  # it has all it wants, but its own message waits
    outgoing.taken[1] = 1
    assert one.test() and right(sum_, 1)
    assert two.test() and right(other, 1)


def test_a_message_of_another_size_is_an_error(ranks):
    (one, *_), (two, *_) = ranks
    one.start()
    one.sends[0][1][1] = 1 << SIZE_BITS | 8
    two.start()
    with pytest.raises(Exception, match="8 bytes.*rank 1.*40"):
        two.test()


def test_a_batch_keeps_no_array_alive(ranks):
    batch, mine, _ = ranks.pop()
    gone = weakref.ref(mine)
    del mine, batch, _
    gc.disable()
    try:
        assert gone() is None
    finally:
        gc.enable()


class Near:
    """One rank's side of a node whose ranks are all in this process."""

    fence = readv = None
    tags = 0, 1

    def __init__(self, memory, rank, size):
        self.memory, self.rank, self.channels = memory, rank, {}
        self.local = [peer for peer in range(size) if peer != rank]

    def cell_limit(self, tag):
        return 128

    def locate(self, array):
        return None

    def send_channel(self, peer, tag):
        return self.channel(self.rank, peer, tag)

    def recv_channel(self, peer, tag):
        return self.channel(peer, self.rank, tag)

    def channel(self, *key):
        if key not in self.channels:
            line, taken, cells = self.memory[key]
            self.channels[key] = Channel(memoryview(line), memoryview(taken), list(cells), 0, None)
        return self.channels[key]


@pytest.mark.parametrize("count", [PLACES, PLACES + 1, 3 * PLACES])
def test_messages_may_lie_behind_one_whose_sender_waits_for_theirs(monkeypatch, count):
    """Rank 2 goes on to rank 1 when its messages have left, and rank 0 wants rank 1's first."""
    monkeypatch.setattr(rendezvous, "ASIDE", 1)
    many, every = [at(OUT, i) for i in range(count)], Span(OUT, 0, count + 1)
    rounds = [((recv(1, at(OUT, count)), *[recv(2, one) for one in many]),),
              ((recv(2, every),), (send(0, at(OUT, count)),)),
              (tuple(send(0, one) for one in many), (send(1, every),))]
    schedule = Schedule(BCAST, "mine", 3, lambda rank: Program(rounds[rank]), 2, count + 1)
    assert verify(schedule)
    memory = defaultdict(lambda: (numpy.zeros(16, "i8"), numpy.zeros(16, "i8"),
                                  numpy.zeros((PLACES, 128), "u1")))
    seats = [Seat(schedule, Problem(BCAST, 3, [count + 1], 2), rank) for rank in range(3)]
    ends = [SharedEndpoint(Near(memory, rank, 3), SimpleNamespace(rank=rank, size=3))
            for rank in range(3)]
    for seat in seats:
        seat.fill()
    interleave(seat.execution(end) for seat, end in zip(seats, ends))
    assert not [fault for seat in seats for fault in seat.faults()]
