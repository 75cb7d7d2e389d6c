"""Messages with checksums, over any other transport.

Behind every message goes another one, its *companion*, to the same rank with the same tag: the
message's number among those between the two, and its checksum. So a message that was changed is
found by its checksum, and one that was lost, doubled or overtaken by its number.

Messages are checked where they have been received: they are never used in place, as shared memory
would allow. What the receiver reads of its peer's memory is compared with what the peer had there
when it sent.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import numpy

from hpccoll.errors.checks import CorruptMessage
from hpccoll.transport import NOTHING, Batch, Endpoint, Posting
from hpccoll.transport.stamps import split


class CheckedEndpoint:
    """One rank's side of a transport, with checksums.

    Args:
        inner: the transport that carries messages and companions.
    """

    #: A checksum of several messages together would say nothing.
    offers = NOTHING

    def __init__(self, inner: Endpoint):
        self.inner, self.rank, self.size = inner, inner.rank, inner.size
        #: Messages so far, by direction, peer and tag.
        self.numbers: defaultdict[tuple[bool, int, int], int] = defaultdict(int)

    @property
    def heard(self) -> Callable[[], None] | None:
        """Raises where a rank has said that it has given up."""
        heard: Callable[[], None] | None = getattr(self.inner, "heard", None)
        return heard

    @heard.setter
    def heard(self, heard: Callable[[], None] | None) -> None:
        self.inner.heard = heard  # type: ignore[attr-defined]

    def direct(self, peers: Sequence[int], tag: int) -> bool:
        """Messages are checked before they are used, so they are received first."""
        return False

    def batch(self, postings: Sequence[Posting], tag: int, repeated: bool) -> Batch:
        """Prepare messages; see :class:`hpccoll.transport.Endpoint`."""
        return CheckedBatch(self, postings, tag, repeated)


class CheckedBatch:
    """Messages and their companions.

    Attributes:
        round: of the collective that they belong to, if anybody has told.
    """

    def __init__(self, endpoint: CheckedEndpoint, postings: Sequence[Posting], tag: int,
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
                         Posting(posting.sends, posting.peer, companion))], tag, repeated)

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

    def _check(self, posting: Posting, companion: numpy.ndarray, number: int) -> None:
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
    """The CRC-32 of an array's bytes: every change of up to 32 neighbouring bits changes it."""
    host = array if isinstance(array, numpy.ndarray) else array.get()
    return zlib.crc32(host.view("u1").data)
