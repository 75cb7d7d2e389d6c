"""Shared: messages between ranks of one node, through memory both can reach.

Every ordered pair of ranks has a channel: a line of control memory that the sender writes and
the receiver polls, with two descriptors in turn. A descriptor says where the message lies:

* ``SLOT``    - copied into the channel's slot (small messages); the sender goes on at once;
* ``REGION``  - in registered memory (``comm.empty``), read in place by the receiver;
* ``PRIVATE`` - in the sender's own memory, read by ``process_vm_readv`` (one copy);
* ``MPI``     - on its way as an MPI message, where none of the others is possible.

The receiver reads, reduces straight from where the message lies when the posting says how
(``uses``), and then counts the message as taken. A sender may touch its memory again when the
receiver has taken the message, exactly as with a synchronous send.

    sender's memory: line [posted | kind where nbytes | kind where nbytes]   receiver polls posted
    receiver's memory: line [taken]                                          sender polls taken

Each counter has one writer and a cache line of its own. Data is written before ``posted`` and read
before ``taken``; how that order is kept is decision 0006.
"""

from __future__ import annotations

from typing import Any, Sequence

import numpy

from hpccoll.errors import MessageSizeError
from hpccoll.schedule import SEND
from hpccoll.transport import Posting
from hpccoll.transport.node import CHANNELS, Node

SLOT, REGION, PRIVATE, MPI_MESSAGE = range(4)
#: Tests without progress after which a message that cannot be used yet is moved out of the way.
ASIDE = 64


class SharedEndpoint:
    """One rank's side of the channels to the ranks of its node."""

    def __init__(self, node: Node, remote: Any):
        self.node, self.remote = node, remote
        self.rank, self.size = remote.rank, remote.size

    def direct(self, peers: Sequence[int], tag: int) -> bool:
        """Tell whether messages from these ranks are read in place."""
        return tag < CHANNELS and all(peer in self.node.local for peer in peers)

    def batch(self, postings: Sequence[Posting], tag: int, repeated: bool) -> Any:
        """Prepare messages; see :class:`hpccoll.transport.Endpoint`."""
        near = [p for p in postings if p.peer in self.node.local]
        if not near or tag >= CHANNELS:
            return self.remote.batch(postings, tag, repeated)
        batch = SharedBatch(self, near, tag)
        if len(near) == len(postings):
            return batch
        far = [p for p in postings if p.peer not in self.node.local]
        return BothBatch(batch, self.remote.batch(far, tag, repeated))


class BothBatch:
    """Messages inside the node and across nodes that complete together."""

    def __init__(self, near: SharedBatch, far: Any):
        self.near, self.far = near, far

    def start(self) -> None:
        self.far.start()
        self.near.start()
        self.arrived = False

    def test(self) -> bool:
        self.arrived = self.arrived or self.far.test()
        return self.near.test() and self.arrived

    def free(self) -> None:
        self.far.free()
        self.near.free()


class SharedBatch:
    """Messages between this rank and others of its node."""

    def __init__(self, endpoint: SharedEndpoint, postings: Sequence[Posting], tag: int):
        node = endpoint.node
        self.sends = [_Send(endpoint, p, node.outgoing(p.peer, tag)) for p in postings
                      if p.kind == SEND]
        self.receives = [_Receive(endpoint, p, node.incoming(p.peer, tag)) for p in postings
                         if p.kind != SEND]

    def start(self) -> None:
        for send in self.sends:
            send.start()
        for receive in self.receives:
            receive.start()
        self.open_sends = [s for s in self.sends if not s.done]
        self.open_receives = list(self.receives)
        self.idle = 0

    def test(self) -> bool:
        waiting = self.open_receives
        # Reductions happen in the order of the schedule, so messages are used from the front.
        while waiting and waiting[0].arrived():
            waiting.pop(0).use()
            self.idle = 0
        if self.open_sends:
            self.open_sends = [s for s in self.open_sends if not s.test()]
        if not waiting and not self.open_sends:
            return True
        self.idle += 1
        if self.idle > ASIDE:
            # A sender further back may be the one that the front waits for: let it go on.
            for receive in waiting[1:]:
                if receive.arrived():
                    receive.put_aside()
        return False

    def free(self) -> None:
        self.sends = self.receives = []


class _Send:
    """One message to a rank of the node."""

    def __init__(self, endpoint: SharedEndpoint, posting: Posting, channel):
        self.endpoint, self.channel = endpoint, channel
        self.array, self.peer, self.nbytes = posting.array, posting.peer, posting.array.nbytes
        self.raw, self.where = None, (MPI_MESSAGE, 0)
        self.request = None
        if isinstance(posting.array, numpy.ndarray):
            self.raw = posting.array.view(numpy.uint8)
            self.where = endpoint.node.locate(posting.array, SLOT, REGION, PRIVATE, MPI_MESSAGE)

    def start(self) -> None:
        channel = self.channel
        channel.sent = self.number = channel.sent + 1
        self.posted = self.done = False
        self.post()

    def post(self) -> None:
        channel, number = self.channel, self.number
        # The one before may have found its descriptor in use a moment ago: keep the order.
        if channel.line[0] < number - 1 or channel.taken[0] < number - 2:
            return
        kind, where = self.where
        if kind == SLOT:
            slot = channel.slots[number & 1]
            slot[:self.nbytes] = self.raw
            self.done = True
        elif kind == MPI_MESSAGE:
            self.request = self.endpoint.remote.batch(
                [Posting(SEND, self.peer, self.array)], channel.tag, False)
            self.request.start()
        line, entry = channel.line, 1 + 3 * (number & 1)
        line[entry], line[entry + 1], line[entry + 2] = kind, where, self.nbytes
        channel.fence()
        line[0] = number
        self.posted = True

    def test(self) -> bool:
        if not self.posted:
            self.post()
            return self.done
        if self.request is not None:
            if not self.request.test():
                return False
            self.request = None
        return self.channel.taken[0] >= self.number


class _Receive:
    """One message from a rank of the node."""

    def __init__(self, endpoint: SharedEndpoint, posting: Posting, channel):
        self.endpoint, self.posting, self.channel = endpoint, posting, channel
        self.array, self.nbytes = posting.array, posting.array.nbytes
        self.views: dict[tuple, Any] = {}

    def start(self) -> None:
        channel = self.channel
        channel.received = self.number = channel.received + 1
        self.aside, self.request = False, None

    def arrived(self) -> bool:
        """Tell whether the message can be read now."""
        if self.aside:
            return True  # its descriptor may be another message's by now
        channel, entry = self.channel, 1 + 3 * (self.number & 1)
        # Taking a message counts all before it as taken: their memory may be overwritten then.
        if channel.line[0] < self.number or channel.taken[0] < self.number - 1:
            return False
        if self.request is not None:
            return self.request.test()
        channel.fence()
        self.kind, self.where, nbytes = channel.line[entry:entry + 3]
        if nbytes != self.nbytes:
            raise MessageSizeError(
                f"rank {self.posting.peer} sent {nbytes} bytes where rank {self.endpoint.rank} "
                f"expected {self.nbytes}; ranks disagree on counts")
        if self.kind == MPI_MESSAGE:
            self.request = self.endpoint.remote.batch(
                [Posting("recv", self.posting.peer, self.array)], channel.tag, False)
            self.request.start()
            return self.request.test()
        return True

    def use(self) -> None:
        """Reduce or copy the message from where it lies."""
        if self.aside:
            self.apply(self.array)
            return
        source = self.source()
        if self.posting.uses:
            self.apply(source)
        elif source is not self.array:
            _store(self.array, source)
        self.take()

    def put_aside(self) -> None:
        """Move the message into its own landing space, so that the sender can go on."""
        if not self.aside:
            source = self.source()
            if source is not self.array:
                _store(self.array, source)
            self.take()
            self.aside = True

    def apply(self, message: Any) -> None:
        for function, operands, place, start, stop in self.posting.uses:
            operands = list(operands)
            operands[place] = message[start:stop]
            function(*operands)

    def source(self) -> Any:
        """The message as an array, where it lies; private memory is copied here first."""
        if self.kind == PRIVATE:
            self.endpoint.node.read_private(self.posting.peer, self.where, self.array)
            return self.array
        if self.kind == MPI_MESSAGE:
            return self.array
        key = self.kind, self.where, self.number & 1
        view = self.views.get(key)
        if view is None:
            memory = (self.channel.slots[self.number & 1][:self.nbytes] if self.kind == SLOT
                      else self.endpoint.node.region(self.posting.peer, self.where, self.nbytes))
            view = self.views[key] = memory.view(self.array.dtype)
        return view

    def take(self) -> None:
        self.channel.fence()
        self.channel.taken[0] = self.number


def _store(array: Any, source: numpy.ndarray) -> None:
    if isinstance(array, numpy.ndarray):
        numpy.copyto(array, source)
    else:
        array.set(source)
