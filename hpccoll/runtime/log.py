"""A rank's log of its calls: to which one it has come, what the last ones were, and what failed.

    line 0   alarm; length of the story
    line 1   number of this rank's last blocking call of ours
    then     stamps of the last REMEMBERED calls, by their numbers
             the story: what failed here, in JSON
             descriptions of stamps, in JSON

Where all ranks share memory it lies there, and the others read it without asking; the compiled
executor writes its numbers and stamps, too. Only the rank itself writes, but for the alarm.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy

from hpccoll.runtime.description import Description

#: Words of a log: the number, and one more, of the call in which somebody gave up, 1 where it has
#: no number; the story's length; the number of the last call; and where the stamps of the last
#: calls are. All but the story's are known to ``_tape.c``.
ALARM, STORY, NUMBER, STAMPS = 0, 1, 16, 32
#: Calls that are remembered; a power of two. While one is written, the oldest is uncertain.
REMEMBERED = 64
LAST = REMEMBERED - 1
#: Where texts are, in bytes, and how many descriptions there are of how many bytes.
STORY_START, TEXTS_START, LOG_BYTES = 1 << 10, 4 << 10, 36 << 10
TEXT_BYTES = 256
MOST_TEXTS = (LOG_BYTES - TEXTS_START) // TEXT_BYTES


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


class Log:
    """The log in ``LOG_BYTES`` of memory, zero at first."""

    def __init__(self, memory: numpy.ndarray):
        self.memory = memory.data
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
        text = json.dumps(description).encode()
        if len(text) > TEXT_BYTES - 8:
            text = json.dumps(description._replace(algorithm="", layout="")).encode()
        self.words[start // 8] = 0
        self.memory[start + 8:start + TEXT_BYTES] = text[:TEXT_BYTES - 8].ljust(TEXT_BYTES - 8,
                                                                               b"\0")
        self.words[start // 8] = stamp

    def tell(self, story: Mapping[str, Any]) -> None:
        """Say what failed here."""
        text = json.dumps(story).encode()
        if len(text) > TEXTS_START - STORY_START:
            text = json.dumps({**story, "reason": str(story["reason"])[:500]}).encode()
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

    def stamp(self, number: int) -> int:
        """The stamp of a call; 0 where this rank has not come to it, or does not remember."""
        words = self.words
        if words[NUMBER] < number:
            return 0
        stamp = words[STAMPS + (number & LAST)]
        return stamp if words[NUMBER] < number + LAST else 0

    def record(self) -> LogRecord:
        """What the log says now; its rank may be writing."""
        number = self.words[NUMBER]
        found = {one: self.stamp(one) for one in range(max(number - LAST, 0) + 1, number + 1)}
        descriptions = {}
        for start in range(TEXTS_START, LOG_BYTES, TEXT_BYTES):
            stamp = self.words[start // 8]
            text = bytes(self.memory[start + 8:start + TEXT_BYTES]).rstrip(b"\0")
            if stamp and text and self.words[start // 8] == stamp:
                descriptions[stamp] = Description(*json.loads(text))
        return LogRecord(number, {one: stamp for one, stamp in found.items() if stamp},
                         descriptions, self.story())
