"""Dictionary with a bounded total weight."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class BoundedDict(Generic[K, V]):
    """Dictionary that evicts its oldest entries when their total weight exceeds a limit.

    Args:
        most: largest total weight; the newest entry is never evicted.
        discard: releases the resources of an evicted entry.
        weigh: the weight of an entry; 1 if omitted.
    """

    def __init__(self, most: int, discard: Callable[[V], object] = lambda value: None,
                 weigh: Callable[[V], int] = lambda value: 1):
        self.most, self.discard, self.weigh = most, discard, weigh
        self.weight = 0
        self.entries: OrderedDict[K, V] = OrderedDict()
        #: ``get`` of the underlying dictionary: the hot path calls it without a wrapper.
        self.get = self.entries.get

    def __len__(self) -> int:
        return len(self.entries)

    def __contains__(self, key: object) -> bool:
        return key in self.entries

    def keep(self, key: K, value: V) -> V:
        """Add or replace an entry; return its value."""
        if key in self.entries:
            self.discard(self.drop(key))
        self.entries[key] = value
        self.weight += self.weigh(value)
        while self.weight > self.most and len(self.entries) > 1:
            self.discard(self.drop(next(iter(self.entries))))
        return value

    def drop(self, key: K) -> V:
        """Remove an entry without discarding it; return its value.

        Raises:
            KeyError: no entry has that key.
        """
        value = self.entries.pop(key)
        self.weight -= self.weigh(value)
        return value

    def clear(self) -> None:
        """Discard all entries."""
        while self.entries:
            self.discard(self.drop(next(iter(self.entries))))
