"""Messages in registered device memory: their readers' kernels use them where they lie.

Channels, numbers and words are those of :mod:`hpccoll.transport.shm.rendezvous`: a word says that
there is a message, and where. What is new is *when* its bytes are there. The host only queues work,
on a stream; so whoever writes a word records an event first, and whoever has read the word lets its
stream wait for that event. There are two of each place of a channel:

    READY   recorded by the sender behind what computes the message, before its word
    READ    recorded by the receiver behind what reads it, before ``taken``

An event is recorded again only after its word has come back, so whoever waits for one waits for the
message it knows of. No host waits for a device, and no device for an event that may never be
recorded. Ranks of one call may have host memory: a message says where it lies, whoever reads it.

What CUDA is asked for is behind :class:`DeviceQueue`, which :mod:`hpccoll.cuda.ipc` has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy

from hpccoll.transport import NOTHING, Action, Batch, Posting
from hpccoll.transport.shm.channels import (
    CHANNELS,
    ELSEWHERE,
    OFFSET_BITS,
    PLACES,
    SIZE_BITS,
    Channel,
)
from hpccoll.transport.shm.endpoint import SharedEndpoint
from hpccoll.transport.shm.rendezvous import ASIDE, BY_MPI, HERE, Receive, RendezvousBatch, Send
from hpccoll.transport.shm.rendezvous import actions_on as host_actions
from hpccoll.transport.stamps import split

#: Kinds of events.
READY, READ = 0, 1


class DeviceQueue(Protocol):
    """Where the device work of one call is queued.

    Attributes:
        copyto: queues a copy on the stream that is current, inside ``run``.
    """

    copyto: Callable[[Any, Any], None]

    def run(self, actions: Sequence[Action]) -> None:
        """Queue local steps; the same as fewer launches where that can be."""

    def tell(self, kind: int, peer: int, tag: int, place: int) -> None:
        """Record this rank's event for a rank of the node, behind all that is queued."""

    def follow(self, kind: int, peer: int, tag: int, place: int) -> None:
        """Let what is queued from here on come after that rank's event."""

    def load(self, array: Any, host: numpy.ndarray) -> None:
        """Copy host memory into device memory; the host's may change afterwards."""


class DeviceEndpoint:
    """One rank's side for a call whose messages all lie in registered device memory.

    Args:
        inner: the channels; all ranks are of one node.
        queue: where the call's work is queued.
    """

    offers = NOTHING

    def __init__(self, inner: SharedEndpoint, queue: DeviceQueue):
        self.inner, self.queue = inner, queue
        self.node, self.remote = inner.node, inner.remote
        self.rank, self.size = inner.rank, inner.size

    @property
    def heard(self) -> Callable[[], None] | None:
        """Raises where a rank has said that it has given up."""
        return self.inner.heard

    @heard.setter
    def heard(self, heard: Callable[[], None] | None) -> None:
        self.inner.heard = heard

    def direct(self, peers: Sequence[int], tag: int) -> bool:
        """Messages are used where they lie, by the kernels of this rank."""
        return split(tag)[0] < CHANNELS

    def batch(self, postings: Sequence[Posting], tag: int, repeated: bool) -> Batch:
        """Prepare messages; see :class:`hpccoll.transport.Endpoint`."""
        return DeviceBatch(self, postings, tag)


class DeviceBatch(RendezvousBatch):
    """Messages of a round: all are used by one launch where one kernel can combine them."""

    def __init__(self, endpoint: DeviceEndpoint, postings: Sequence[Posting], tag: int):
        self.queue = endpoint.queue
        node, (tag, stamp) = endpoint.node, split(tag)
        self.sends = [DeviceSend(endpoint, p, node.outgoing(p.peer, tag), stamp) for p in postings
                      if p.sends]
        self.receives = [DeviceReceive(endpoint, p, node.incoming(p.peer, tag), stamp)
                         for p in postings if not p.sends]

    def test(self, tries: int = 1) -> bool:
        waiting = self.open_receives
        if waiting and all([receive.arrived() for receive in waiting]):
            self.use(waiting)
            self.open_receives = waiting = []
            self.idle = 0
        if self.open_sends:
            self.open_sends = [send for send in self.open_sends if not send.test()]
        if not waiting and not self.open_sends:
            return True
        self.idle += 1
        if self.idle > ASIDE:
            # One that is missing may depend on a sender of this round: let those go on.
            for receive in waiting:
                if receive.arrived():
                    receive.put_aside()
        return False

    def use(self, receives: Sequence[Any]) -> None:
        """Queue what uses all messages, in their order; then let their senders go on."""
        self.queue.run([action for receive in receives for action in receive.used()])
        for receive in receives:
            receive.leave()


class DeviceSend(Send):
    """One message in registered device memory."""

    def __init__(self, endpoint: DeviceEndpoint, posting: Posting, channel: Channel, stamp: int):
        super().__init__(endpoint.inner, posting, channel, stamp)
        where = endpoint.node.locate(posting.array)
        if where is None:
            raise TypeError("a message is in unregistered device memory")
        self.where, self.queue = where, endpoint.queue
        self.index = endpoint.node.local[posting.peer]

    def post(self) -> None:
        channel, number, place = self.channel, self.number, self.place
        if channel.taken[place] < number - PLACES:
            return
        line = channel.line
        self.queue.tell(READY, self.index, channel.tag, place)
        line[PLACES + place], line[2 * PLACES + place] = self.where, self.nbytes
        line[3 * PLACES + place] = self.stamp
        if channel.fence is not None:
            channel.fence()
        line[place] = number << SIZE_BITS | ELSEWHERE
        self.posted = True

    def test(self) -> bool:
        if not self.posted:
            self.post()
            return False
        if self.channel.taken[self.place] < self.number:
            return False
        self.queue.follow(READ, self.index, self.channel.tag, self.place)
        return True


class DeviceReceive(Receive):
    """One message for a rank with device memory, wherever it lies."""

    def __init__(self, endpoint: DeviceEndpoint, posting: Posting, channel: Channel, stamp: int):
        super().__init__(endpoint.inner, posting, channel, stamp)
        self.queue = endpoint.queue
        self.index = endpoint.node.local[posting.peer]
        self.host: numpy.ndarray | None = None

    def landing(self) -> numpy.ndarray:
        """Host memory: the MPI library need not reach the device's."""
        self.host = numpy.empty(self.array.shape, self.array.dtype)
        return self.host

    def fetch(self) -> int:
        """Where the kernels find the message; one in host memory is copied to the device."""
        if self.on_device:
            self.queue.follow(READY, self.index, self.channel.tag, self.place)
            return self.where
        if self.in_cell:
            host = self.message(self.place)
        elif self.where >> OFFSET_BITS:
            host = self.message(self.where)
        elif self.where == BY_MPI:
            host = self.host
        else:
            host = self.landing()
            self.endpoint.node.read_private(self.posting.peer, self.where, host)
        self.queue.load(self.array, host)
        return HERE

    @property
    def on_device(self) -> bool:
        """Whether the message lies in a peer's device memory."""
        return not self.in_cell and self.endpoint.node.on_device(self.where)

    def used(self) -> list[Action]:
        """What uses the message, to be queued."""
        return self.actions_at(HERE if self.aside else self.fetch())

    def actions_at(self, key: int) -> list[Action]:
        """What a message's posting says of it, where it lies."""
        if self.posting.uses:
            return host_actions(self.posting, self.message(key))
        return [] if key == HERE else [(self.queue.copyto, (self.array, self.message(key)))]

    def put_aside(self) -> None:
        """Copy the message into its own landing space, so that the sender can go on."""
        if not self.aside:
            key = self.fetch()
            if key != HERE:
                self.queue.run([(self.queue.copyto, (self.array, self.message(key)))])
            self.leave()
            self.aside = True

    def leave(self) -> None:
        """Tell the sender that its memory is its own again, once what is queued has read it."""
        if self.aside:
            return
        if self.on_device:
            # Before the look at who has given up: whoever has lets its stream wait for this event.
            self.queue.tell(READ, self.index, self.channel.tag, self.place)
        self.check_valid()
        self.take()
