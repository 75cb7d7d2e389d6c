"""Small messages between ranks of a node, which always go through slots.

Here a message costs as much as the interpreter takes to send and to find it. So everything is
prepared for each slot, and the code looks at nothing twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from hpccoll.ir.schedule import SEND
from hpccoll.transport import Posting
from hpccoll.transport.shm.channels import LAST, PLACES, SIZE_BITS
from hpccoll.transport.shm.rendezvous import ASIDE, Receive, bound

ALL = slice(None)


class SlotBatch:
    """Small messages: nothing but two copies and two counters each.

    A sender waits for no receiver here but for a slot. A receiver has freed all slots when it
    begins a batch, so there is one for each of its messages as long as it gets at most ``PLACES``
    from each rank (``in_places``), and taking them strictly in order cannot deadlock. A sender
    may choose another place than the slot, though; then the rules of ``SharedBatch`` hold.
    """

    def __init__(self, endpoint: Any, postings: Sequence[Posting], tag: int):
        node = endpoint.node
        self.sends, self.receives, self.numbered = [], [], []
        for posting in postings:
            nbytes = posting.array.nbytes
            if posting.kind == SEND:
                channel = node.outgoing(posting.peer, tag)
                self.sends.append((channel, channel.line, channel.taken, nbytes,
                                   [memoryview(slot[:nbytes]) for slot in channel.slots],
                                   memoryview(posting.array.view("u1"))))
            else:
                channel = node.incoming(posting.peer, tag)
                slots = [slot[:nbytes].view(posting.array.dtype) for slot in channel.slots]
                self.numbered.append((len(self.receives), channel, nbytes))
                self.receives.append((channel.line, channel.taken,
                                      [bound(posting, slot) for slot in slots],
                                      Receive(endpoint, posting, channel)))
        self.fence = node.fence
        self.unsent: list[tuple] = []
        #: Number of every message, its place, and the word that announces it in its slot.
        self.expected = [(0, 0, 0)] * len(self.receives)
        self.next = self.count = len(self.receives)
        self.idle = 0

    # What is written out and kept in local names here costs as much as the copies otherwise.
    def start(self) -> None:
        fence = self.fence
        for send in self.sends:
            channel, line, taken, nbytes, slots, message = send
            channel.sent = number = channel.sent + 1
            place = number & LAST
            if taken[place] < number - PLACES:
                self.unsent.append((send, number))
                continue
            slots[place][ALL] = message
            if fence is not None:
                fence()
            line[place] = number << SIZE_BITS | nbytes
        expected = self.expected
        for index, channel, nbytes in self.numbered:
            channel.received = number = channel.received + 1
            expected[index] = number, number & LAST, number << SIZE_BITS | nbytes
        self.next = self.idle = 0

    def send(self, send: tuple, number: int) -> None:
        """Send a message for which there was no slot; it may have to wait once more."""
        _, line, taken, nbytes, slots, message = send
        place = number & LAST
        if taken[place] < number - PLACES:
            self.unsent.append((send, number))
            return
        slots[place][ALL] = message
        if self.fence is not None:
            self.fence()
        line[place] = number << SIZE_BITS | nbytes

    def test(self, tries: int = 1) -> bool:
        if self.unsent:
            unsent, self.unsent = self.unsent, []
            for send, number in unsent:
                self.send(send, number)
        fence, index = self.fence, self.next
        while index < self.count:
            number, place, expected = self.expected[index]
            line, taken, uses, other = self.receives[index]
            while line[place] != expected and tries > 0:
                tries -= 1
            if line[place] == expected:
                if fence is not None:
                    fence()
                for function, operands in uses[place]:
                    function(*operands)
                if fence is not None:
                    fence()
                taken[place] = number
            elif self.lies_elsewhere(index) and other.arrived():
                other.use()
            else:
                self.idle += 1
                if self.idle > ASIDE:
                    self.put_aside()
                return False
            self.next = index = index + 1
        return not self.unsent

    def lies_elsewhere(self, index: int) -> bool:
        """Tell whether a message is there, but not in its slot as expected."""
        number, place, expected = self.expected[index]
        line, _, _, other = self.receives[index]
        if other.number != number:
            word = line[place]
            if word >> SIZE_BITS != number or word == expected:
                return False
            other.expect(number)
        return True

    def put_aside(self) -> None:
        """Let senders go on whose messages lie elsewhere and cannot be used yet."""
        for index in range(self.next + 1, self.count):
            other = self.receives[index][-1]
            if self.lies_elsewhere(index) and other.arrived():
                other.put_aside()

    def free(self) -> None:
        self.sends = self.receives = []


class Exchange:
    """A batch with one message each way, whose ``start`` and ``test`` have less to look up.

    What is out of the ordinary is left to the batch, until the next start.
    """

    def __init__(self, batch: SlotBatch):
        self.batch = batch
        # Functions without a reference to this object: a cycle would keep users' arrays alive.
        self.start, self.test = _exchange(batch, *batch.sends, *batch.receives)

    def free(self) -> None:
        self.batch.free()


def in_places(postings: Sequence[Posting]) -> bool:
    """Tell whether all messages from each rank have a place in its channel at once.

    Otherwise the sender of the last one waits until the first is taken, and the receiver may
    want another rank's message before that, which comes when this sender has gone on.
    """
    senders = [posting.peer for posting in postings if posting.kind != SEND]
    return len(senders) <= PLACES or max(Counter(senders).values()) <= PLACES


def small(endpoint: Any, postings: Sequence[Posting], tag: int) -> SlotBatch | Exchange:
    """Prepare messages that all fit slots."""
    batch = SlotBatch(endpoint, postings, tag)
    ordinary = len(batch.sends) == len(batch.receives) == 1 and batch.fence is None
    return Exchange(batch) if ordinary else batch


def _exchange(batch: SlotBatch, send: tuple, receive: tuple) -> tuple[Callable, Callable]:
    outgoing, announced, taken_there, nbytes, slots, message = send
    line, taken, uses, _ = receive
    (_, incoming, awaited), = batch.numbered
    number = place = word = 0
    ordinary = True

    def start() -> None:
        nonlocal number, place, word, ordinary
        outgoing.sent = number = outgoing.sent + 1
        place = number & LAST
        ordinary = taken_there[place] >= number - PLACES
        if ordinary:
            slots[place][ALL] = message
            announced[place] = number << SIZE_BITS | nbytes
        else:
            batch.unsent.append((send, number))
        incoming.received = number = incoming.received + 1
        place = number & LAST
        word = number << SIZE_BITS | awaited
        if not ordinary:
            leave()

    def leave() -> None:
        batch.expected[0] = number, place, word
        batch.next = batch.idle = 0

    def test(tries: int = 1) -> bool:
        nonlocal ordinary
        if not ordinary:
            return SlotBatch.test(batch, tries)
        while line[place] != word:
            tries -= 1
            if tries <= 0:
                ordinary = False
                leave()
                return SlotBatch.test(batch)
        for function, operands in uses[place]:
            function(*operands)
        taken[place] = number
        ordinary = False  # a test after the last one finds the batch with nothing left to receive
        return True

    return start, test
