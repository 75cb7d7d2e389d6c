"""Fixed order: buckets are planned once and sent in the order of the plan.

    mark_ready(index) --packs--> fusion buffer; the next complete bucket --> task in a queue

All ranks have the same plan, so they make the same calls for any order of submission. An array may
be submitted for the next step as soon as its result was taken, while other arrays are still in
flight: there is no barrier between steps.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from hpccoll.errors import ExchangeMismatch
from hpccoll.training.arrays import dtype_of
from hpccoll.training.buckets import ArraySpec, Bucket, plan_buckets
from hpccoll.training.compress.scheme import Reduction, Steps
from hpccoll.training.compress.states import State, join_states, split_state
from hpccoll.training.engine import Engine
from hpccoll.training.exchange.communicators import ExchangeCommunicators
from hpccoll.training.exchange.fusion_buffer import FusionBuffer
from hpccoll.training.exchange.reducing import BucketReducer, result_scaling
from hpccoll.training.exchange.settings import BLOCKING, ExchangeSettings
from hpccoll.training.exchange.tensor_entry import DeclaredArrays, TensorEntry
from hpccoll.training.exchange.transfer import BUCKET, StepBarrier, collective_step, copy_scaled
from hpccoll.training.trace import READY, Recorder


class FixedOrder(DeclaredArrays):
    """Exchange of the declared arrays, bucket by bucket.

    Args:
        barrier: precedes blocking calls; only tasks of the first queue use it.
        device: True for CuPy arrays.

    Attributes:
        entries: submitted arrays whose results were not taken yet, by index.
        ready_order: order of submission in the first step.
    """

    def __init__(self, comms: ExchangeCommunicators, barrier: StepBarrier, engine: Engine,
                 recorder: Recorder, specs: Sequence[ArraySpec], device: bool):
        super().__init__(specs)
        self.settings = comms.settings
        self.recipe = self.settings.recipe
        self.barrier, self.engine, self.recorder = barrier, engine, recorder
        self.use_barrier = self.settings.transfer == BLOCKING or self.settings.uneven
        self.reducers = [BucketReducer(comm, self.settings) for comm in comms.data_comms]
        self.finish = result_scaling(self.recipe, comms.size, self.settings.compress is not None)
        self.plain = result_scaling(self.recipe, comms.size, False)
        self.plan = self.plan_for(None)
        self.fusion_buffer = FusionBuffer(comms.data_comms[0], specs, self.order, device)
        self.dtypes = [dtype_of(spec.dtype) for spec in specs]
        self.entries: list[TensorEntry | None] = [None] * len(specs)
        self.ready_order: list[int] = []
        self.reductions: list[Reduction | None] = []
        self._reset()

    def plan_for(self, order: Sequence[int] | None) -> tuple[Bucket, ...]:
        """Return the plan for arrays that become ready in this order."""
        return plan_buckets(self.specs, self.settings.bucket_bytes,
                            self.settings.first_bucket_bytes, order)

    def _reset(self) -> None:
        limit = self.settings.bucket_bytes
        self.runs = plan_buckets(self.specs, limit, limit, self.order)
        self._bucket_of = {index: number for number, bucket in enumerate(self.plan)
                           for index in bucket.members}
        self._absent = [len(bucket.members) for bucket in self.plan]
        self._launch_count = 0
        self.reductions = [self.reducers[number % len(self.reducers)].start(
            self.recipe, bucket.dtype, self.shapes(bucket))
            for number, bucket in enumerate(self.plan)]

    def shapes(self, bucket: Bucket) -> list[tuple[int, ...]]:
        """Return the shapes of the arrays in a bucket."""
        return [self.specs[index].shape for index in bucket.members]

    @property
    def order(self) -> list[int]:
        """Indices of the arrays in the order of sending."""
        return [index for bucket in self.plan for index in bucket.members]

    def retune(self, settings: ExchangeSettings) -> None:
        """Apply other limits; no transfer may be pending."""
        self.settings = settings
        for reducer in self.reducers:
            reducer.settings = settings
        self.replan(self.order)

    def replan(self, order: Sequence[int]) -> None:
        """Plan new buckets for arrays that become ready in this order.

        No transfer may be pending. Collective if reductions have state.
        """
        plan = self.plan_for(order)
        if plan == self.plan:
            return
        kept = self.state() if self.settings.compress is not None else {}
        self.plan = plan
        self.fusion_buffer.assign(order)
        self._reset()
        self.load(kept)

    # -- one step ----------------------------------------------------------------------------
    def mark_ready(self, index: int, array: Any) -> None:
        """Copy an array (None for zeros) into its bucket and launch complete buckets."""
        spec = self.specs[index]
        if self.entries[index] is not None:
            raise ExchangeMismatch(f"array passed to ready() twice: '{spec.name}' in step "
                                   f"{self.result_counts[index]}; call wait() before the next "
                                   "ready()", (spec.name,))
        entry = TensorEntry(spec, self.dtypes[index], array)
        room = self.fusion_buffer.views[index]
        if entry.view is None:
            room[...] = 0
        elif entry.view is not room or self.recipe.prescale != 1:
            copy_scaled(entry.view, self.recipe.prescale, room)
        self.entries[index] = entry
        if not self.result_counts[index]:
            self.ready_order.append(index)
        now = time.perf_counter()
        self.recorder.add(spec.name, READY, now, now, spec.nbytes)
        self._absent[self._bucket_of[index]] -= 1
        if self.settings.overlap:
            self.launch()

    def launch(self) -> None:
        """Launch complete buckets in plan order, up to the first incomplete one."""
        while self.plan:
            step, number = divmod(self._launch_count, len(self.plan))
            if self._absent[number]:
                return
            bucket = self.plan[number]
            self._absent[number] = len(bucket.members)
            self._launch_count += 1
            self.engine.submit(number % len(self.reducers), self._transfer(step, number))

    def _transfer(self, step: int, number: int) -> Steps:
        bucket, whole = self.plan[number], time.perf_counter()
        values = self.fusion_buffer.values(bucket)
        entries = [entry for index in bucket.members
                   if (entry := self.entries[index]) is not None]
        if self.use_barrier:
            yield from self.barrier.wait(collective_step(step, BUCKET, number))
        start = time.perf_counter()
        yield from self.reduce(number, values)
        finish = self.finish if self.reductions[number] is not None else self.plain
        for index, entry in zip(bucket.members, entries):
            finish.apply(self.fusion_buffer.views[index], entry.target())
        self.recorder.add_transfer(
            f"bucket {number}", bucket.nbytes, whole, start,
            self.reducers[0].wire_bytes(self.reductions[number], values))
        for entry in entries:
            entry.done = True

    def reduce(self, number: int, values: Any) -> Steps:
        """Reduce the values of a bucket in place."""
        names = [self.specs[index].name for index in self.plan[number].members]
        yield from self.reducers[number % len(self.reducers)].run(
            self.reductions[number], self.recipe, values, names)

    def contribute_zeros(self, number: int) -> Steps:
        """Contribute zeros to a bucket, on a rank that has run out of data."""
        values = self.fusion_buffer.values(self.plan[number])
        values[...] = 0
        yield from self.reduce(number, values)

    # -- results -----------------------------------------------------------------------------
    def is_done(self, index: int) -> bool:
        """Return True if a result can be taken."""
        entry = self.entries[index]
        return entry is None or entry.done

    def take_result(self, index: int) -> Any:
        """Return the result of an array and mark it as taken; the array may be submitted again."""
        entry = self.entries[index]
        if entry is not None:
            self.entries[index] = None
            self.result_counts[index] += 1
            self.results[index] = entry.result
        return self.results[index]

    def is_submitted(self, index: int) -> bool:
        """Return True if an array was submitted and its result was not taken."""
        return self.entries[index] is not None

    def submitted_names(self) -> list[str]:
        """Return the names of submitted arrays whose results were not taken."""
        return [entry.spec.name for entry in self.entries if entry is not None]

    def is_missing(self, name: str, step: int) -> bool:
        """Return True if an array was not submitted in a step."""
        return any(spec.name == name and not self.is_submitted(index)
                   and self.result_counts[index] <= step
                   for index, spec in enumerate(self.specs))

    def poll(self) -> bool:
        """Return False: there is no work besides launched buckets."""
        return False

    def add_waiters(self, callers: int) -> None:
        """Launch complete buckets, because ``callers`` more callers wait for results."""
        self.launch()

    def unfinished_names(self) -> list[str]:
        """Return the names of submitted arrays without a result, in plan order."""
        return [self.specs[index].name for bucket in self.plan for index in bucket.members
                if not self.is_done(index)]

    def restart(self) -> None:
        """Reset the step count, because ranks without data have counted fewer steps."""
        self.result_counts = [0] * len(self.specs)
        self._launch_count = 0

    # -- state of reductions -----------------------------------------------------------------
    def state(self) -> dict[str, State]:
        """Return the states of reductions, split by array name; collective."""
        return {self.specs[index].name: part
                for bucket, reduction in zip(self.plan, self.reductions)
                if reduction is not None
                for index, part in zip(bucket.members,
                                       split_state(reduction.state(), self.counts(bucket)))}

    def load(self, state: dict[str, State]) -> None:
        """Restore a state that :meth:`state` returned, also with other buckets."""
        for bucket, reduction in zip(self.plan, self.reductions):
            kept = [state.get(self.specs[index].name, {}) for index in bucket.members]
            if reduction is not None and any(kept):
                reduction.load(join_states(kept, self.counts(bucket)))

    def counts(self, bucket: Bucket) -> list[int]:
        """Return the numbers of elements of the arrays in a bucket."""
        return [self.specs[index].count for index in bucket.members]
