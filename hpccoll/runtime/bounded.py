"""A dictionary of bounded weight."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class BoundedDict(Generic[K, V]):
    """Forgets its oldest entries when all together weigh too much.

    Args:
        most: greatest weight of all entries together; the newest entry is always kept.
        discard: gives an entry's resources back.
        weigh: the weight of an entry; 1 if omitted.
    """

    def __init__(self, most: int, discard: Callable[[V], object] = lambda value: None,
                 weigh: Callable[[V], int] = lambda value: 1):
        self.most, self.discard, self.weigh = most, discard, weigh
        self.weight = 0
        self.entries: OrderedDict[K, V] = OrderedDict()
        #: ``get`` of the entries themselves: calls that are looked up by the million go through it.
        self.get = self.entries.get

    def __len__(self) -> int:
        return len(self.entries)

    def __contains__(self, key: object) -> bool:
        return key in self.entries

    def keep(self, key: K, value: V) -> V:
        """Add an entry, in place of one of that key; return its value."""
        if key in self.entries:
            self.discard(self.drop(key))
        self.entries[key] = value
        self.weight += self.weigh(value)
        while self.weight > self.most and len(self.entries) > 1:
            self.discard(self.drop(next(iter(self.entries))))
        return value

    def drop(self, key: K) -> V:
        """Take an entry out without discarding it; return its value.

        Raises:
            KeyError: there is none.
        """
        value = self.entries.pop(key)
        self.weight -= self.weigh(value)
        return value

    def clear(self) -> None:
        """Discard all entries."""
        while self.entries:
            self.discard(self.drop(next(iter(self.entries))))
