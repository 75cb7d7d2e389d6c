"""Loopback whose messages are used in place, like those in shared memory.

A receiver applies the ``uses`` of its postings to the sender's memory, in their order, and the
sender's batch completes afterwards. Messages that cannot be used for some time are copied to the
receive buffer; with ``eager=True`` immediately.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from hpccoll.errors import MessageSizeError
from hpccoll.transport import Batch, MessageSpec, NetworkOperation
from hpccoll.transport.loopback import Loopback, LoopbackBatch, LoopbackEndpoint, spoil

#: Tests after which later messages are put aside.
PATIENCE = 2


class Direct(Loopback):
    """World of ``size`` ranks that read each other's memory."""

    def endpoint(self, rank: int) -> DirectEndpoint:
        """Return one rank's side of this world."""
        return DirectEndpoint(self, rank)


class DirectEndpoint(LoopbackEndpoint):
    """One rank's side of a :class:`Direct` world."""

    def direct(self, peers: Sequence[int], tag: int) -> bool:
        """Return True: messages from all ranks are used in place."""
        return True

    def batch(self, postings: Sequence[MessageSpec], tag: int, repeated: bool) -> Batch:
        """Prepare messages; see :class:`hpccoll.transport.Endpoint`."""
        return DirectBatch(self, postings, tag)


class DirectBatch:
    """Messages of one rank."""

    def __init__(self, endpoint: DirectEndpoint, postings: Sequence[MessageSpec], tag: int):
        self.endpoint, self.tag = endpoint, tag
        self.postings = [each for each in postings if not isinstance(each.peer, NetworkOperation)]
        self.network = LoopbackBatch(  # results of the network are never used in place
            endpoint, [each for each in postings if isinstance(each.peer, NetworkOperation)], tag)

    def start(self) -> None:
        world, rank = self.endpoint.world, self.endpoint.rank
        self.ends = [_End(posting, world.eager) for posting in self.postings]
        self.waiting = [end for end in self.ends if not end.posting.sends]
        self.idle = PATIENCE if world.eager else 0
        for end in self.ends:
            sends, peer = end.posting.sends, end.posting.peer
            pair = (rank, peer, self.tag) if sends else (peer, rank, self.tag)
            queue = world.queues.setdefault(pair, deque())
            if queue and queue[0].posting.sends != sends:
                partner = queue.popleft()
                end.partner, partner.partner = partner, end
            else:
                queue.append(end)
        self.network.start()

    def test(self, tries: int = 1) -> bool:
        while self.waiting and self.waiting[0].partner:
            self.waiting.pop(0).use()
        self.idle += 1
        if self.idle > PATIENCE:
            for end in filter(lambda end: end.partner, self.waiting):
                end.put_aside()
        return all(end.done for end in self.ends) and self.network.test()

    def free(self) -> None:
        self.ends, self.waiting = [], []


class _End:
    """End of a message."""

    def __init__(self, posting: MessageSpec, eager: bool):
        self.posting, self.done = posting, False
        #: The other end, once both are posted.
        self.partner: Any = None
        self.message: Any = None
        if not posting.sends:
            spoil(posting.array)
        else:
            self.message = posting.array.copy() if eager else posting.array

    def use(self) -> None:
        """Run the uses of the posting on the message, or receive it."""
        message = self.received_message()
        for function, given, place, start, stop in self.posting.uses:
            operands = list(given)
            operands[place] = message[start:stop]
            function(*operands)
        if not self.posting.uses and message is not self.posting.array:
            self.posting.array[...] = message
        self.done = self.partner.done = True

    def put_aside(self) -> None:
        """Receive the message for a later use, so that the sender can continue."""
        if self.message is None:
            self.posting.array[...] = self.received_message()
            self.message, self.partner.done = self.posting.array, True

    def received_message(self) -> Any:
        """Return the message at its location."""
        if self.message is not None:
            return self.message
        message = self.partner.message
        if message.nbytes != self.posting.array.nbytes:
            raise MessageSizeError(f"message from rank {self.posting.peer} has {message.nbytes} "
                                   f"bytes, the receive {self.posting.array.nbytes} bytes")
        return message
