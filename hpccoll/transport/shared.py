"""Shared: messages between ranks of one node, through memory both can reach.

Every ordered pair of ranks has a channel (:mod:`hpccoll.transport.node`). A message lies

* in a slot of its channel: copied there by the sender, which goes on at once;
* in registered memory (``comm.empty``), read in place by the receiver;
* in the sender's own memory, read by ``process_vm_readv`` (one copy);
* in an MPI message, where none of the others is possible.

Small messages always use slots. For larger ones it depends on where two ranks run: writing lines
that another core has in its cache goes at 25 GB/s when they share a cache and at 2 GB/s when they
do not. So a sender times its copies, and stays with slots while they are fast.

The receiver reads, reduces straight from where the message lies when the posting says how
(``uses``), and then marks the message as taken. A sender whose memory is read may touch it again
when the message was taken, exactly as with a synchronous send.

Data is written before its word and read before ``taken`` is; how that order is kept is decision
0006.
"""

from __future__ import annotations

from time import perf_counter
from typing import Any, Sequence

import numpy

from hpccoll.errors import MessageSizeError
from hpccoll.schedule import SEND
from hpccoll.transport import Posting, copying
from hpccoll.transport.node import (
    CHANNELS,
    ELSEWHERE,
    OFFSET_BITS,
    PLACES,
    SIZE_BITS,
    Channel,
    Node,
)

#: What ``where`` says of an MPI message; other values are addresses, or places in regions.
BY_MPI = 0
#: Tests without progress after which a message that cannot be used yet is moved out of the way.
ASIDE = 64
#: Registered messages of at most so many bytes go through slots all the same: cheaper to copy.
TINY = 64 << 10
#: Seconds per byte from which on slots do not pay, and after how many messages that is tried anew.
SLOW, PROBE = 2.5e-10, 64
#: Where a message lies that has arrived in its landing space; others are slots, or in regions.
HERE = -1
ALL, LAST = slice(None), PLACES - 1


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
        small = all(isinstance(p.array, numpy.ndarray) and p.array.nbytes <= self.node.sure_bytes
                    and (p.kind != SEND or self.takes_slot(p, tag)) for p in near)
        batch = (SlotBatch if small else SharedBatch)(self, near, tag)
        if len(near) == len(postings):
            return batch
        far = [p for p in postings if p.peer not in self.node.local]
        return BothBatch(batch, self.remote.batch(far, tag, repeated))

    def takes_slot(self, posting: Posting, tag: int) -> bool:
        """Tell whether a message to be sent can go through a slot, and had better."""
        array, node = posting.array, self.node
        return (array.nbytes <= node.slot_bytes and bool(node.outgoing(posting.peer, tag).slots)
                and (array.nbytes <= TINY or node.locate(array) is None))


class BothBatch:
    """Messages inside the node and across nodes that complete together."""

    def __init__(self, near: SlotBatch | SharedBatch, far: Any):
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


class SlotBatch:
    """Small messages: nothing but two copies and two counters each.

    A sender waits for no receiver here but for a slot, and a receiver frees its slots in the
    order of its own rounds, so taking the messages strictly in order cannot deadlock. A sender
    may choose another place than the slot, though; then the rules of ``SharedBatch`` hold.
    """

    def __init__(self, endpoint: SharedEndpoint, postings: Sequence[Posting], tag: int):
        node = endpoint.node
        self.sends, self.receives = [], []
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
                self.receives.append((channel, nbytes, channel.line, channel.taken,
                                      [_bound(posting, slot) for slot in slots],
                                      _Receive(endpoint, posting, channel)))
        self.fence = node.fence
        self.unsent: list[tuple] = []
        #: Number of every message, its place, and the word that announces it in its slot.
        self.expected = [(0, 0, 0)] * len(self.receives)
        self.next = self.count = len(self.receives)
        self.idle = 0

    # Attributes cost as much as the copies here, hence the local names.
    def start(self) -> None:
        for send in self.sends:
            channel = send[0]
            channel.sent = number = channel.sent + 1
            self.send(send, number)
        index = 0
        for receive in self.receives:
            channel = receive[0]
            channel.received = number = channel.received + 1
            self.expected[index] = number, number & LAST, number << SIZE_BITS | receive[1]
            index += 1
        self.next = self.idle = 0

    def send(self, send: tuple, number: int) -> None:
        _, line, taken, nbytes, slots, message = send
        place = number & LAST
        if taken[place] < number - PLACES:
            self.unsent.append((send, number))
            return
        slots[place][ALL] = message
        if self.fence is not None:
            self.fence()
        line[place] = number << SIZE_BITS | nbytes

    def test(self) -> bool:
        if self.unsent:
            unsent, self.unsent = self.unsent, []
            for send, number in unsent:
                self.send(send, number)
        index = self.next
        while index < self.count:
            number, place, expected = self.expected[index]
            _, _, line, taken, uses, other = self.receives[index]
            word = line[place]
            if word == expected:
                if self.fence is not None:
                    self.fence()
                for function, operands in uses[place]:
                    function(*operands)
                if self.fence is not None:
                    self.fence()
                taken[place] = number
            elif ((word >> SIZE_BITS == number or other.number == number)
                  and self.lies_elsewhere(index) and other.arrived()):
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
        *_, line, _, _, other = self.receives[index]
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


class SharedBatch:
    """Messages of any size between this rank and others of its node."""

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

    def __init__(self, endpoint: SharedEndpoint, posting: Posting, channel: Channel):
        self.endpoint, self.channel = endpoint, channel
        self.array, self.peer, self.nbytes = posting.array, posting.peer, posting.array.nbytes
        self.copies, self.where, self.sure = None, BY_MPI, False
        self.request = None
        node = endpoint.node
        if isinstance(self.array, numpy.ndarray):
            self.where = node.locate(self.array) or (
                self.array.__array_interface__["data"][0] if node.readv else BY_MPI)
            if endpoint.takes_slot(posting, channel.tag):
                self.copies = [copying(slot[:self.nbytes], self.array) for slot in channel.slots]
                self.sure = self.nbytes <= node.sure_bytes or self.where == BY_MPI

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
        if self.copies and (self.sure or channel.pace < SLOW or number % PROBE == 0):
            self.copy_in()
            size, self.done = self.nbytes, True
        else:
            if self.where == BY_MPI:
                # MPI messages must leave in the order of their numbers; others may still wait.
                if any(line[earlier & LAST] >> SIZE_BITS < earlier
                       for earlier in range(number - LAST, number)):
                    return
                self.request = self.endpoint.remote.batch(
                    [Posting(SEND, self.peer, self.array)], channel.tag, False)
                self.request.start()
            line[PLACES + place], line[2 * PLACES + place] = self.where, self.nbytes
        if channel.fence is not None:
            channel.fence()
        line[place] = number << SIZE_BITS | size
        self.posted = True

    def copy_in(self) -> None:
        """Copy into the slot, and note how long that takes: at once if short, slowly if long."""
        channel = self.channel
        copy, operands = self.copies[self.place]
        if self.sure:
            copy(*operands)
            return
        start = perf_counter()
        copy(*operands)
        pace = (perf_counter() - start) / self.nbytes
        channel.pace = min(pace, channel.pace + (pace - channel.pace) / 4)

    def test(self) -> bool:
        if not self.posted:
            self.post()
            return self.done
        if self.request is not None:
            if not self.request.test():
                return False
            self.request = None
        return self.channel.taken[self.place] >= self.number


class _Receive:
    """One message from a rank of the node."""

    def __init__(self, endpoint: SharedEndpoint, posting: Posting, channel: Channel):
        self.endpoint, self.posting, self.channel = endpoint, posting, channel
        self.array, self.nbytes = posting.array, posting.array.nbytes
        self.calls: dict[int, list[tuple]] = {}
        self.number = 0

    def start(self) -> None:
        channel = self.channel
        channel.received = channel.received + 1
        self.expect(channel.received)

    def expect(self, number: int) -> None:
        self.number, self.place = number, number & LAST
        self.aside, self.request = False, None

    def arrived(self) -> bool:
        """Tell whether the message can be read now."""
        if self.aside:
            return True  # its descriptor may be another message's by now
        if self.request is not None:
            return self.request.test()
        channel, place = self.channel, self.place
        line = channel.line
        word = line[place]
        if word >> SIZE_BITS != self.number:
            return False
        if channel.fence is not None:
            channel.fence()
        nbytes = word & ELSEWHERE
        self.in_slot = nbytes != ELSEWHERE
        if not self.in_slot:
            self.where, nbytes = line[PLACES + place], line[2 * PLACES + place]
        if nbytes != self.nbytes:
            raise MessageSizeError(
                f"rank {self.posting.peer} sent {nbytes} bytes where rank {self.endpoint.rank} "
                f"expected {self.nbytes}; ranks disagree on counts")
        if not self.in_slot and self.where == BY_MPI:
            # MPI messages are received in the order of their numbers.
            if any(channel.taken[earlier & LAST] < earlier
                   for earlier in range(self.number - LAST, self.number)):
                return False
            self.request = self.endpoint.remote.batch(
                [Posting("recv", self.posting.peer, self.array)], channel.tag, False)
            self.request.start()
            return self.request.test()
        return True

    def use(self) -> None:
        """Reduce or copy the message from where it lies."""
        if self.aside:
            self.apply(HERE)
            return
        self.apply(self.fetch())
        self.take()

    def put_aside(self) -> None:
        """Move the message into its own landing space, so that the sender can go on."""
        if not self.aside:
            key = self.fetch()
            if key != HERE:
                _store(self.array, self.message(key))
            self.take()
            self.aside = True

    def fetch(self) -> int:
        """Where the message can be used; one in private memory is copied here first."""
        if self.in_slot:
            return self.place
        if self.where >> OFFSET_BITS:
            return self.where
        if self.where != BY_MPI:
            self.endpoint.node.read_private(self.posting.peer, self.where, self.array)
        return HERE

    def message(self, key: int) -> Any:
        """The message as an array, where it lies."""
        if key == HERE:
            return self.array
        memory = (self.channel.slots[key][:self.nbytes] if key < PLACES
                  else self.endpoint.node.region(self.posting.peer, key, self.nbytes))
        return memory.view(self.array.dtype)

    def apply(self, key: int) -> None:
        calls = self.calls.get(key)
        if calls is None:
            calls = self.calls[key] = (_bound(self.posting, self.message(key))
                                       if self.posting.uses or key != HERE else [])
        for function, operands in calls:
            function(*operands)

    def take(self) -> None:
        if self.channel.fence is not None:
            self.channel.fence()
        self.channel.taken[self.place] = self.number


def _bound(posting: Posting, message: Any) -> list[tuple]:
    """What is to be done with a message, as calls on it."""
    if not posting.uses:
        on_host = isinstance(posting.array, numpy.ndarray)
        return [(copying if on_host else _storing)(posting.array, message)]
    calls = []
    for function, operands, place, start, stop in posting.uses:
        operands = list(operands)
        operands[place] = message[start:stop]
        calls.append(copying(*operands) if function is numpy.copyto
                     else (function, tuple(operands)))
    return calls


def _store(array: Any, source: numpy.ndarray) -> None:
    if isinstance(array, numpy.ndarray):
        array[...] = source
    else:
        array.set(source)


def _storing(array: Any, source: numpy.ndarray) -> tuple:
    return _store, (array, source)
