"""Pending arrays: their inputs and the targets of their results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy

from hpccoll.errors import ExchangeMismatch
from hpccoll.training.arrays import as_array, fill, is_writable, to_host
from hpccoll.training.buckets import ArraySpec
from hpccoll.training.negotiation import Offer


class TensorEntry:
    """A submitted array, or zeros for ``None``; a writable array is its own result."""

    __slots__ = ("array", "done", "dtype", "result", "spec", "view")

    def __init__(self, spec: ArraySpec, dtype: numpy.dtype, array: Any):
        self.spec, self.dtype, self.array = spec, dtype, array
        self.result: Any = None
        self.done = False
        # Hot path, hundreds of calls in a step: the most common case comes first.
        view = array if type(array) is numpy.ndarray or array is None else as_array(array,
                                                                                    spec.name)
        if view is not None and (view.shape != spec.shape or view.dtype != dtype):
            raise ExchangeMismatch(
                f"array '{spec.name}' has shape {tuple(view.shape)} of {view.dtype.name}, declared "
                f"with shape {spec.shape} of {spec.dtype}; pass the declared shape and type, or "
                "create a new exchange", (spec.name,))
        self.view: Any = view

    def target(self) -> Any:
        """Return the output array of the result: the array itself, or a new one."""
        if self.view is not None and is_writable(self.view):
            self.result = self.array
            return self.view
        self.result = (numpy.empty(self.spec.shape, self.dtype) if self.view is None else
                       numpy.empty_like(self.view))
        return self.result


class DeclaredArrays:
    """Counts the results taken of each declared array; base of both orders."""

    def __init__(self, specs: Sequence[ArraySpec]):
        self.specs = specs
        self.results: list[Any] = [None] * len(specs)
        self.result_counts = [0] * len(specs)

    @property
    def step(self) -> int:
        """Number of steps whose results were all taken."""
        return min(self.result_counts, default=0)

    def is_submitted(self, index: int) -> bool:
        """Return True if an array was submitted and its result was not taken."""
        raise NotImplementedError

    def pending_arrays(self) -> list[int]:
        """Return the arrays whose results end the pending step."""
        step = self.step
        return [index for index, taken in enumerate(self.result_counts) if taken == step]

    def missing_arrays(self) -> list[int]:
        """Return the pending arrays that were not submitted."""
        return [index for index in self.pending_arrays() if not self.is_submitted(index)]


class Submission:
    """Arrays submitted under one name whose results were not yet returned.

    Args:
        entries: the arrays, all of one dtype.
        since: time of submission by ``time.perf_counter()``.

    Attributes:
        flat, result: their contiguous elements before and after the reduction.
        ready_everywhere: True if the arrays are ready on all ranks.
        done: True if the results are complete.
        pieces_left: number of incomplete pieces.
    """

    def __init__(self, offer: Offer, entries: Sequence[TensorEntry], since: float):
        self.offer, self.entries, self.since = offer, entries, since
        self.ready_everywhere, self.done, self.pieces_left = False, False, 0
        self.flat = numpy.concatenate([_elements(one) for one in entries]) if (
            len(entries) != 1) else _elements(entries[0])
        target = entries[0].target() if len(entries) == 1 else None
        # A contiguous NumPy array receives its result directly, without a copy.
        self._is_in_place = isinstance(target, numpy.ndarray) and target.flags.c_contiguous
        self.result = (target.reshape(-1) if target is not None and self._is_in_place else
                       numpy.empty_like(self.flat))

    @property
    def name(self) -> str:
        """Name under which the arrays were submitted."""
        return self.offer.name

    def finish(self) -> None:
        """Copy the results to their arrays."""
        start = 0
        for one in self.entries:
            if not self._is_in_place:
                part = self.result[start:start + one.spec.count].reshape(one.spec.shape)
                fill(one.target(), part)
            start += one.spec.count
        self.done = True

    def results(self) -> list[Any]:
        """Return the results, one for each array."""
        return [one.result for one in self.entries]


def _elements(one: TensorEntry) -> numpy.ndarray:
    if one.view is None:
        return numpy.zeros(one.spec.count, one.dtype)
    return to_host(one.view).reshape(-1)
