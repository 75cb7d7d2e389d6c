"""Negotiated order: arrays under any names in any order, agreed by votes.

    submit(offer, arrays) --> waiting --vote--> agreed --Urgency--> transfers on the lane

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
from hpccoll.training.exchange.communicators import Wiring
from hpccoll.training.exchange.fusion_buffer import vector
from hpccoll.training.exchange.reducing import BucketReducer, finish_of, is_float
from hpccoll.training.exchange.settings import PRIORITY, ExchangeSettings, Recipe
from hpccoll.training.exchange.step_metrics import Flight, Ledger
from hpccoll.training.exchange.tensor_entry import Brought, Parcel
from hpccoll.training.exchange.transfer import put
from hpccoll.training.negotiation import (
    JOINED,
    NOTHING_NEW,
    STATUS,
    Offer,
    Registry,
    completed_everywhere,
)
from hpccoll.training.order import ArrayPart, Urgency


class NegotiatedOrder:
    """Exchange of arrays that ranks submit in any order.

    Args:
        wiring: communicators and settings.
        engine: runs the tasks; the last lane is for votes only.
        ledger: records the times.
        specs: declared arrays, which :meth:`bring` and :meth:`take` address by index.

    Attributes:
        parcels: submitted arrays whose results were not taken, by name.
        underway: number of parcels without a result.
        waiting: number of callers that wait for a result.
        votes: number of votes.
        joined: True if this rank has no more data; ``everybody``: True if no rank has.
        last: the rank that ran out of data last.
        taken, results: number of results taken of each declared array, and the last result.
    """

    def __init__(self, wiring: Wiring, engine: Engine, ledger: Ledger,
                 specs: Sequence[ArraySpec] = ()):
        self.size, self.rank = wiring.size, wiring.rank
        self.engine, self.ledger, self.comm = engine, ledger, wiring.votes
        self.specs = specs
        self.registry = Registry(wiring.size)
        self.lane = BucketReducer(wiring.lanes[0], wiring.settings)
        self.retune(wiring.settings)
        self.parcels: dict[str, Parcel] = {}
        self.waiting, self.votes, self.underway = 0, 0, 0
        self.joined = self.everybody = False
        self.last = 0
        self.taken = [0] * len(specs)
        self.results: list[Any] = [None] * len(specs)
        self.reductions: dict[str, Reduction | None] = {}
        self._memory: dict[str, Any] = {}
        self._fresh: dict[str, Parcel] = {}  # not yet agreed
        self._fresh_bytes = 0
        self._voting = False
        self._left: set[int] = set()  # ranks that have announced that they have no more data
        self._step: set[str] = set()
        self._expected: set[str] = set()

    # -- submission --------------------------------------------------------------------------
    def submit(self, name: str, specs: Sequence[ArraySpec], arrays: Sequence[Any],
               recipe: Recipe, priority: int = 0) -> Parcel:
        """Submit arrays under one name.

        Raises:
            ExchangeMismatch: the name is already pending, or dtypes differ within a group.
        """
        if name in self.parcels:
            raise ExchangeMismatch(f"array passed to ready() twice: '{name}'; call wait() before "
                                   "the next ready()", (name,))
        if len({spec.dtype for spec in specs}) != 1:
            raise ExchangeMismatch(f"arrays of group '{name}' have different types", (name,))
        for spec in specs:
            recipe.check(spec.name, spec.dtype)
        offer = Offer(name, tuple(spec.shape for spec in specs), specs[0].dtype, recipe.op,
                      recipe.prescale, recipe.postscale, priority)
        now = time.perf_counter()
        parcel = Parcel(offer, [Brought(spec, dtype_of(spec.dtype), array)
                                for spec, array in zip(specs, arrays, strict=True)], now)
        if not self.underway:
            # A step begins; it is complete when all names of the last step are submitted again.
            self._expected, self._step = self._step, set()
        self._step.add(name)
        self._expected.discard(name)
        self.underway += 1
        self.parcels[name] = self._fresh[name] = parcel
        self._fresh_bytes += parcel.flat.nbytes
        self.ledger.came(name, now, parcel.flat.nbytes)
        if self._has_reason():
            self.engine.nudge()
        return parcel

    def bring(self, index: int, array: Any) -> None:
        """Submit a declared array; ``None`` stands for zeros."""
        spec = self.specs[index]
        self.submit(spec.name, [spec], [array], self.settings.recipe, index)

    @property
    def step(self) -> int:
        """Number of steps whose results were all taken."""
        return min(self.taken, default=0)

    def has(self, index: int) -> bool:
        """Return True if a declared array was submitted and its result was not taken."""
        return self.specs[index].name in self.parcels

    def begun(self) -> list[str]:
        """Return the submitted names whose results were not taken."""
        return list(self.parcels)

    def lacks(self, name: str, step: int) -> bool:
        """Return True if an array was not submitted; ranks count steps independently here."""
        return name not in self.parcels

    def expect(self, callers: int) -> None:
        """Add ``callers`` to the waiting callers, which is a reason to vote."""
        self.waiting += callers

    def pending(self) -> list[int]:
        """Return the declared arrays whose results end the pending step."""
        step = self.step
        return [index for index, taken in enumerate(self.taken) if taken == step]

    def missing(self) -> list[int]:
        """Return the pending arrays that were not submitted."""
        return [index for index in self.pending() if not self.has(index)]

    def is_done(self, index: int) -> bool:
        """Return True if a result can be taken."""
        parcel = self.parcels.get(self.specs[index].name)
        return parcel is None or parcel.done

    def take(self, index: int) -> Any:
        """Take and return the result of a declared array; it may be submitted again."""
        if self.has(index):
            self.results[index] = self.parcels.pop(self.specs[index].name).results()[0]
            self.taken[index] += 1
        return self.results[index]

    def unfinished(self) -> list[str]:
        """Return the submitted names without a result."""
        return [parcel.name for parcel in list(self.parcels.values()) if not parcel.done]

    def retune(self, settings: ExchangeSettings) -> None:
        """Apply other limits; no transfer may be pending."""
        self.settings = self.lane.settings = settings
        fused = (settings.partition_bytes if settings.order == PRIORITY else
                 settings.bucket_bytes)
        self.urgency = Urgency(settings.partition_bytes, fused, settings.credit_bytes)
        self._completed = 0  # completed here, but not known to be so on all ranks

    # -- votes -------------------------------------------------------------------------------
    def look(self) -> bool:
        """Start a vote if there is a reason; called in each poll of the engine."""
        if self._voting or not self._has_reason():
            return False
        self._voting = True
        self.engine.submit(len(self.engine.lanes) - 1, self._vote())
        return True

    def _has_reason(self) -> bool:
        if self.joined:
            return not self.everybody
        if len(self.urgency) and self._completed:
            return True
        fresh = next(iter(self._fresh.values()), None)
        return fresh is not None and (
            self.waiting > 0 or not self._expected and len(self.registry.slots) > 0
            or self._fresh_bytes >= self.settings.bucket_bytes
            or time.perf_counter() - fresh.since > self.settings.vote_seconds)

    def _vote(self) -> Steps:
        registry = self.registry
        offers = [parcel.offer for parcel in list(self._fresh.values())]
        unknown = [offer for offer in offers
                   if not registry.knows(offer) and not registry.described(offer, self.rank)]
        new = bool(unknown) or self.joined and self.rank not in self._left
        mine = registry.bits(filter(registry.knows, offers), new, self.joined, self._completed)
        vote = numpy.empty_like(mine)
        yield self.comm.Iallreduce(mine, vote, MPI.BAND)
        self.votes += 1
        completed = completed_everywhere(vote)
        self._completed -= completed
        self.urgency.complete(completed)
        everybody = bool(vote[STATUS] & JOINED)
        names = [] if everybody else registry.agreed(vote)
        if not vote[STATUS] & NOTHING_NEW:
            everyone = yield from _allgather(self.comm, json.dumps([self.joined, unknown]).encode())
            joined = [bool(left) for left, _ in everyone]
            names += registry.announced([map(Offer.read, said) for _, said in everyone], joined)
            now = {rank for rank, left in enumerate(joined) if left}
            self.last = max(now - self._left, default=self.last)
            self._left = now
        self._begin(names)
        self.everybody, self._voting = everybody, False

    def _begin(self, names: Sequence[str]) -> None:
        """Start the transfers of names that are ready on all ranks."""
        for name in names:
            offer = self.registry.offers[name]
            count = sum(map(math.prod, offer.shapes))
            whole = self._is_whole(offer)
            kind = (offer.dtype, offer.op, offer.prescale, offer.postscale, name if whole else "")
            left = self.urgency.add(
                name, count, dtype_of(offer.dtype).itemsize,
                offer.priority if self.settings.order == PRIORITY else 0, kind, whole)
            parcel = self._fresh.pop(name, None)
            if parcel is not None:
                self._fresh_bytes -= parcel.flat.nbytes
                parcel.agreed, parcel.left = True, left
        for pieces in self.urgency.pick():
            self.engine.submit(0, self._travel(pieces))

    def leave(self) -> None:
        """Announce that this rank has no more data, until no rank has."""
        self.joined, self.everybody = True, False
        self.engine.nudge()

    def come_back(self) -> None:
        """Reset the joined state of all ranks, for another pass over the data."""
        self.joined = self.everybody = False
        self._left = set()
        self.taken = [0] * len(self.specs)

    def _is_whole(self, offer: Offer) -> bool:
        """Return True if the reduction requires an array to be sent alone and in one piece."""
        return offer.op == "adasum" or self.settings.compress is not None and is_float(offer.dtype)

    # -- transfers ---------------------------------------------------------------------------
    def _travel(self, pieces: Sequence[ArrayPart]) -> Steps:
        """Task of one transfer."""
        offer, start = self.registry.offers[pieces[0].name], time.perf_counter()
        recipe = Recipe(offer.op, offer.prescale, offer.postscale)
        values = self._room(offer.dtype, sum(piece.stop - piece.start for piece in pieces))
        parts, where = [], 0
        for piece in pieces:
            part = values[where:where + piece.stop - piece.start]
            where += len(part)
            parcel = self.parcels.get(piece.name)
            if parcel is None:
                part[...] = 0
            else:
                put(parcel.flat[piece.start:piece.stop], recipe.prescale, part)
            parts.append((parcel, piece, part))
        reduction = self._reduction(offer, recipe)
        yield from self.lane.run(reduction, recipe, values, [piece.name for piece in pieces])
        finish = finish_of(recipe, self.size, reduction is not None and offer.op != "adasum")
        for parcel, piece, part in parts:
            if parcel is not None:
                finish.apply(part, parcel.result[piece.start:piece.stop])
                parcel.left -= 1
                if not parcel.left:
                    parcel.finish()
                    self.underway -= 1
        self._completed += self.settings.credit_bytes > 0
        since = max((parcel.since for parcel, _, _ in parts if parcel is not None), default=start)
        name = pieces[0].name + (f" and {len(pieces) - 1} more" if len(pieces) > 1 else "")
        self.ledger.flew(Flight(name, values.nbytes, since, start, time.perf_counter(),
                                self.lane.wire_bytes(reduction, values)))

    def _reduction(self, offer: Offer, recipe: Recipe) -> Reduction | None:
        if not self._is_whole(offer):
            return None
        kept = self.reductions.get(offer.name)
        if kept is None or kept.shapes != offer.shapes:
            kept = self.lane.start(recipe, offer.dtype, offer.shapes)
            self.reductions[offer.name] = kept
        return kept

    def _room(self, dtype: str, count: int) -> Any:
        """Return the buffer of one transfer; it grows on all ranks together."""
        memory = self._memory.get(dtype)
        if memory is None or len(memory) < count:
            # Powers of two, because registered memory is not freed before the communicator.
            memory = vector(self.lane.lane, 1 << max(count - 1, 1).bit_length(), dtype)
            self._memory[dtype] = memory
        return memory[:count]

    # -- state of reductions -----------------------------------------------------------------
    def state(self) -> dict[str, State]:
        """Return the states of reductions by name; collective."""
        return {name: reduction.state() for name, reduction in sorted(self.reductions.items())
                if reduction is not None}

    def load(self, state: dict[str, State]) -> None:
        """Restore a state that :meth:`state` returned.

        Raises:
            ExchangeError: it contains an array that was not exchanged yet.
        """
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
