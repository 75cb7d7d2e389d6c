"""Messages of any size between ranks of a node: slots, reading in place, and messages of MPI.

Each message goes the way that its sender finds best at that moment and says so in the channel's
line; the receiver follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any

import numpy

from hpccoll.errors import MessageSizeError
from hpccoll.ir.schedule import SEND
from hpccoll.transport import Posting, copying
from hpccoll.transport.shm.channels import ELSEWHERE, LAST, OFFSET_BITS, PLACES, SIZE_BITS, Channel

#: What ``where`` says of an MPI message; other values are addresses, or places in regions.
BY_MPI = 0
#: Tests without progress after which a message that cannot be used yet is moved out of the way.
ASIDE = 64
#: Seconds per byte from which on slots do not pay, and after how many messages that is tried anew.
SLOW, PROBE = 2.5e-10, 64
#: Where a message lies that has arrived in its landing space; others are slots, or in regions.
HERE = -1


class SharedBatch:
    """Messages of any size between this rank and others of its node."""

    def __init__(self, endpoint: Any, postings: Sequence[Posting], tag: int):
        node = endpoint.node
        self.sends = [Send(endpoint, p, node.outgoing(p.peer, tag)) for p in postings
                      if p.kind == SEND]
        self.receives = [Receive(endpoint, p, node.incoming(p.peer, tag)) for p in postings
                         if p.kind != SEND]

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


class Send:
    """One message to a rank of the node."""

    def __init__(self, endpoint: Any, posting: Posting, channel: Channel):
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
        if self.copies and (self.sure or channel.limits < SLOW or number % PROBE == 0):
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
        limits = (perf_counter() - start) / self.nbytes
        channel.limits = min(limits, channel.limits + (limits - channel.limits) / 4)

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

    def __init__(self, endpoint: Any, posting: Posting, channel: Channel):
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
            self.read()
        return HERE

    def read(self) -> None:
        """Copy the message from its sender's own memory, which only the host can read."""
        on_host = isinstance(self.array, numpy.ndarray)
        here = self.array if on_host else numpy.empty(self.array.shape, self.array.dtype)
        self.endpoint.node.read_private(self.posting.peer, self.where, here)
        if not on_host:
            _store(self.array, here)

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
            calls = self.calls[key] = (bound(self.posting, self.message(key))
                                       if self.posting.uses or key != HERE else [])
        for function, operands in calls:
            function(*operands)

    def take(self) -> None:
        if self.channel.fence is not None:
            self.channel.fence()
        self.channel.taken[self.place] = self.number


def bound(posting: Posting, message: Any) -> list[tuple]:
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
