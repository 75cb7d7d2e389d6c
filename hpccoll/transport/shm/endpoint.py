"""Messages between ranks of one node, through memory that both can reach.

Every ordered pair of ranks has a channel (:mod:`hpccoll.transport.shm.channels`). A message is

* in a cell of its channel: the sender copies it there and continues (eager);
* in registered memory (``comm.empty``), read in place by the receiver (rendezvous);
* in the private memory of the sender, read by ``process_vm_readv``: one copy (rendezvous);
* in an MPI message, if no other way is possible.

Here messages that fit a cell use it. The executor in C measures which way is faster: writing lines
that another core has in its cache reaches 25 GB/s with a shared cache and 2 GB/s without.

The receiver reads or reduces the message in place (``uses``), and marks it as consumed. Then the
sender may reuse its memory, as with a synchronous send.

The sender writes data before the word; the receiver reads it before it writes ``taken``. Decision
0007 describes the memory order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy

from hpccoll.errors import ForeignMessage, MessageSizeError
from hpccoll.transport import NOTHING, Action, Batch, Endpoint, MessageSpec, copy_action
from hpccoll.transport.call_hashes import MIX, agree, split
from hpccoll.transport.shm.channels import (
    ELSEWHERE,
    LAST,
    OFFSET_BITS,
    PLACES,
    SIZE_BITS,
    Channel,
    SharedNode,
)

#: Up to this size, copying registered memory into a cell is cheaper than reading it in place.
TINY = 64 << 10
#: ``where`` of an MPI message; other values are addresses, or places in regions.
BY_MPI = 0
#: Tests without progress after which later messages are copied aside.
ASIDE = 64
#: Location of a message that has been received; other values are cells or places in regions.
HERE = -1


class SharedEndpoint:
    """One rank's side of the channels to the ranks of its node.

    Args:
        node: the ranks that share memory.
        remote: endpoint for messages to other nodes, and for tags without channels.
        on_alarm: raises an error if another rank has failed.
    """

    #: A channel has one reader.
    offers = NOTHING

    def __init__(self, node: SharedNode, remote: Endpoint,
                 on_alarm: Callable[[], None] | None = None):
        self.node, self.remote, self.on_alarm = node, remote, on_alarm
        self.rank, self.size = remote.rank, remote.size

    def direct(self, peers: Sequence[int], tag: int) -> bool:
        """Return True if messages from these ranks are read in place."""
        return split(tag)[0] in self.node.tags and all(peer in self.node.local for peer in peers)

    def batch(self, postings: Sequence[MessageSpec], tag: int, repeated: bool) -> Batch:
        """Prepare messages; see :class:`hpccoll.transport.Endpoint`."""
        local = [p for p in postings if p.peer in self.node.local]
        if not local or split(tag)[0] not in self.node.tags:
            return self.remote.batch(postings, tag, repeated)
        batch = RendezvousBatch(self, local, tag)
        if len(local) == len(postings):
            return batch
        remote = [p for p in postings if p.peer not in self.node.local]
        return BothBatch(batch, self.remote.batch(remote, tag, repeated))

    def uses_cell(self, posting: MessageSpec, tag: int) -> bool:
        """Return True if a message may use a cell: it fits, and reading is not cheaper."""
        array, node = posting.array, self.node
        return ((array.nbytes <= TINY or node.locate(array) is None)
                and bool(node.send_channel(posting.peer, tag).cells_for(array.nbytes)))


class BothBatch:
    """Messages inside the node and across nodes that complete together."""

    def __init__(self, local: Batch, remote: Batch):
        self.local, self.remote = local, remote

    def start(self) -> None:
        self.remote.start()
        self.local.start()
        self.arrived = False

    def test(self, tries: int = 1) -> bool:
        self.arrived = self.arrived or self.remote.test()
        return self.local.test() and self.arrived

    def free(self) -> None:
        self.remote.free()
        self.local.free()


class RendezvousBatch:
    """Messages of any size between this rank and others of its node."""

    def __init__(self, endpoint: SharedEndpoint, postings: Sequence[MessageSpec], tag: int):
        node, (tag, call_hash) = endpoint.node, split(tag)
        self.sends = [Send(endpoint, p, node.send_channel(p.peer, tag), call_hash) for p in postings
                      if p.sends]
        self.receives = [Receive(endpoint, p, node.recv_channel(p.peer, tag), call_hash)
                         for p in postings
                         if not p.sends]

    def start(self) -> None:
        for send in self.sends:
            send.start()
        for receive in self.receives:
            receive.start()
        self.open_sends = [s for s in self.sends if not s.done]
        self.open_receives = list(self.receives)
        self.idle = 0

    def test(self, tries: int = 1) -> bool:
        waiting = self.open_receives
        # Reductions run in the order of the schedule, so messages are used from the front.
        while waiting and waiting[0].is_readable():
            waiting.pop(0).use()
            self.idle = 0
        if self.open_sends:
            self.open_sends = [s for s in self.open_sends if not s.test()]
        if not waiting and not self.open_sends:
            return True
        self.idle += 1
        if self.idle > ASIDE:
            # The first message may depend on the sender of a later one: let that sender continue.
            for receive in waiting[1:]:
                if receive.is_readable():
                    receive.put_aside()
        return False

    def free(self) -> None:
        self.sends, self.receives = [], []


class Send:
    """One message to a rank of the node."""

    def __init__(self, endpoint: SharedEndpoint, posting: MessageSpec, channel: Channel,
                 call_hash: int = 0):
        self.endpoint, self.channel, self.call_hash = endpoint, channel, call_hash
        self.array, self.peer, self.nbytes = posting.array, posting.peer, posting.array.nbytes
        #: Copies into the cells, if the message uses one.
        self.copies: list[Action] = []
        self.where = BY_MPI
        self.request: Batch | None = None
        node = endpoint.node
        if isinstance(self.array, numpy.ndarray):
            self.where = node.locate(self.array) or (
                self.array.__array_interface__["data"][0] if node.readv else BY_MPI)
            if endpoint.uses_cell(posting, channel.tag):
                self.copies = [copy_action(cell[:self.nbytes], self.array)
                               for cell in channel.cells_for(self.nbytes)]

    def start(self) -> None:
        channel = self.channel
        channel.sent = self.number = channel.sent + 1
        self.place = self.number & LAST
        self.posted = self.done = False
        self.post()

    def post(self) -> None:
        channel, number, place = self.channel, self.number, self.place
        line = channel.line
        if channel.taken[place] < number - PLACES:
            return
        size = ELSEWHERE
        if self.copies:
            copy, operands = self.copies[place]
            copy(*operands)
            size, self.done = self.nbytes ^ self.call_hash & MIX, True
        else:
            if self.where == BY_MPI:
                # MPI messages must leave in the order of their numbers; others may still wait.
                if any(line[earlier & LAST] >> SIZE_BITS < earlier
                       for earlier in range(number - LAST, number)):
                    return
                self.request = self.endpoint.remote.batch(
                    [MessageSpec(True, self.peer, self.array)], channel.tag, False)
                self.request.start()
            line[PLACES + place], line[2 * PLACES + place] = self.where, self.nbytes
            line[3 * PLACES + place] = self.call_hash
        if channel.fence is not None:
            channel.fence()
        line[place] = number << SIZE_BITS | size
        self.posted = True

    def test(self) -> bool:
        if not self.posted:
            self.post()
            return self.done
        if self.request is not None:
            if not self.request.test():
                return False
            self.request = None
        return self.channel.taken[self.place] >= self.number


class Receive:
    """One message from a rank of the node."""

    def __init__(self, endpoint: SharedEndpoint, posting: MessageSpec, channel: Channel,
                 call_hash: int = 0):
        self.endpoint, self.posting, self.channel = endpoint, posting, channel
        self.call_hash = call_hash
        self.array, self.nbytes = posting.array, posting.array.nbytes
        #: Size and call hash in the word of a message in a cell.
        self.announced = self.nbytes ^ call_hash & MIX
        #: Actions on the message, by location.
        self.actions: dict[int, list[Action]] = {}
        self.number, self.aside = 0, False

    def start(self) -> None:
        channel = self.channel
        channel.received = channel.received + 1
        self.expect(channel.received)

    def expect(self, number: int) -> None:
        """Set the number of the expected message."""
        self.number, self.place = number, number & LAST
        self.aside = False
        self.request: Batch | None = None

    def is_readable(self) -> bool:
        """Return True if the message can be read now."""
        if self.aside:
            return True  # its place in the line may describe a later message
        if self.request is not None:
            return self.request.test()
        channel, place = self.channel, self.place
        line = channel.line
        word = line[place]
        if word >> SIZE_BITS != self.number:
            return False
        if channel.fence is not None:
            channel.fence()
        announced = word & ELSEWHERE
        self.in_cell = announced != ELSEWHERE
        if self.in_cell:
            # If the sizes are equal, the call hashes differ; otherwise the sizes do.
            nbytes, call_hash = self.nbytes, self.call_hash ^ announced ^ self.announced
            if not agree(call_hash, self.call_hash):
                nbytes, call_hash = announced ^ self.call_hash & MIX, self.call_hash
        else:
            self.where, nbytes = line[PLACES + place], line[2 * PLACES + place]
            call_hash = line[3 * PLACES + place]
        if nbytes != self.nbytes or not agree(call_hash, self.call_hash):
            self.reject(nbytes)
        if not self.in_cell and self.where == BY_MPI:
            # MPI messages are received in the order of their numbers.
            if any(channel.taken[earlier & LAST] < earlier
                   for earlier in range(self.number - LAST, self.number)):
                return False
            self.request = self.endpoint.remote.batch(
                [MessageSpec(False, self.posting.peer, self.recv_buffer())], channel.tag, False)
            self.request.start()
            return self.request.test()
        return True

    def recv_buffer(self) -> Any:
        """Return the buffer for an MPI message."""
        return self.array

    def reject(self, nbytes: int) -> None:
        """Raise for a message of another call or size; a cell cannot distinguish them."""
        peer, rank = self.posting.peer, self.endpoint.rank
        if self.call_hash:
            raise ForeignMessage(peer, rank)
        raise MessageSizeError(f"message size differs: rank {peer} sent {nbytes} bytes, rank "
                               f"{rank} expected {self.nbytes}; pass the same counts on all ranks")

    def use(self) -> None:
        """Reduce or copy the message from its location."""
        if self.aside:
            self.apply(HERE)
            return
        self.apply(self.fetch())
        self.check_valid()
        self.take()

    def put_aside(self) -> None:
        """Copy the message into the receive buffer, so that the sender can continue."""
        if not self.aside:
            key = self.fetch()
            if key != HERE:
                _store(self.array, self.message(key))
            self.check_valid()
            self.take()
            self.aside = True

    def check_valid(self) -> None:
        """Raise if the sender has failed, so that its memory may have changed during the read.

        A failed sender publishes the failure before it returns the memory to its caller.
        """
        if not self.in_cell and self.endpoint.on_alarm is not None:
            self.endpoint.on_alarm()

    def fetch(self) -> int:
        """Return the location of the message; copy it from private memory first."""
        if self.in_cell:
            return self.place
        node, peer = self.endpoint.node, self.posting.peer
        if node.on_device(self.where):
            self.read(lambda into: node.copy_out(peer, self.channel.tag, self.place, self.where,
                                                 into))
        elif self.where >> OFFSET_BITS:
            return self.where
        elif self.where != BY_MPI:
            self.read(lambda into: node.read_private(peer, self.where, into))
        return HERE

    def read(self, copy: Callable[[numpy.ndarray], None]) -> None:
        """Copy the message from the memory of its sender through host memory."""
        on_host = isinstance(self.array, numpy.ndarray)
        here = self.array if on_host else numpy.empty(self.array.shape, self.array.dtype)
        copy(here)
        if not on_host:
            _store(self.array, here)

    def message(self, key: int) -> Any:
        """Return the message as an array at its location."""
        if key == HERE:
            return self.array
        memory = (self.channel.cells_for(self.nbytes)[key][:self.nbytes] if key < PLACES
                  else self.endpoint.node.region(self.posting.peer, key, self.nbytes))
        return memory.view(self.array.dtype)

    def apply(self, key: int) -> None:
        """Run the actions of the posting on the message."""
        actions = self.actions.get(key)
        if actions is None:
            actions = self.actions[key] = (actions_on(self.posting, self.message(key))
                                           if self.posting.uses or key != HERE else [])
        for function, operands in actions:
            function(*operands)

    def take(self) -> None:
        """Mark the message as consumed: the sender may reuse its memory."""
        if self.channel.fence is not None:
            self.channel.fence()
        self.channel.taken[self.place] = self.number


def actions_on(posting: MessageSpec, message: Any) -> list[Action]:
    """Return the actions of a posting on its message."""
    if not posting.uses:
        on_host = isinstance(posting.array, numpy.ndarray)
        return [(copy_action if on_host else _store_action)(posting.array, message)]
    actions = []
    for function, given, place, start, stop in posting.uses:
        operands = list(given)
        operands[place] = message[start:stop]
        actions.append(copy_action(*operands) if function is numpy.copyto
                       else (function, tuple(operands)))
    return actions


def _store(array: Any, source: numpy.ndarray) -> None:
    if isinstance(array, numpy.ndarray):
        array[...] = source
    else:
        array.set(source)


def _store_action(array: Any, source: numpy.ndarray) -> Action:
    return _store, (array, source)
