"""A rank's log of its calls: to which one it has come, what the last ones were, and what failed.

    line 0   alarm; length of the story; whether somebody asks what the rank is doing; in which call
             it has given up
    line 1   number of this rank's last blocking call, and whether it is in the MPI library's hands;
             when it last looked while it waited; whether it has left
    then     stamps of the last REMEMBERED calls, by their numbers; when they began and ended
             what it is doing, in JSON
             the story: what failed here, in JSON
             descriptions of stamps, in JSON

Ranks that share memory have it there, and the others read it without asking; the compiled executor
writes numbers and stamps, too. Only the rank itself writes, but for the alarm and the question.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy

from hpccoll.runtime.planning.description import Description
from hpccoll.transport.stamps import agree

#: Words of a log: the number, and one more, of the call in which somebody gave up, 1 where it has
#: no number; the story's length; the number of the last call; and where the stamps of the last
#: calls are. All but the story's are known to ``_tape.c``.
ALARM, STORY, NUMBER, STAMPS = 0, 1, 16, 32
#: Like the alarm, of the call in which this rank itself has given up; 0 where it has not.
FAILED = 3
#: When somebody who waits has asked where the rank is, in nanoseconds of the machine's clock, 0
#: where that is answered; the number of the call that the MPI library has, 0 where it has none,
#: known to ``_tape.c``; nanoseconds of the machine's clock at the last look of a wait; the length
#: of what the rank says it is doing; whether it has freed the communicator, or ended; and the
#: number of descriptions that it has written.
ASKED, INSIDE, BEAT, DOING, LEFT, DESCRIBED = 2, 17, 18, 19, 20, 21
FREED, ENDED = 1, 2
#: Calls that are remembered; a power of two. While one is written, the oldest is uncertain.
REMEMBERED = 64
LAST = REMEMBERED - 1
#: How the descriptions of calls of objects end; those that pickle after they are counted, and
#: nanoseconds that this may take.
OBJECTS, PICKLING = " of objects", 200_000_000
PICKLED_LATE = ("allgather of objects", "alltoall of objects")
#: When they began and ended, in nanoseconds of the machine's clock; 0 where they have not ended,
#: :data:`SOME_TIME` where Python has not looked when. Machine code, to which they are known, notes
#: the kernel's last tick, some milliseconds ago at most, which is much cheaper to ask for.
STARTS, ENDS, SOME_TIME = STAMPS + REMEMBERED, STAMPS + 2 * REMEMBERED, 1
#: Where texts are, in bytes, and how many descriptions there are of how many bytes.
DOING_START, STORY_START, TEXTS_START, LOG_BYTES = 224 * 8, 5 << 9, 6 << 10, 38 << 10
TEXT_BYTES = 256
MOST_TEXTS = (LOG_BYTES - TEXTS_START) // TEXT_BYTES
#: Bytes that exist from the start: a few descriptions.
EARLY_BYTES = 8 << 10


class LogRecord(NamedTuple):
    """What a log says.

    Attributes:
        number: of the rank's last blocking call.
        stamps: of its last calls, by number.
        descriptions: by stamp.
        story: what failed there; ``None`` where nothing has.
    """

    number: int
    stamps: Mapping[int, int]
    descriptions: Mapping[int, Description]
    story: Mapping[str, Any] | None

    def packed(self) -> bytes:
        """The record as bytes."""
        used = set(self.stamps.values())
        return json.dumps([self.number, [*self.stamps.items()],
                           [(stamp, text) for stamp, text in self.descriptions.items()
                            if stamp in used], self.story]).encode()

    @classmethod
    def unpacked(cls, data: bytes) -> LogRecord:
        """A record that was :meth:`packed`."""
        number, stamps, descriptions, story = json.loads(data)
        return cls(number, dict(stamps),
                   {stamp: Description(*fields) for stamp, fields in descriptions}, story)


class LoggedCall(NamedTuple):
    """A call as a log has it.

    Attributes:
        number, stamp: of the call; calls that are not all alike have no stamp.
        start, end: nanoseconds of the machine's clock, to some milliseconds; the end is 0 where
            it has not ended, and :data:`SOME_TIME` where it has, and nobody looked when.
    """

    number: int
    stamp: int
    start: int
    end: int


class Log:
    """The log in ``LOG_BYTES`` of memory, zero at first.

    Args:
        memory: the bytes.
        grow: makes a range of bytes behind ``EARLY_BYTES`` exist, and returns whether there was
            room; ``None`` where all bytes do.
    """

    def __init__(self, memory: numpy.ndarray, grow: Callable[[int, int], bool] | None = None):
        self.memory, self.grow = memory.data, grow
        self.words = memory.data.cast("q")
        self.address: int = memory.__array_interface__["data"][0]
        self.texts = 0
        self.known: set[int] = set()

    def describe(self, stamp: int, description: Description) -> None:
        """Say what a stamp means."""
        if stamp in self.known:
            return
        start = TEXTS_START + self.texts % MOST_TEXTS * TEXT_BYTES
        self.texts += 1
        self.known.add(stamp)
        if (self.grow is not None and start + TEXT_BYTES > EARLY_BYTES
                and not self.grow(start, TEXT_BYTES)):
            return  # the others do not learn what this stamp means
        text = json.dumps(description).encode()
        if len(text) > TEXT_BYTES - 8:
            text = json.dumps(description._replace(algorithm="", layout="")).encode()
        self.words[start // 8] = 0
        self.memory[start + 8:start + TEXT_BYTES] = text[:TEXT_BYTES - 8].ljust(TEXT_BYTES - 8,
                                                                               b"\0")
        self.words[start // 8] = stamp
        self.words[DESCRIBED] = max(self.words[DESCRIBED], start // TEXT_BYTES + 1
                                    - TEXTS_START // TEXT_BYTES)

    def tell(self, story: Mapping[str, Any]) -> None:
        """Say what failed here."""
        text = json.dumps(story).encode()
        if len(text) > TEXTS_START - STORY_START:
            text = json.dumps({**story, "lines": (), "reason": str(story["reason"])[:500]}).encode()
        text = text[:TEXTS_START - STORY_START]
        self.memory[STORY_START:STORY_START + len(text)] = text
        self.words[STORY] = len(text)

    def story(self) -> Mapping[str, Any] | None:
        """What failed here."""
        length = self.words[STORY]
        if not length:
            return None
        story: Mapping[str, Any] = json.loads(bytes(
            self.memory[STORY_START:STORY_START + length]))
        return story

    def say(self, doing: Mapping[str, Any], looks: bool = True) -> None:
        """Say what the rank is doing, in a few words; and that it looks, now, while it waits."""
        text = json.dumps(doing).encode()
        if len(text) <= STORY_START - DOING_START:
            self.words[DOING] = 0
            self.memory[DOING_START:DOING_START + len(text)] = text
            self.words[DOING] = len(text)
        if looks:
            self.look()

    def ask(self) -> None:
        """Request that the rank writes where it is; keeps the time of an unanswered request."""
        if not self.words[ASKED]:
            self.words[ASKED] = time.monotonic_ns()

    def look(self) -> None:
        """Say that the rank is waiting, now."""
        self.words[BEAT] = time.monotonic_ns()

    def doing(self) -> Mapping[str, Any]:
        """What the rank has said last that it is doing; empty where it is just writing."""
        try:
            said = json.loads(bytes(self.memory[DOING_START:DOING_START + self.words[DOING]]))
        except ValueError:
            return {}
        return said if isinstance(said, dict) else {}

    def quiet_for(self) -> float:
        """Seconds since the rank looked last while it waited; since ever, where it never did."""
        return (time.monotonic_ns() - self.words[BEAT]) / 1e9

    def description(self, number: int) -> Description | None:
        """What a call was; ``None`` where that is not remembered."""
        return self.descriptions().get(self.stamp(number))

    def stamp(self, number: int) -> int:
        """The stamp of a call; 0 where this rank has not come to it, or does not remember."""
        words = self.words
        if words[NUMBER] < number:
            return 0
        stamp = words[STAMPS + (number & LAST)]
        return stamp if words[NUMBER] < number + LAST else 0

    def pickling(self, number: int, stamp: int) -> bool:
        """Tell whether a call has just begun whose rank may be pickling what it is to send.

        If it cannot, it takes the call back: no message of it was sent.

        Args:
            number, stamp: of the call; by now the rank may have taken it back.
        """
        what = self.descriptions().get(stamp)
        began = self.words[STARTS + (number & LAST)]
        return (what is not None and what.collective in PICKLED_LATE
                and time.monotonic_ns() - began < PICKLING)

    def differs(self, other: Log) -> int:
        """The first remembered call that both ranks have made, and not alike; 0 where none is.

        Calls of which either rank knows the number alone are alike.
        """
        mine, others = (log.words[STAMPS:STAMPS + REMEMBERED].tolist() for log in (self, other))
        if mine == others:
            return 0
        last = min(self.words[NUMBER], other.words[NUMBER])
        for number in range(max(last - LAST, 0) + 1, last + 1):
            if mine[number & LAST] != others[number & LAST]:
                stamps = self.stamp(number), other.stamp(number)
                if all(stamps) and not agree(*stamps):
                    return number
        return 0

    def calls(self) -> list[LoggedCall]:
        """The calls that are remembered; the rank may be writing."""
        words, newest = self.words, self.words[NUMBER]
        found = []
        for number in range(max(newest - LAST, 0) + 1, newest + 1):
            stamp, place = self.stamp(number), number & LAST
            found.append(LoggedCall(number, stamp, words[STARTS + place], words[ENDS + place]))
        return found

    def record(self) -> LogRecord:
        """What the log says now; its rank may be writing."""
        number = self.words[NUMBER]
        found = {one: self.stamp(one) for one in range(max(number - LAST, 0) + 1, number + 1)}
        return LogRecord(number, {one: stamp for one, stamp in found.items() if stamp},
                         self.descriptions(), self.story())

    def descriptions(self) -> dict[int, Description]:
        """What stamps mean."""
        descriptions = {}
        # No further: reading would make pages exist.
        for number in range(self.words[DESCRIBED]):
            start = TEXTS_START + number * TEXT_BYTES
            stamp = self.words[start // 8]
            text = bytes(self.memory[start + 8:start + TEXT_BYTES]).rstrip(b"\0")
            if stamp and text and self.words[start // 8] == stamp:
                descriptions[stamp] = Description(*json.loads(text))
        return descriptions
