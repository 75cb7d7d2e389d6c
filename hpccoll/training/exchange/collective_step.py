"""Collective steps: array lists, reordering, tuning, sparse arrays, broadcasts and join."""

from __future__ import annotations

import operator
import time
import weakref
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any, NamedTuple

import numpy
from mpi4py import MPI

from hpccoll.errors import ExchangeMismatch
from hpccoll.training.arrays import as_array, dtype_of, specs_of
from hpccoll.training.autotune import Autotune, Knobs
from hpccoll.training.buckets import plan_buckets
from hpccoll.training.compress.scheme import Steps
from hpccoll.training.exchange.communicators import ExchangeCommunicators, check_agreement
from hpccoll.training.exchange.fixed import FixedOrder
from hpccoll.training.exchange.negotiated import NegotiatedOrder
from hpccoll.training.exchange.reducing import result_scaling
from hpccoll.training.exchange.settings import OPS
from hpccoll.training.exchange.tensor_entry import TensorEntry
from hpccoll.training.exchange.transfer import (
    BUCKET,
    KINDS,
    ORDER,
    RUN,
    SPARSE,
    START,
    TUNE,
    StepBarrier,
    collective_step,
    copy_scaled,
)
from hpccoll.training.sparse import exchange_rows


class ArrayListCache(NamedTuple):
    """Weak references to the last array list: most programs pass the same arrays in each step."""

    arrays: list[weakref.ref[Any]]
    forms: list[tuple[Any, ...]]

    @classmethod
    def of(cls, arrays: Sequence[Any]) -> ArrayListCache:
        """Return the cache entry of validated arrays."""
        if any(type(array) is not numpy.ndarray or not array.flags.writeable for array in arrays):
            return cls([], [])
        return cls(list(map(weakref.ref, arrays)), list(map(_form, arrays)))

    def matches(self, arrays: Sequence[Any]) -> bool:
        """Return True if these are the same arrays with unchanged properties."""
        return (len(self.arrays) == len(arrays)
                and all(known() is array for known, array in zip(self.arrays, arrays))
                and list(map(_form, arrays)) == self.forms)


_form = operator.attrgetter("shape", "dtype", "flags.writeable")


class CollectiveSteps:
    """Creates the tasks that all ranks run together after a barrier."""

    def __init__(self, comms: ExchangeCommunicators, barrier: StepBarrier,
                 order: FixedOrder | NegotiatedOrder):
        self.comms, self.barrier, self.order = comms, barrier, order
        self.data_comm = comms.data_comms[0]
        self._other_count = 0
        self._list_cache = ArrayListCache([], [])

    # -- all arrays in one call --------------------------------------------------------------
    def reduce_list(self, fixed: FixedOrder, arrays: Sequence[Any]) -> tuple[Steps, list[Any]]:
        """Return the task that reduces a list of arrays, and the list for its results."""
        begun = [fixed.specs[index].name for index, entry in enumerate(fixed.entries)
                 if entry is not None]
        if begun:
            raise ExchangeMismatch(f"array '{begun[0]}' is pending from ready(); call wait() "
                                   "first", tuple(begun))
        results = list(arrays)
        if all(map(operator.is_, arrays, fixed.fusion_buffer.views)):
            return self._reduce_runs(fixed, [], [], results), results
        if self._list_cache.matches(arrays):
            return self._reduce_runs(fixed, results, results, results), results
        entries = list(map(TensorEntry, fixed.specs, fixed.dtypes, arrays))
        self._list_cache = ArrayListCache.of(arrays)
        targets = [entry.target() for entry in entries]
        results = [entry.result for entry in entries]
        return self._reduce_runs(fixed, [entry.view for entry in entries], targets,
                                 results), results

    def _reduce_runs(self, fixed: FixedOrder, brought: list[Any], targets: list[Any],
                     results: list[Any]) -> Steps:
        """Reduce arrays into targets; without arrays the data are in the fusion buffer."""
        start, scale = time.perf_counter(), fixed.recipe.prescale
        for number, bucket in enumerate(fixed.runs):
            values = fixed.fusion_buffer.values(bucket)
            views = [fixed.fusion_buffer.views[index] for index in bucket.members]
            if brought:
                _pack([brought[index] for index in bucket.members], views, scale, values)
            else:
                copy_scaled(values, scale, values)
            yield from self.barrier.wait(collective_step(fixed.step, RUN, number))
            flight = time.perf_counter()
            self.data_comm.Allreduce(MPI.IN_PLACE, values, OPS[fixed.recipe.op])
            if brought:
                fixed.plain.apply_each(views, [targets[index] for index in bucket.members])
            else:
                fixed.plain.apply(values, values)
            fixed.recorder.add_transfer(f"list {number}", bucket.nbytes, start, flight,
                                        fixed.reducers[0].wire_bytes(None, values))
        fixed.result_counts = [taken + 1 for taken in fixed.result_counts]
        fixed.results = list(results)

    # -- a new order -------------------------------------------------------------------------
    def reorder(self, fixed: FixedOrder, pinned: bool) -> Steps:
        """Replan buckets in rank 0's order of submission, unless a rank must keep its buckets."""
        count = len(fixed.specs)
        order = numpy.zeros((2, count + 1), numpy.int64)
        if self.comms.rank == 0:
            order[0, :count] = fixed.ready_order
        order[0, count] = pinned
        yield from self.barrier.wait(collective_step(fixed.step, ORDER))
        yield self.barrier.comm.Iallreduce(order[0], order[1], MPI.SUM)
        if not order[1, count]:
            fixed.replan(order[1, :count].tolist())

    # -- tuning ------------------------------------------------------------------------------
    def tune(self, tuner: Autotune, sample: float) -> Steps:
        """Pass the slowest rank's seconds to the tuner, and apply its next knobs."""
        seconds = numpy.array([sample, 0.0])
        yield from self.barrier.wait(collective_step(self.order.step, TUNE))
        yield self.barrier.comm.Iallreduce(seconds[:1], seconds[1:], MPI.MAX)
        retune(self.comms, self.order, tuner.next_knobs(float(seconds[1])))

    # -- sparse arrays -----------------------------------------------------------------------
    def reduce_sparse(self, indices: Any, values: Any, rows: list[Any]) -> Steps:
        """Sum rows of all ranks by their indices; append the results to a list."""
        settings, recipe = self.order.settings, self.order.settings.recipe
        self._other_count += 1
        yield from self.barrier.wait(collective_step(self.order.step, SPARSE, self._other_count))
        scaled = numpy.empty_like(values)
        copy_scaled(values, recipe.prescale, scaled)
        indices, total = yield from exchange_rows(self.data_comm, indices, scaled)
        result_scaling(settings.recipe, self.comms.size, False).apply(total, total)
        rows += indices, total

    # -- the start ---------------------------------------------------------------------------
    def broadcast(self, arrays: Sequence[Any], root: int) -> tuple[Steps, list[Any]]:
        """Return the task that broadcasts the root's arrays, and the list for its results."""
        specs = specs_of(arrays)
        entries = [TensorEntry(spec, dtype_of(spec.dtype), array)
                   for spec, array in zip(specs, arrays)]
        results: list[Any] = [None] * len(entries)

        def task() -> Steps:
            self._other_count += 1
            yield from self.barrier.wait(collective_step(self.order.step, START, self._other_count))
            check_agreement(self.barrier.comm, self.order.settings, specs)
            for bucket in plan_buckets(specs, self.order.settings.bucket_bytes, 0):
                members = [entries[index] for index in bucket.members]
                # As bytes, because MPI lacks some dtypes.
                packed = numpy.concatenate([_bytes(as_array(entry.view)) for entry in members])
                self.data_comm.Bcast(packed, root)
                start = 0
                for entry in members:
                    target = entry.target()
                    part = packed[start:start + entry.spec.nbytes]
                    if self.comms.rank != root or entry.result is not entry.array:
                        numpy.copyto(target, part.view(entry.view.dtype).reshape(target.shape))
                    start += entry.spec.nbytes
            results[:] = [entry.result for entry in entries]

        return task(), results

    # -- without data ------------------------------------------------------------------------
    def contribute_zeros(self, fixed: FixedOrder) -> Steps:
        """Join the steps of the other ranks with zeros, until no rank has data."""
        while True:
            yield from self.barrier.wait(None)
            now = self.barrier.next_step
            if now is None:
                fixed.restart()
                return
            kind = KINDS[now.kind]
            if kind == BUCKET:
                yield from fixed.contribute_zeros(now.number)
            elif kind == RUN:
                values = fixed.fusion_buffer.values(fixed.runs[now.number])
                values[...] = 0
                self.data_comm.Allreduce(MPI.IN_PLACE, values, OPS[fixed.recipe.op])
            else:
                raise ExchangeMismatch(f"this rank called join, and others call {now}, which needs "
                                       "data of all ranks")


def retune(comms: ExchangeCommunicators, order: FixedOrder | NegotiatedOrder,
           knobs: Knobs) -> None:
    """Apply other knobs, the same on all ranks; no transfer may be pending."""
    if knobs.algorithm != order.settings.algorithm:
        comms.choose(knobs.algorithm)
    order.retune(replace(order.settings, **asdict(knobs)))


def _pack(arrays: list[Any], views: list[Any], scale: float, values: Any) -> None:
    if scale == 1:
        numpy.concatenate([array.reshape(-1) for array in arrays], out=values)
        return
    for array, view in zip(arrays, views):
        copy_scaled(array, scale, view)


def _bytes(view: Any) -> Any:
    return numpy.ascontiguousarray(view).reshape(-1).view(numpy.uint8)
