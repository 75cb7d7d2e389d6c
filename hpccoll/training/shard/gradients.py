"""Reduction of gradients to their owners, in groups and over several passes.

    stage 0    whole vectors, allreduced in place
    stage 1    whole vectors; a reduce-scatter stores this rank's part at the front of each
    stages 2-3 a vector exists from a group's first gradient to its reduce-scatter; parts remain

Groups are launched in plan order, so all ranks make the same calls for any order of gradients. A
fault on one rank is recorded until the end of the pass, and zeros are sent instead: other ranks
make the same calls, and receive the fault when ranks agree on a step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy

from hpccoll.runtime.progress.task_queue import TaskQueue
from hpccoll.training.buckets import ArraySpec
from hpccoll.training.compress.scheme import Steps
from hpccoll.training.shard.partition import ShardGroup
from hpccoll.training.shard.shard_state import VectorPool

#: Largest number of pending groups, if each needs its own memory.
IN_FLIGHT = 2


class Gradients:
    """Gradients of all arrays on one rank.

    Args:
        stage: 0 to 3.
        dtypes: dtypes of the groups.
        reduction: returns the exchange of a group: the sum over ranks in place; above stage 0 only
            this rank's part, at the front.
        prescale: divisor of vectors before the sum; a power of two.
        zeros: True if missing arrays are zeros instead of a fault.
        cut: True to accumulate several passes in the parts (stages 2 and 3), with an exchange in
            each pass.
    """

    def __init__(self, rank: int, stage: int, specs: Sequence[ArraySpec],
                 groups: Sequence[ShardGroup], dtypes: Sequence[numpy.dtype],
                 reduction: Callable[[int, numpy.ndarray], Steps], prescale: float = 1.0,
                 zeros: bool = False, cut: bool = False):
        self.rank, self.stage, self.specs, self.groups = rank, stage, specs, groups
        self.dtypes, self.reduction, self.prescale = dtypes, reduction, prescale
        self.zeros, self.cut = zeros, cut and stage > 1
        self.faults: list[str] = []
        self._locations = {index: (number, slice(start, start + specs[index].count))
                           for number, group in enumerate(groups)
                           for index, start in zip(group.bucket.members, group.bucket.starts)}
        self._window, self._buffers = TaskQueue(overlap=True), VectorPool()
        self._vectors: list[Any] = [None] * len(groups)
        self._parts: list[numpy.ndarray] = []
        if stage < 2:
            self._vectors = [numpy.zeros(group.bucket.count, dtype)
                             for group, dtype in zip(groups, dtypes)]
        else:
            self._parts = [numpy.zeros(group.counts[rank], dtype)
                           for group, dtype in zip(groups, dtypes)]
        self._summed: set[int] = set()
        self._waiting = self._partial = self._over = False
        self._start_pass()

    def _start_pass(self) -> None:
        self._brought: set[int] = set()
        self._odd: set[int] = set()
        self._next, self._lacking = 0, [len(group.bucket.members) for group in self.groups]

    @property
    def views(self) -> list[numpy.ndarray]:
        """Return views of all gradients, for the backward pass to write; stages 0 and 1."""
        return [self._slot(index).reshape(spec.shape) for index, spec in enumerate(self.specs)]

    def part(self, number: int) -> numpy.ndarray:
        """Return the reduced gradients of this rank's part, after the pass."""
        if self.stage > 1:
            return self._parts[number]
        vector: numpy.ndarray = self._vectors[number]
        return vector[:self.groups[number].counts[self.rank]] if self.stage else vector

    def norm_part(self, number: int) -> numpy.ndarray:
        """Return the part of the sum that only this rank counts in norms."""
        vector = self.part(number)
        return vector if self.stage else vector[self.groups[number].part(self.rank)]

    def ready(self, index: int, gradient: Any = None) -> None:
        """Submit a gradient; launch its group if it is complete."""
        values = None if gradient is None else numpy.asarray(gradient)
        fault = self._fault_of(index, values)
        if fault:
            self.faults.append(fault)
            self._odd.add(index)
            return
        self._brought.add(index)
        number = self._locations[index][0]
        slot = self._slot(index)
        if values is not None and index in self._summed:
            slot += values.reshape(-1)
        elif values is not None:
            slot[:] = values.reshape(-1)
        if self._waiting and not self.cut:
            self._summed.add(index)
            return
        self._lacking[number] -= 1
        self._launch()
        self._window.progress()

    @contextmanager
    def accumulate(self) -> Iterator[None]:
        """Accumulate the gradients of a pass; see :meth:`Sharded.paused`."""
        self._waiting = True
        try:
            yield
        finally:
            self._waiting = False
        if self.cut:
            self._finish()
            self._partial = True
        self._start_pass()

    def finish(self) -> list[str]:
        """Wait for the exchange of all groups; return the faults of this rank."""
        if not self._over:
            self._finish()
            self._over = True
        return self.faults

    def clear(self) -> None:
        """Discard the gradients and start the next pass."""
        self.faults = []
        self._summed.clear()
        self._partial = self._over = False
        self._buffers.clear()
        self._start_pass()

    @property
    def nbytes(self) -> int:
        """Return the current bytes of gradients."""
        return sum(vector.nbytes for vector in (*self._vectors, *self._parts)
                   if vector is not None)

    # ----------------------------------------------------------------------------------------
    def _fault_of(self, index: int, values: numpy.ndarray | None) -> str:
        if index not in self._locations:
            return f"gradient {index} does not match an initial array"
        spec = self.specs[index]
        if index in self._brought and (self.cut or not self._waiting):
            return f"the gradient of '{spec.name}' was passed twice"
        if self._over:
            return f"the gradient of '{spec.name}' was passed after the exchange ended"
        if values is None:
            return "" if self.stage < 2 else f"the gradient of '{spec.name}' is missing"
        if values.shape != spec.shape:
            return f"the gradient of '{spec.name}' has shape {values.shape}, expected {spec.shape}"
        if values.dtype.name != spec.dtype:
            return (f"the gradient of '{spec.name}' has type {values.dtype.name}, expected "
                    f"{spec.dtype}")
        return ""

    def _slot(self, index: int) -> numpy.ndarray:
        number, place = self._locations[index]
        if self._vectors[number] is None:
            self._vectors[number] = self._buffers.get(self.groups[number].bucket.count,
                                                      self.dtypes[number])
        slot: numpy.ndarray = self._vectors[number][place]
        return slot

    def _finish(self) -> None:
        for group in self.groups[self._next:]:
            for index in group.bucket.members:
                if index not in self._brought:
                    self._fill(index)
        self._lacking = [0] * len(self.groups)
        self._launch()
        self._window.wait()

    def _fill(self, index: int) -> None:
        """Substitute zeros, or the gradients of earlier passes."""
        if index not in self._summed:
            self._slot(index)[:] = 0
        if not self.zeros and index not in self._odd:
            self.faults.append(f"the gradient of '{self.specs[index].name}' is missing")

    def _launch(self) -> None:
        while self._next < len(self.groups) and not self._lacking[self._next]:
            number, self._next = self._next, self._next + 1
            if not self.groups[number].bucket.count:
                continue
            if self.stage > 1:
                self._window.wait(IN_FLIGHT - 1)
            vector = self._vectors[number]
            if self.prescale != 1:
                vector /= vector.dtype.type(self.prescale)
            self._window.submit(self.reduction(number, vector),
                                lambda number=number: self._on_reduced(number))  # type: ignore[misc]

    def _on_reduced(self, number: int) -> None:
        if self.stage < 2:
            return
        mine = self._vectors[number][:self._parts[number].size]
        if self._partial:
            self._parts[number] += mine
        else:
            self._parts[number][:] = mine
        self._buffers.put(self._vectors[number])
        self._vectors[number] = None
