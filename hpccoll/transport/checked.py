"""Messages with checksums, over any other transport.

A *companion* follows every message to the same rank with the same tag: the number of the message
between the two ranks, and its checksum. The checksum detects a changed message; the number detects
one that was lost, duplicated or reordered.

Messages are received before they are checked, and never used in place. Data that the receiver
reads from the memory of its peer is compared with the data of the peer at the time of the send.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import numpy

from hpccoll.errors.checks import CorruptMessage
from hpccoll.transport import NOTHING, Batch, Endpoint, MessageSpec
from hpccoll.transport.call_hashes import split


class CheckedEndpoint:
    """One rank's side of a transport, with checksums.

    Args:
        inner: the transport that carries messages and companions.
    """

    #: A checksum of several reduced messages would have no meaning.
    offers = NOTHING

    def __init__(self, inner: Endpoint):
        self.inner, self.rank, self.size = inner, inner.rank, inner.size
        #: Messages so far, by direction, peer and tag.
        self.numbers: defaultdict[tuple[bool, int, int], int] = defaultdict(int)

    @property
    def on_alarm(self) -> Callable[[], None] | None:
        """Callback that raises if another rank has failed."""
        heard: Callable[[], None] | None = getattr(self.inner, "on_alarm", None)
        return heard

    def direct(self, peers: Sequence[int], tag: int) -> bool:
        """Return False: messages are received and checked before their use."""
        return False

    def batch(self, postings: Sequence[MessageSpec], tag: int, repeated: bool) -> Batch:
        """Prepare messages; see :class:`hpccoll.transport.Endpoint`."""
        return CheckedBatch(self, postings, tag, repeated)


class CheckedBatch:
    """Messages and their companions.

    Attributes:
        round: of their collective, if known.
    """

    def __init__(self, endpoint: CheckedEndpoint, postings: Sequence[MessageSpec], tag: int,
                 repeated: bool):
        self.endpoint, self.postings = endpoint, postings
        self.companions = [numpy.zeros(2, "i8") for _ in postings]
        self.keys = [(posting.sends, posting.peer, split(tag)[0]) for posting in postings]
        self.numbers = [0] * len(postings)
        self.round: int | None = None
        self.checked = True
        self.inner = endpoint.inner.batch(
            [one for posting, companion in zip(postings, self.companions)
             for one in (posting._replace(uses=()),
                         MessageSpec(posting.sends, posting.peer, companion))], tag, repeated)

    def start(self) -> None:
        counted = self.endpoint.numbers
        for index, (key, posting) in enumerate(zip(self.keys, self.postings)):
            counted[key] = self.numbers[index] = counted[key] + 1
            if posting.sends:
                self.companions[index][:] = counted[key], checksum(posting.array)
        self.checked = False
        self.inner.start()

    def test(self, tries: int = 1) -> bool:
        if not self.inner.test(tries):
            return False
        if not self.checked:
            self.checked = True
            for posting, companion, number in zip(self.postings, self.companions, self.numbers):
                if not posting.sends:
                    self._check(posting, companion, number)
        return True

    def _check(self, posting: MessageSpec, companion: numpy.ndarray, number: int) -> None:
        found, expected = companion.tolist()
        actual = checksum(posting.array)
        if (found, expected) == (number, actual):
            return
        if expected == actual:
            problem = (f"was lost: received message {found} instead" if found > number else
                       f"did not arrive: received message {found} again")
        else:
            problem = f"was corrupt: wrong checksum of its {posting.array.nbytes} bytes"
        raise CorruptMessage(problem, posting.peer, self.endpoint.rank, number, self.round)

    def free(self) -> None:
        self.inner.free()


def checksum(array: Any) -> int:
    """Compute the CRC-32 of an array; it detects every change of up to 32 adjacent bits."""
    host = array if isinstance(array, numpy.ndarray) else array.get()
    return zlib.crc32(host.view("u1").data)
