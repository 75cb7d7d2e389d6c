"""Transport in registered device memory: the kernels of the receiver read messages in place.

Channels, numbers and words are those of :mod:`hpccoll.transport.shm.endpoint`: a word announces a
message and its address. In addition, events order the access to its bytes. The host only queues
work on a stream. So the writer of a word first records an event, and after reading the word the
receiver makes its stream wait for that event. Each slot of a channel has two events:

    READY   recorded by the sender after the work that computes the message, before its word
    READ    recorded by the receiver after the work that reads it, before ``taken``

An event is recorded again only after its word was acknowledged, so a wait for it always refers to
the announced message. No host waits for a device, and no device for an event that may never be
recorded. Some ranks of a call may use host memory: each message announces its location.

:class:`DeviceQueue` wraps all use of CUDA; :mod:`hpccoll.cuda.ipc` implements it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy

from hpccoll.transport import NOTHING, Action, Batch, MessageSpec
from hpccoll.transport.call_hashes import split
from hpccoll.transport.shm.channels import (
    CHANNELS,
    ELSEWHERE,
    OFFSET_BITS,
    PLACES,
    SIZE_BITS,
    Channel,
)
from hpccoll.transport.shm.endpoint import (
    ASIDE,
    BY_MPI,
    HERE,
    Receive,
    RendezvousBatch,
    Send,
    SharedEndpoint,
)
from hpccoll.transport.shm.endpoint import actions_on as host_actions

#: Kinds of events.
READY, READ = 0, 1


class DeviceQueue(Protocol):
    """Queue of the device work of one call.

    Attributes:
        copyto: queues a copy on the current stream, inside ``run``.
    """

    copyto: Callable[[Any, Any], None]

    def run(self, actions: Sequence[Action]) -> None:
        """Queue local steps, fused into fewer launches if possible."""

    def signal(self, kind: int, peer: int, tag: int, place: int) -> None:
        """Record this rank's event for a rank of the node, after all queued work."""

    def follow(self, kind: int, peer: int, tag: int, place: int) -> None:
        """Make work that is queued later wait for that rank's event."""

    def load(self, array: Any, host: numpy.ndarray) -> None:
        """Copy host memory to device memory; the host memory may change after the return."""


class DeviceEndpoint:
    """Endpoint of one rank for a call with all messages in registered device memory.

    Args:
        inner: the channels; all ranks are on one node.
        queue: the queue of the call's work.
    """

    offers = NOTHING

    def __init__(self, inner: SharedEndpoint, queue: DeviceQueue):
        self.inner, self.queue = inner, queue
        self.node, self.remote = inner.node, inner.remote
        self.rank, self.size = inner.rank, inner.size

    @property
    def on_alarm(self) -> Callable[[], None] | None:
        """Callback that raises an error if a rank has failed; None without a guard."""
        return self.inner.on_alarm

    def direct(self, peers: Sequence[int], tag: int) -> bool:
        """Return True: the kernels of this rank use messages in place."""
        return split(tag)[0] < CHANNELS

    def batch(self, postings: Sequence[MessageSpec], tag: int, repeated: bool) -> Batch:
        """Prepare messages; see :class:`hpccoll.transport.Endpoint`."""
        return DeviceBatch(self, postings, tag)


class DeviceBatch(RendezvousBatch):
    """Messages of a round; one launch uses all that one kernel can combine."""

    def __init__(self, endpoint: DeviceEndpoint, postings: Sequence[MessageSpec], tag: int):
        self.queue = endpoint.queue
        node, (tag, call_hash) = endpoint.node, split(tag)
        self.sends = [DeviceSend(endpoint, p, node.send_channel(p.peer, tag), call_hash)
                      for p in postings
                      if p.sends]
        self.receives = [DeviceReceive(endpoint, p, node.recv_channel(p.peer, tag), call_hash)
                         for p in postings if not p.sends]

    def test(self, tries: int = 1) -> bool:
        waiting = self.open_receives
        if waiting and all([receive.is_readable() for receive in waiting]):
            self.use(waiting)
            self.open_receives = waiting = []
            self.idle = 0
        if self.open_sends:
            self.open_sends = [send for send in self.open_sends if not send.test()]
        if not waiting and not self.open_sends:
            return True
        self.idle += 1
        if self.idle > ASIDE:
            # A missing message may depend on a sender of this round: release the senders.
            for receive in waiting:
                if receive.is_readable():
                    receive.put_aside()
        return False

    def use(self, receives: Sequence[Any]) -> None:
        """Queue the steps that use all messages, in order; then release the senders."""
        self.queue.run([action for receive in receives for action in receive.use_steps()])
        for receive in receives:
            receive.leave()


class DeviceSend(Send):
    """Message in registered device memory."""

    def __init__(self, endpoint: DeviceEndpoint, posting: MessageSpec, channel: Channel,
                 call_hash: int):
        super().__init__(endpoint.inner, posting, channel, call_hash)
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
        self.queue.signal(READY, self.index, channel.tag, place)
        line[PLACES + place], line[2 * PLACES + place] = self.where, self.nbytes
        line[3 * PLACES + place] = self.call_hash
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
    """Message for a rank with device memory, from device or host memory."""

    def __init__(self, endpoint: DeviceEndpoint, posting: MessageSpec, channel: Channel,
                 call_hash: int):
        super().__init__(endpoint.inner, posting, channel, call_hash)
        self.queue = endpoint.queue
        self.index = endpoint.node.local[posting.peer]
        self.host: numpy.ndarray | None = None

    def recv_buffer(self) -> numpy.ndarray:
        """Return host memory: the MPI library may not support device memory."""
        self.host = numpy.empty(self.array.shape, self.array.dtype)
        return self.host

    def fetch(self) -> int:
        """Return the location of the message for kernels; copy one in host memory to the device."""
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
            host = self.recv_buffer()
            self.endpoint.node.read_private(self.posting.peer, self.where, host)
        self.queue.load(self.array, host)
        return HERE

    @property
    def on_device(self) -> bool:
        """True if the message is in a peer's device memory."""
        return not self.in_cell and self.endpoint.node.on_device(self.where)

    def use_steps(self) -> list[Action]:
        """Return the steps that use the message."""
        return self.actions_at(HERE if self.aside else self.fetch())

    def actions_at(self, key: int) -> list[Action]:
        """Return the steps of a message's posting at its location."""
        if self.posting.uses:
            return host_actions(self.posting, self.message(key))
        return [] if key == HERE else [(self.queue.copyto, (self.array, self.message(key)))]

    def put_aside(self) -> None:
        """Copy the message into its landing memory and release the sender."""
        if not self.aside:
            key = self.fetch()
            if key != HERE:
                self.queue.run([(self.queue.copyto, (self.array, self.message(key)))])
            self.leave()
            self.aside = True

    def leave(self) -> None:
        """Release the sender's memory after the queued work has read it."""
        if self.aside:
            return
        if self.on_device:
            # Before the check for failures: a failed rank makes its stream wait for this event.
            self.queue.signal(READ, self.index, self.channel.tag, self.place)
        self.check_valid()
        self.take()
