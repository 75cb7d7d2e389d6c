"""Weights that the model reads: replicated, or gathered only while they are used.

    stages 0-2  ReplicatedWeights  the model's arrays are views; a step gathers the updated parts
    stage 3     ShardedWeights     fetch(unit) gathers, release(unit) frees; the next units are
                                   prefetched in the order of the previous step

Source: Rajbhandari et al., "ZeRO", SC 2020 and "ZeRO-Infinity", SC 2021 (prefetch by the order of
the previous step); hierarchical partition: Wang et al., "ZeRO++", 2023 (hpZ).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields

import numpy

from hpccoll.errors import ArgumentError
from hpccoll.runtime.progress.task_queue import TaskQueue
from hpccoll.training.buckets import ArraySpec
from hpccoll.training.compress.scheme import Steps
from hpccoll.training.shard.partition import WHOLE, ShardGroup, part_sizes
from hpccoll.training.shard.shard_state import VectorPool

#: Returns the exchange that fills a whole vector: ``gather(part, whole, counts)``.
Gather = Callable[[numpy.ndarray, numpy.ndarray, Sequence[int]], Steps]


@dataclass(frozen=True)
class Fetching:
    """Limits of fetched weights at stage 3 in elements; DeepSpeed's defaults except reuse.

    Attributes:
        prefetch: elements that are prefetched.
        persistent: arrays of fewer elements stay whole.
        max_live: largest number of live elements for prefetch and reuse.
        reuse: weights stay if fewer than this many other elements are used before their next use;
            1 keeps those at the start of a backward pass, 0 keeps none.
    """

    prefetch: int = 50_000_000
    persistent: int = 100_000
    max_live: int = 1_000_000_000
    reuse: int = 1

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if not isinstance(value, (int, float)) or not value >= 0:
                raise ArgumentError(each.name, f"expected a number of elements, got {value!r}")


def views(group: ShardGroup, whole: numpy.ndarray, specs: Sequence[ArraySpec]
          ) -> dict[int, numpy.ndarray]:
    """Return the arrays of a group by index, as views of its whole vector."""
    return {index: whole[start:start + specs[index].count].reshape(specs[index].shape)
            for index, start in zip(group.bucket.members, group.bucket.starts)}


def _check(unit: int, units: Sequence[Sequence[int]]) -> None:
    if not 0 <= unit < len(units):
        raise ArgumentError("unit", f"{unit} is out of range 0 to {len(units) - 1}",
                            "create a new state for a larger model")


class ReplicatedWeights:
    """Replicated weights (stages 0 to 2).

    Args:
        wholes: vectors of the groups; the model's arrays become views of them.
        gather: fills a vector from parts; ``None`` if each rank updates all weights (stage 0).
    """

    def __init__(self, rank: int, specs: Sequence[ArraySpec], groups: Sequence[ShardGroup],
                 units: Sequence[Sequence[int]], wholes: Sequence[numpy.ndarray],
                 gather: Gather | None):
        self.rank, self.specs, self.groups, self.units = rank, specs, groups, units
        self.wholes, self.gather = wholes, gather
        self._window = TaskQueue(overlap=True)

    @property
    def arrays(self) -> list[numpy.ndarray]:
        """Return the model's arrays."""
        found = {index: array for group, whole in zip(self.groups, self.wholes)
                 for index, array in views(group, whole, self.specs).items()}
        return [found[index] for index in range(len(self.specs))]

    def fetch(self, unit: int) -> dict[int, numpy.ndarray]:
        """Return the arrays of a unit by index."""
        _check(unit, self.units)
        arrays = self.arrays
        return {index: arrays[index] for index in self.units[unit]}

    def release(self, unit: int) -> bool:
        """Return False: replicated weights are not released."""
        _check(unit, self.units)
        return False

    def poll(self) -> None:
        """Do nothing: there is no prefetch."""

    def expire(self) -> None:
        """Do nothing: steps update the model's arrays in place."""

    def rewind(self) -> None:
        """Do nothing: the order of use is not recorded."""

    def fetch_remaining(self) -> None:
        """Do nothing: other ranks do not wait for gathers of this one."""

    def part(self, number: int) -> numpy.ndarray:
        """Return the weights of a group that this rank updates."""
        whole = self.wholes[number]
        return whole if self.gather is None else whole[self.groups[number].part(self.rank)]

    def publish(self, number: int) -> None:
        """Start to gather the updated weights of a group on all ranks."""
        if self.gather is not None and self.groups[number].bucket.count:
            self._window.submit(self.gather(self.part(number), self.wholes[number],
                                            self.groups[number].counts))

    def finish(self) -> None:
        """Wait for gathers that :meth:`publish` started."""
        self._window.wait()

    @property
    def nbytes(self) -> int:
        """Return the bytes of weights."""
        return sum(whole.nbytes for whole in self.wholes)


class ShardedWeights:
    """Sharded weights: a rank holds its part, and other parts only while in use (stage 3).

    Args:
        inside: rank in the node, size of the node, and a gather inside the node: later gathers in a
            step use the second copy in the node. ``None`` always gathers from all ranks.
    """

    def __init__(self, rank: int, specs: Sequence[ArraySpec], groups: Sequence[ShardGroup],
                 units: Sequence[Sequence[int]], parts: Sequence[numpy.ndarray], gather: Gather,
                 fetching: Fetching, inside: tuple[int, int, Gather] | None = None):
        self.rank, self.specs, self.groups, self.units = rank, specs, groups, units
        self.parts, self.gather, self.fetching, self.inside = parts, gather, fetching, inside
        self._window = TaskQueue(overlap=True)
        self._buffers = VectorPool()
        self._wholes: dict[int, numpy.ndarray] = {}
        self._arrived: set[int] = set()
        self._copies: dict[int, numpy.ndarray] = {}
        self._held: set[int] = set()
        self._groups_of = [[number for number, group in enumerate(groups) if group.unit == unit]
                           for unit in range(len(units))]
        self._always = [number for number, group in enumerate(groups) if group.unit == WHOLE]
        #: Units in the order of use, in this and in the previous step.
        self._used: list[int] = []
        self._expected: list[int] = []
        self._as_expected = True
        for number in self._always:
            self._start_gather(number)
        self.finish()

    def part(self, number: int) -> numpy.ndarray:
        """Return the weights of a group that this rank updates."""
        return self.parts[number]

    def fetch(self, unit: int) -> dict[int, numpy.ndarray]:
        """Gather the arrays of a unit, valid until its release; collective."""
        _check(unit, self.units)
        needed = [*self._groups_of[unit], *self._always]
        for number in needed:
            self._start_gather(number)
        position = len(self._used)
        self._as_expected &= self._expected[position:position + 1] == [unit]
        self._used.append(unit)
        self._held.add(unit)
        self._prefetch()
        while not self._arrived.issuperset(needed):
            self._window.wait(len(self._window) - 1)
        found = {index: array for number in needed for index, array in
                 views(self.groups[number], self._wholes[number], self.specs).items()}
        return {index: found[index] for index in self.units[unit]}

    def release(self, unit: int) -> bool:
        """Release a unit; return True if its memory was freed and its arrays are invalid."""
        _check(unit, self.units)
        if unit not in self._held:
            raise ArgumentError("unit", f"unit {unit} was not fetched")
        self._held.discard(unit)
        if self._is_used_soon(unit):
            return False
        for number in self._groups_of[unit]:
            self._drop(number)
        return True

    def poll(self) -> None:
        """Progress prefetches."""
        self._window.progress()

    def expire(self) -> None:
        """Discard gathered weights before a step updates them; fetch all units again."""
        self._window.wait()
        for number in list(self._wholes):
            self._drop(number)
        self._buffers.clear()
        self._copies.clear()
        self._held.clear()
        self.rewind()

    def rewind(self) -> None:
        """Start a step; the order of the previous step predicts its order."""
        self._used, self._expected, self._as_expected = [], self._used or self._expected, True

    def fetch_remaining(self) -> None:
        """Fetch the remaining units that the other ranks will fetch in this step."""
        for unit in list(self._held):
            self.release(unit)
        for unit in self._expected[len(self._used):] if self._as_expected else ():
            self.fetch(unit)
            self.release(unit)

    def publish(self, number: int) -> None:
        """Start to gather a group that stays whole."""
        if number in self._always:
            self._start_gather(number)

    def finish(self) -> None:
        """Wait for gathers that :meth:`publish` started."""
        self._window.wait()

    @property
    def live_elements(self) -> int:
        """Return the number of elements of gathered weights and of pending gathers."""
        return sum(whole.size for whole in self._wholes.values())

    @property
    def nbytes(self) -> int:
        """Return the bytes of weights: parts, second copies, and gathered weights."""
        return sum(vector.nbytes for vector in (*self.parts, *self._copies.values(),
                                                *self._wholes.values()))

    # ----------------------------------------------------------------------------------------
    def _start_gather(self, number: int) -> None:
        """Start to gather a group, unless it is gathered or pending."""
        if number in self._wholes:
            return
        group, part = self.groups[number], self.parts[number]
        whole = self._buffers.get(group.bucket.count, part.dtype)
        self._wholes[number] = whole
        if self.inside is None or number not in self._copies:
            steps = self.gather(part, whole, group.counts)
        else:
            rank, size, gather = self.inside
            steps = gather(self._copies[number], whole, part_sizes(whole.size, size))
        if whole.size:
            self._window.submit(steps, lambda: self._on_gathered(number))
        else:
            self._on_gathered(number)

    def _on_gathered(self, number: int) -> None:
        self._arrived.add(number)
        if self.inside is not None and number not in self._always:
            rank, size, _ = self.inside
            group = self.groups[number]
            mine = group._replace(counts=part_sizes(group.bucket.count, size)).part(rank)
            self._copies.setdefault(number, self._wholes[number][mine].copy())

    def _drop(self, number: int) -> None:
        self._arrived.discard(number)
        self._buffers.put(self._wholes.pop(number))

    def _prefetch(self) -> None:
        """Start gathers in the order of the previous step, within the limits."""
        ahead = 0
        for unit in self._expected[len(self._used):] if self._as_expected else ():
            ahead += self._count(self._groups_of[unit])
            missing = self._count(number for number in self._groups_of[unit]
                                  if number not in self._wholes)
            if (ahead > self.fetching.prefetch
                    or self.live_elements + missing > self.fetching.max_live):
                break
            for number in self._groups_of[unit]:
                self._start_gather(number)

    def _is_used_soon(self, unit: int) -> bool:
        """Return True if a unit was used again within ``reuse`` elements in the previous step."""
        if not self._as_expected or self.live_elements > self.fetching.max_live:
            return False
        between = 0
        for other in self._expected[len(self._used):]:
            if between >= self.fetching.reuse:
                break
            if other == unit:
                return True
            between += self._count(self._groups_of[other])
        return False

    def _count(self, numbers: Iterable[int]) -> int:
        return sum(self.groups[number].bucket.count for number in numbers)
