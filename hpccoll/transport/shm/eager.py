"""Small messages between ranks of a node, always copied through cells.

The interpreter dominates the cost of a message. So all operands are prepared for each cell, and the
code looks nothing up twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hpccoll.transport import Action, MessageSpec
from hpccoll.transport.call_hashes import MIX, split
from hpccoll.transport.shm.channels import LAST, PLACES, SIZE_BITS, Channel, View
from hpccoll.transport.shm.rendezvous import ASIDE, Receive, actions_on

if TYPE_CHECKING:
    from hpccoll.transport.shm.endpoint import SharedEndpoint

#: A message to send: channel, its line, its ``taken``, size and call hash of its word, cells, the
#: message. A plain tuple, because unpacking is faster than attributes; so is the next.
Outgoing = tuple[Channel, View, View, int, list[View], View]
#: A message to receive: line, ``taken``, the actions for each cell, and the general receive.
Incoming = tuple[View, View, list[list[Action]], Receive]

ALL = slice(None)


class EagerBatch:
    """Small messages: two copies and two counters each.

    A sender only waits for a free cell. A receiver has freed all cells when it starts a batch, so
    each of its messages has a cell if each rank sends at most ``PLACES`` (``fits_places``), and
    receiving strictly in order cannot deadlock. If a sender does not use a cell, the rules of
    ``RendezvousBatch`` apply.
    """

    def __init__(self, endpoint: SharedEndpoint, postings: Sequence[MessageSpec], tag: int):
        node, (tag, call_hash) = endpoint.node, split(tag)
        mix = call_hash & MIX
        self.sends: list[Outgoing] = []
        self.receives: list[Incoming] = []
        #: Of each receive: index, channel, size and call hash of its word.
        self.numbered: list[tuple[int, Channel, int]] = []
        for posting in postings:
            nbytes = posting.array.nbytes
            if posting.sends:
                channel = node.send_channel(posting.peer, tag)
                self.sends.append((channel, channel.line, channel.taken, nbytes ^ mix,
                                   [cell[:nbytes].data for cell in channel.cells_for(nbytes)],
                                   memoryview(posting.array.view("u1"))))
            else:
                channel = node.recv_channel(posting.peer, tag)
                cells = [cell[:nbytes].view(posting.array.dtype)
                         for cell in channel.cells_for(nbytes)]
                self.numbered.append((len(self.receives), channel, nbytes ^ mix))
                self.receives.append((channel.line, channel.taken,
                                      [actions_on(posting, cell) for cell in cells],
                                      Receive(endpoint, posting, channel, call_hash)))
        self.fence = node.fence
        #: Messages without a free cell, with their numbers.
        self.unsent: list[tuple[Outgoing, int]] = []
        #: Of each receive: number of the message, its place, and the expected word.
        self.expected = [(0, 0, 0)] * len(self.receives)
        self.next = self.count = len(self.receives)
        self.idle = 0

    # Inlined, in local variables: a call or a look-up costs as much as a copy.
    def start(self) -> None:
        fence = self.fence
        for send in self.sends:
            channel, line, taken, announced, cells, message = send
            channel.sent = number = channel.sent + 1
            place = number & LAST
            if taken[place] < number - PLACES:
                self.unsent.append((send, number))
                continue
            cells[place][ALL] = message
            if fence is not None:
                fence()
            line[place] = number << SIZE_BITS | announced
        expected = self.expected
        for index, channel, awaited in self.numbered:
            channel.received = number = channel.received + 1
            expected[index] = number, number & LAST, number << SIZE_BITS | awaited
        self.next = self.idle = 0

    def send(self, send: Outgoing, number: int) -> None:
        """Send a message that had no free cell; it may have to wait again."""
        _, line, taken, announced, cells, message = send
        place = number & LAST
        if taken[place] < number - PLACES:
            self.unsent.append((send, number))
            return
        cells[place][ALL] = message
        if self.fence is not None:
            self.fence()
        line[place] = number << SIZE_BITS | announced

    def test(self, tries: int = 1) -> bool:
        if self.unsent:
            unsent, self.unsent = self.unsent, []
            for send, number in unsent:
                self.send(send, number)
        fence, index = self.fence, self.next
        while index < self.count:
            number, place, expected = self.expected[index]
            line, taken, actions, other = self.receives[index]
            while line[place] != expected and tries > 0:
                tries -= 1
            if line[place] == expected:
                if fence is not None:
                    fence()
                for function, operands in actions[place]:
                    function(*operands)
                if fence is not None:
                    fence()
                taken[place] = number
            elif self.lies_elsewhere(index) and other.is_readable():
                other.use()
            else:
                self.idle += 1
                if self.idle > ASIDE:
                    self.put_aside()
                return False
            self.next = index = index + 1
        return not self.unsent

    def lies_elsewhere(self, index: int) -> bool:
        """Return True if a message has arrived, but not in its cell as expected."""
        number, place, expected = self.expected[index]
        line, _, _, other = self.receives[index]
        if other.number != number:
            word = line[place]
            if word >> SIZE_BITS != number or word == expected:
                return False
            other.expect(number)
        return True

    def put_aside(self) -> None:
        """Copy messages that are not in cells and cannot be used yet, so that senders continue."""
        for index in range(self.next + 1, self.count):
            other = self.receives[index][-1]
            if self.lies_elsewhere(index) and other.is_readable():
                other.put_aside()

    def free(self) -> None:
        self.sends, self.receives = [], []


def fits_places(postings: Sequence[MessageSpec]) -> bool:
    """Return True if no channel receives more messages of this batch than it has places.

    More messages can deadlock. The sender of the last one waits for a free place, and this rank
    may first wait for a third rank that waits for that sender.
    """
    senders = [posting.peer for posting in postings if not posting.sends]
    return len(senders) <= PLACES or max(Counter(senders).values()) <= PLACES
