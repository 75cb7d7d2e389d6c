"""Log of a rank's calls in shared memory: the current call, the last ones, and the failure.

    line 0   alarm; length of the failure record; status request; call in which this rank failed
    line 1   number of the last blocking call; number of the pending native call; time of the last
             poll of a wait; 1 if the rank has left; number of the next call with a check behind it
    then     the last REMEMBERED calls, by their numbers, as events (``ring.py``): start and end;
             call hash; the hash of their form and the amount of data, if their call hash has no
             description
             status, in JSON
             failure record, in JSON
             descriptions of call hashes, in JSON

Ranks of a node read each other's logs in shared memory. The compiled executor also writes numbers
and call hashes. Other ranks write only the alarm and the status request.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy

from hpccoll.runtime.planning.description import Description
from hpccoll.transport.call_hashes import agree, hash_of_amount

#: Words of a log: the number plus one of the call in which a rank failed, 1 without a number; the
#: length of the failure record; the number of the last call; and the offset of the calls.
#: ``_call_log.h`` has all but the length.
ALARM, STORY, NUMBER, CALLS = 0, 1, 16, 32
#: Like the alarm, for the call in which this rank itself failed; 0 without a failure.
FAILED = 3
#: Time of an unanswered status request, in nanoseconds of the machine's clock, else 0; the number
#: of the pending native call, else 0, used by ``_call_log.c``; time of the last poll of a wait; the
#: length of the status; whether the rank has freed the communicator, or exited; and the number of
#: descriptions written.
ASKED, INSIDE, BEAT, DOING, LEFT, DESCRIBED = 2, 17, 18, 19, 20, 21
#: Number of the next blocking native call that is followed by a check; 0 for none.
CHECK = 22
FREED, ENDED = 1, 2
#: Calls in the ring; a power of two. The oldest is uncertain while a new one is written.
REMEMBERED = 64
LAST = REMEMBERED - 1
#: Suffixes of the descriptions of object calls; those that pickle after they are counted, and
#: nanoseconds that this may take.
OBJECTS, PICKLING = " of objects", 200_000_000
PICKLED_LATE = ("allgather of objects", "alltoall of objects")
#: Words of a call, an event: its start and end in nanoseconds of the machine's clock, its call
#: hash, the hash of its form and its amount of data. The end is 0 for a call that has not ended,
#: :data:`SOME_TIME` if Python did not read the clock. Machine code records the kernel's last tick,
#: which is at most some milliseconds old and much cheaper to read.
START, END, HASH, FORM, AMOUNT = 0, 1, 4, 5, 6
WORDS, SOME_TIME = 8, 1
#: Offsets of the texts in bytes, and the number and size of the descriptions.
DOING_START = (CALLS + WORDS * REMEMBERED) * 8
STORY_START, TEXTS_START, LOG_BYTES = 5 << 10, 34 << 8, 41 << 10
TEXT_BYTES = 256
MOST_TEXTS = (LOG_BYTES - TEXTS_START) // TEXT_BYTES
#: Bytes that are allocated at first: a few descriptions.
EARLY_BYTES = 10 << 10


def place_of(number: int) -> int:
    """Return the first word of a call."""
    return CALLS + WORDS * (number & LAST)


class LogRecord(NamedTuple):
    """Contents of a log.

    Attributes:
        number: sequence number of the rank's last blocking call.
        call_hashes: call hashes of its last calls, by number.
        descriptions: descriptions of its calls, by call hash.
        story: the failure record of that rank; ``None`` without a failure.
    """

    number: int
    call_hashes: Mapping[int, int]
    descriptions: Mapping[int, Description]
    report: Mapping[str, Any] | None

    def pack(self) -> bytes:
        """Return the record as bytes."""
        import json
        used = set(self.call_hashes.values())
        return json.dumps([self.number, [*self.call_hashes.items()],
                           [(call_hash, text) for call_hash, text in self.descriptions.items()
                            if call_hash in used], self.report]).encode()

    @classmethod
    def unpack(cls, data: bytes) -> LogRecord:
        """Return the record from bytes of :meth:`pack`."""
        import json
        number, call_hashes, descriptions, report = json.loads(data)
        return cls(number, dict(call_hashes),
                   {call_hash: Description(*fields) for call_hash, fields in descriptions}, report)


class LoggedCall(NamedTuple):
    """Entry of a log.

    Attributes:
        number, call_hash: of the call; calls that may differ between ranks have no call hash.
        start, end: nanoseconds of the machine's clock, to some milliseconds; the end is 0 before
            the call has ended, and :data:`SOME_TIME` if its time is unknown.
    """

    number: int
    call_hash: int
    start: int
    end: int


class Log:
    """Log in ``LOG_BYTES`` of memory, initially zero.

    Args:
        memory: the bytes.
        grow: allocates a range of bytes behind ``EARLY_BYTES`` and returns True on success;
            ``None`` if all bytes are allocated.
    """

    def __init__(self, memory: numpy.ndarray, grow: Callable[[int, int], bool] | None = None):
        self.memory, self.grow = memory.data, grow
        self.words = memory.data.cast("q")
        self.address: int = memory.__array_interface__["data"][0]
        self.texts = 0
        self.known: set[int] = set()

    def write_start(self, number: int, call_hash: int, start: int = 0) -> None:
        """Record the start of a call, now if no time is given; not that it is the last one."""
        words, place = self.words, place_of(number)
        words[place + HASH], words[place + START] = call_hash, start or time.monotonic_ns()
        words[place + END] = 0

    def write_end(self, number: int, end: int = SOME_TIME) -> None:
        """Record the end of a call."""
        self.words[place_of(number) + END] = end

    def end_of(self, number: int) -> int:
        """Return the end of a call in the ring; 0 before it, or if the call is not in the ring."""
        known = number <= self.words[NUMBER] < number + LAST
        return self.words[place_of(number) + END] if known else 0

    def describe(self, call_hash: int, description: Description) -> None:
        """Store the description of a call hash."""
        import json
        if call_hash in self.known:
            return
        start = TEXTS_START + self.texts % MOST_TEXTS * TEXT_BYTES
        self.texts += 1
        self.known.add(call_hash)
        if (self.grow is not None and start + TEXT_BYTES > EARLY_BYTES
                and not self.grow(start, TEXT_BYTES)):
            return  # the other ranks cannot read the description of this call_hash
        text = json.dumps(description).encode()
        if len(text) > TEXT_BYTES - 8:
            text = json.dumps(description._replace(algorithm="", layout="")).encode()
        self.words[start // 8] = 0
        self.memory[start + 8:start + TEXT_BYTES] = text[:TEXT_BYTES - 8].ljust(TEXT_BYTES - 8,
                                                                               b"\0")
        self.words[start // 8] = call_hash
        self.words[DESCRIBED] = max(self.words[DESCRIBED], start // TEXT_BYTES + 1
                                    - TEXTS_START // TEXT_BYTES)

    def write_report(self, report: Mapping[str, Any]) -> None:
        """Store the failure record of this rank."""
        import json
        text = json.dumps(report).encode()
        if len(text) > TEXTS_START - STORY_START:
            text = json.dumps({**report, "lines": (),
                               "reason": str(report["reason"])[:500]}).encode()
        text = text[:TEXTS_START - STORY_START]
        self.memory[STORY_START:STORY_START + len(text)] = text
        self.words[STORY] = len(text)

    def report(self) -> Mapping[str, Any] | None:
        """Return the failure record of this rank, or None."""
        import json
        length = self.words[STORY]
        if not length:
            return None
        report: Mapping[str, Any] = json.loads(bytes(
            self.memory[STORY_START:STORY_START + length]))
        return report

    def publish_status(self, doing: Mapping[str, Any], looks: bool = True) -> None:
        """Store the status of this rank and, if ``looks``, the time of this poll."""
        import json
        text = json.dumps(doing).encode()
        if len(text) <= STORY_START - DOING_START:
            self.words[DOING] = 0
            self.memory[DOING_START:DOING_START + len(text)] = text
            self.words[DOING] = len(text)
        if looks:
            self.look()

    def ask(self) -> None:
        """Request the status of this rank; an unanswered request keeps its time."""
        if not self.words[ASKED]:
            self.words[ASKED] = time.monotonic_ns()

    def look(self) -> None:
        """Store the time of this poll of a wait."""
        self.words[BEAT] = time.monotonic_ns()

    def status(self) -> Mapping[str, Any]:
        """Return the last status of this rank; empty while the rank writes it."""
        import json
        try:
            said = json.loads(bytes(self.memory[DOING_START:DOING_START + self.words[DOING]]))
        except ValueError:
            return {}
        return said if isinstance(said, dict) else {}

    def quiet_for(self) -> float:
        """Return the seconds since the rank last polled in a wait; since time 0 if it never did."""
        return (time.monotonic_ns() - self.words[BEAT]) / 1e9

    def description(self, number: int) -> Description | None:
        """Return the description of a call; ``None`` if it is not in the ring."""
        return self.descriptions().get(self.call_hash(number))

    def call_hash(self, number: int) -> int:
        """Return the call hash of a call; 0 if it has not begun or is not in the ring."""
        words = self.words
        if words[NUMBER] < number:
            return 0
        call_hash = words[place_of(number) + HASH]
        return call_hash if words[NUMBER] < number + LAST else 0

    def pickling(self, number: int, call_hash: int) -> bool:
        """Return True if a call has just begun and its rank may still be pickling.

        If pickling fails, the rank withdraws the call: it sent no message.

        Args:
            number, call_hash: of the call, which the rank may have withdrawn by now.
        """
        what = self.descriptions().get(call_hash)
        began = self.words[place_of(number) + START]
        return (what is not None and what.collective in PICKLED_LATE
                and time.monotonic_ns() - began < PICKLING)

    def differs(self, other: Log) -> int:
        """Return the first call in the ring in which the two ranks differ; 0 without one.

        Calls without a call hash on either rank count as equal.
        """
        mine, others = (log.words[CALLS + HASH:place_of(LAST) + WORDS:WORDS].tolist()
                        for log in (self, other))
        if mine == others:
            return 0
        last = min(self.words[NUMBER], other.words[NUMBER])
        for number in range(max(last - LAST, 0) + 1, last + 1):
            if mine[number & LAST] != others[number & LAST]:
                call_hashes = self.call_hash(number), other.call_hash(number)
                if all(call_hashes) and not agree(*call_hashes):
                    return number
        return 0

    def calls(self) -> list[LoggedCall]:
        """Return the calls in the ring; the rank may be writing meanwhile."""
        words, newest = self.words, self.words[NUMBER]
        found = []
        for number in range(max(newest - LAST, 0) + 1, newest + 1):
            place = place_of(number)
            found.append(LoggedCall(number, self.call_hash(number), words[place + START],
                                    words[place + END]))
        return found

    def record(self) -> LogRecord:
        """Return the current contents; the rank may be writing meanwhile."""
        number = self.words[NUMBER]
        found = {one: self.call_hash(one) for one in range(max(number - LAST, 0) + 1, number + 1)}
        return LogRecord(number, {one: call_hash for one, call_hash in found.items() if call_hash},
                         self.descriptions(), self.report())

    def descriptions(self) -> dict[int, Description]:
        """Return the descriptions by call hash."""
        import json
        descriptions = {}
        # Stop here: reading would allocate pages.
        for number in range(self.words[DESCRIBED]):
            start = TEXTS_START + number * TEXT_BYTES
            call_hash = self.words[start // 8]
            text = bytes(self.memory[start + 8:start + TEXT_BYTES]).rstrip(b"\0")
            if call_hash and text and self.words[start // 8] == call_hash:
                descriptions[call_hash] = Description(*json.loads(text))
        for number in range(REMEMBERED):
            call_hash, form, amount = (self.words[place_of(number) + word]
                                       for word in (HASH, FORM, AMOUNT))
            # The form may be that of an earlier call in this place.
            if call_hash not in descriptions and form in descriptions and (
                    hash_of_amount(form, amount) == call_hash):
                descriptions[call_hash] = descriptions[form].with_amount(amount)
        return descriptions
