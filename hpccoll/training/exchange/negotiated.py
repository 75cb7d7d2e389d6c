"""Negotiated order: arrays under any names in any order, agreed by votes.

    submit(name, specs, arrays) --> new --vote--> ready everywhere --scheduler--> transfers

A rank votes if it has new information and one of these holds: all arrays of the last step are
ready again; enough bytes are ready; a caller waits; an array has waited for the limit; or completed
transfers block others. A vote completes when all ranks have voted, so a step whose arrays fit into
one bucket takes one vote. All ranks derive the same transfers from a vote.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from typing import Any

import numpy
from mpi4py import MPI

from hpccoll.errors import ExchangeError, ExchangeMismatch
from hpccoll.training.arrays import dtype_of
from hpccoll.training.buckets import ArraySpec
from hpccoll.training.compress.scheme import Reduction, Steps
from hpccoll.training.compress.states import State
from hpccoll.training.engine import Engine
from hpccoll.training.exchange.communicators import ExchangeCommunicators
from hpccoll.training.exchange.fusion_buffer import allocate_vector
from hpccoll.training.exchange.reducing import BucketReducer, is_float, result_scaling
from hpccoll.training.exchange.settings import PRIORITY, ExchangeSettings, Recipe
from hpccoll.training.exchange.tensor_entry import DeclaredArrays, Submission, TensorEntry
from hpccoll.training.exchange.transfer import copy_scaled
from hpccoll.training.negotiation import (
    JOINED,
    NOTHING_NEW,
    STATUS,
    ArrayPart,
    Offer,
    PriorityScheduler,
    Registry,
    completed_everywhere,
)
from hpccoll.training.trace import READY, Recorder


class NegotiatedOrder(DeclaredArrays):
    """Exchange of arrays that ranks submit in any order.

    Args:
        engine: runs the tasks; the last queue is for votes only.
        specs: declared arrays, which :meth:`mark_ready` and :meth:`take_result` address by index.

    Attributes:
        submissions: submitted arrays whose results were not taken, by name.
        pending_count: number of submissions without a result.
        waiter_count: number of callers that wait for a result.
        vote_count: number of votes.
        has_joined, all_joined: True if this rank, or every rank, has no more data.
    """

    def __init__(self, comms: ExchangeCommunicators, engine: Engine, recorder: Recorder,
                 specs: Sequence[ArraySpec] = ()):
        super().__init__(specs)
        self.size, self.rank = comms.size, comms.rank
        self.engine, self.recorder, self.comm = engine, recorder, comms.votes
        self.registry = Registry(comms.size)
        self.reducer = BucketReducer(comms.data_comms[0], comms.settings)
        self.retune(comms.settings)
        self.submissions: dict[str, Submission] = {}
        self.waiter_count, self.vote_count, self.pending_count = 0, 0, 0
        self.has_joined = self.all_joined = False
        self.last = 0
        self.reductions: dict[str, Reduction | None] = {}
        self._memory: dict[str, Any] = {}
        self._new_submissions: dict[str, Submission] = {}  # not yet agreed
        self._new_bytes = 0
        self._voting = False
        #: Ranks that have announced that they have no more data.
        self._joined_ranks: set[int] = set()
        self._step_names: set[str] = set()
        self._awaited_names: set[str] = set()

    # -- submission --------------------------------------------------------------------------
    def submit(self, name: str, specs: Sequence[ArraySpec], arrays: Sequence[Any],
               recipe: Recipe, priority: int = 0) -> Submission:
        """Submit arrays under one name."""
        if name in self.submissions:
            raise ExchangeMismatch(f"array passed to ready() twice: '{name}'; call wait() before "
                                   "the next ready()", (name,))
        if len({spec.dtype for spec in specs}) != 1:
            raise ExchangeMismatch(f"arrays of group '{name}' have different types", (name,))
        for spec in specs:
            recipe.check(spec.name, spec.dtype)
        offer = Offer(name, tuple(spec.shape for spec in specs), specs[0].dtype, recipe.op,
                      recipe.prescale, recipe.postscale, priority)
        now = time.perf_counter()
        parcel = Submission(offer, [TensorEntry(spec, dtype_of(spec.dtype), array)
                                    for spec, array in zip(specs, arrays, strict=True)], now)
        if not self.pending_count:
            # A step begins; it is complete when all names of the last step are submitted again.
            self._awaited_names, self._step_names = self._step_names, set()
        self._step_names.add(name)
        self._awaited_names.discard(name)
        self.pending_count += 1
        self.submissions[name] = self._new_submissions[name] = parcel
        self._new_bytes += parcel.flat.nbytes
        self.recorder.add(name, READY, now, now, parcel.flat.nbytes)
        if self._has_reason():
            self.engine.wake()
        return parcel

    def mark_ready(self, index: int, array: Any) -> None:
        """Submit a declared array; ``None`` stands for zeros."""
        spec = self.specs[index]
        self.submit(spec.name, [spec], [array], self.settings.recipe, index)

    def is_submitted(self, index: int) -> bool:
        """Return True if a declared array was submitted and its result was not taken."""
        return self.specs[index].name in self.submissions

    def submitted_names(self) -> list[str]:
        """Return the submitted names whose results were not taken."""
        return list(self.submissions)

    def is_missing(self, name: str, step: int) -> bool:
        """Return True if an array was not submitted; ranks count steps independently here."""
        return name not in self.submissions

    def add_waiters(self, callers: int) -> None:
        """Add ``callers`` to the waiting callers, which is a reason to vote."""
        self.waiter_count += callers

    def is_done(self, index: int) -> bool:
        """Return True if a result can be taken."""
        parcel = self.submissions.get(self.specs[index].name)
        return parcel is None or parcel.done

    def take_result(self, index: int) -> Any:
        """Return the result of a declared array and mark it as taken."""
        if self.is_submitted(index):
            self.results[index] = self.submissions.pop(self.specs[index].name).results()[0]
            self.result_counts[index] += 1
        return self.results[index]

    def unfinished_names(self) -> list[str]:
        """Return the submitted names without a result."""
        return [parcel.name for parcel in list(self.submissions.values()) if not parcel.done]

    def retune(self, settings: ExchangeSettings) -> None:
        """Apply other limits; no transfer may be pending."""
        self.settings = self.reducer.settings = settings
        fused = (settings.partition_bytes if settings.order == PRIORITY else
                 settings.bucket_bytes)
        self.scheduler = PriorityScheduler(settings.partition_bytes, fused, settings.credit_bytes)
        self._completed_count = 0  # completed on this rank, perhaps not on all

    # -- votes -------------------------------------------------------------------------------
    def poll(self) -> bool:
        """Start a vote if there is a reason; called in each poll of the engine."""
        if self._voting or not self._has_reason():
            return False
        self._voting = True
        self.engine.submit(-1, self._vote())
        return True

    def _has_reason(self) -> bool:
        if self.has_joined:
            return not self.all_joined
        if len(self.scheduler) and self._completed_count:
            return True
        fresh = next(iter(self._new_submissions.values()), None)
        return fresh is not None and (
            self.waiter_count > 0 or not self._awaited_names and len(self.registry.slots) > 0
            or self._new_bytes >= self.settings.bucket_bytes
            or time.perf_counter() - fresh.since > self.settings.vote_seconds)

    def _vote(self) -> Steps:
        registry = self.registry
        offers = [parcel.offer for parcel in list(self._new_submissions.values())]
        unknown = [offer for offer in offers
                   if not registry.has_offer(offer) and not registry.is_described(offer, self.rank)]
        new = bool(unknown) or self.has_joined and self.rank not in self._joined_ranks
        mine = registry.bits(filter(registry.has_offer, offers), new, self.has_joined,
                             self._completed_count)
        vote = numpy.empty_like(mine)
        yield self.comm.Iallreduce(mine, vote, MPI.BAND)
        self.vote_count += 1
        completed = completed_everywhere(vote)
        self._completed_count -= completed
        self.scheduler.complete(completed)
        everybody = bool(vote[STATUS] & JOINED)
        names = [] if everybody else registry.ready_names(vote)
        if not vote[STATUS] & NOTHING_NEW:
            everyone = yield from _allgather(self.comm,
                                             json.dumps([self.has_joined, unknown]).encode())
            joined = [bool(left) for left, _ in everyone]
            names += registry.add_descriptions([map(Offer.read, said) for _, said in everyone],
                                               joined)
            now = {rank for rank, left in enumerate(joined) if left}
            self.last = max(now - self._joined_ranks, default=self.last)
            self._joined_ranks = now
        self._start_transfers(names)
        self.all_joined, self._voting = everybody, False

    def _start_transfers(self, names: Sequence[str]) -> None:
        for name in names:
            offer = self.registry.offers[name]
            count = sum(map(math.prod, offer.shapes))
            whole = self._is_unfused(offer)
            kind = (offer.dtype, offer.op, offer.prescale, offer.postscale, name if whole else "")
            left = self.scheduler.add(
                name, count, dtype_of(offer.dtype).itemsize,
                offer.priority if self.settings.order == PRIORITY else 0, kind, whole)
            parcel = self._new_submissions.pop(name, None)
            if parcel is not None:
                self._new_bytes -= parcel.flat.nbytes
                parcel.ready_everywhere, parcel.pieces_left = True, left
        for pieces in self.scheduler.pick():
            self.engine.submit(0, self._transfer(pieces))

    def announce_join(self) -> None:
        """Announce that this rank has no more data, until all ranks have joined."""
        self.has_joined, self.all_joined = True, False
        self.engine.wake()

    def reset_join(self) -> None:
        """Reset the joined state of all ranks, for another pass over the data."""
        self.has_joined = self.all_joined = False
        self._joined_ranks = set()
        self.result_counts = [0] * len(self.specs)

    def _is_unfused(self, offer: Offer) -> bool:
        """Return True if the reduction requires an array to be sent alone and in one piece."""
        return offer.op == "adasum" or self.settings.compress is not None and is_float(offer.dtype)

    # -- transfers ---------------------------------------------------------------------------
    def _transfer(self, pieces: Sequence[ArrayPart]) -> Steps:
        offer, start = self.registry.offers[pieces[0].name], time.perf_counter()
        recipe = Recipe(offer.op, offer.prescale, offer.postscale)
        values = self._buffer(offer.dtype, sum(piece.stop - piece.start for piece in pieces))
        parts, where = [], 0
        for piece in pieces:
            part = values[where:where + piece.stop - piece.start]
            where += len(part)
            parcel = self.submissions.get(piece.name)
            if parcel is None:
                part[...] = 0
            else:
                copy_scaled(parcel.flat[piece.start:piece.stop], recipe.prescale, part)
            parts.append((parcel, piece, part))
        reduction = self._reduction(offer, recipe)
        yield from self.reducer.run(reduction, recipe, values, [piece.name for piece in pieces])
        finish = result_scaling(recipe, self.size, reduction is not None and offer.op != "adasum")
        for parcel, piece, part in parts:
            if parcel is not None:
                finish.apply(part, parcel.result[piece.start:piece.stop])
                parcel.pieces_left -= 1
                if not parcel.pieces_left:
                    parcel.finish()
                    self.pending_count -= 1
        self._completed_count += self.settings.credit_bytes > 0
        since = max((parcel.since for parcel, _, _ in parts if parcel is not None), default=start)
        name = pieces[0].name + (f" and {len(pieces) - 1} more" if len(pieces) > 1 else "")
        self.recorder.add_transfer(name, values.nbytes, since, start,
                                   self.reducer.wire_bytes(reduction, values))

    def _reduction(self, offer: Offer, recipe: Recipe) -> Reduction | None:
        if not self._is_unfused(offer):
            return None
        kept = self.reductions.get(offer.name)
        if kept is None or kept.shapes != offer.shapes:
            kept = self.reducer.start(recipe, offer.dtype, offer.shapes)
            self.reductions[offer.name] = kept
        return kept

    def _buffer(self, dtype: str, count: int) -> Any:
        """Return the buffer of one transfer; it grows on all ranks together."""
        memory = self._memory.get(dtype)
        if memory is None or len(memory) < count:
            # Powers of two, because registered memory is not freed before the communicator.
            memory = allocate_vector(self.reducer.comm, 1 << max(count - 1, 1).bit_length(), dtype)
            self._memory[dtype] = memory
        return memory[:count]

    # -- state of reductions -----------------------------------------------------------------
    def state(self) -> dict[str, State]:
        """Return the states of reductions by name; collective."""
        return {name: reduction.state() for name, reduction in sorted(self.reductions.items())
                if reduction is not None}

    def load(self, state: dict[str, State]) -> None:
        """Restore a state that :meth:`state` returned."""
        for name, kept in state.items():
            reduction = self.reductions.get(name)
            if reduction is None:
                raise ExchangeError(f"array '{name}' has no state yet; exchange it once, or "
                                    "declare it with order='fixed'", (name,))
            reduction.load(kept)


def _allgather(comm: Any, said: bytes) -> Any:
    """Task that gathers and decodes a message of each rank."""
    lengths = numpy.empty(comm.Get_size(), numpy.int64)
    yield comm.Iallgather(numpy.array([len(said)], numpy.int64), lengths)
    everything = numpy.empty(lengths.sum(), numpy.uint8)
    yield comm.Iallgatherv(numpy.frombuffer(said, numpy.uint8), [everything, lengths.tolist()])
    ends = numpy.cumsum(lengths)
    return [json.loads(everything[end - length:end].tobytes())
            for end, length in zip(ends, lengths)]
