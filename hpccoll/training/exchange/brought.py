"""Arrays on their way: where they came from, and where their results go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy

from hpccoll.errors import ExchangeMismatch
from hpccoll.training.arrays import fill, on_host, seen, writable
from hpccoll.training.buckets import ArraySpec
from hpccoll.training.negotiation import Offer


class Brought:
    """An array that was brought, or that is made up for a rank that has none.

    Args:
        spec: what it must be.
        dtype: its type.
        array: what came; ``None`` stands for zeros.

    Attributes:
        view: it, as an array of NumPy or CuPy.
        result: the array itself where it can be written, else a new one; ``None`` until it is done.
        done: the result is there.

    Raises:
        ExchangeMismatch: shape or type are not those of the specification.
    """

    __slots__ = ("array", "done", "dtype", "result", "spec", "view")

    def __init__(self, spec: ArraySpec, dtype: numpy.dtype, array: Any):
        self.spec, self.dtype, self.array = spec, dtype, array
        self.result: Any = None
        self.done = False
        # By the hundred in every step: what is most common comes first.
        view = array if type(array) is numpy.ndarray or array is None else seen(array, spec.name)
        if view is not None and (view.shape != spec.shape or view.dtype != dtype):
            raise ExchangeMismatch(
                f"array '{spec.name}' has shape {tuple(view.shape)} of {view.dtype.name}, declared "
                f"with shape {spec.shape} of {spec.dtype}; pass the declared shape and type, or "
                "create a new exchange", (spec.name,))
        self.view: Any = view

    def target(self) -> Any:
        """Where the result is written: the array, or a new one."""
        if self.view is not None and writable(self.view):
            self.result = self.array
            return self.view
        self.result = (numpy.empty(self.spec.shape, self.dtype) if self.view is None else
                       numpy.empty_like(self.view))
        return self.result


class Parcel:
    """Arrays that were submitted under one name, until their results were taken.

    Args:
        offer: what other ranks are told of it.
        brought: the arrays, all of one type.
        since: when it was submitted, by ``time.perf_counter()``.

    Attributes:
        flat, result: their elements one behind the other, before and after.
        agreed: all ranks have it.
        done: the results are there.
        left: pieces that are not there yet.
    """

    def __init__(self, offer: Offer, brought: Sequence[Brought], since: float):
        self.offer, self.brought, self.since = offer, brought, since
        self.agreed, self.done, self.left = False, False, 0
        self.flat = numpy.concatenate([_elements(one) for one in brought]) if (
            len(brought) != 1) else _elements(brought[0])
        target = brought[0].target() if len(brought) == 1 else None
        # Results go straight to where they belong, if that is one stretch of host memory.
        self._direct = isinstance(target, numpy.ndarray) and target.flags.c_contiguous
        self.result = (target.reshape(-1) if target is not None and self._direct else
                       numpy.empty_like(self.flat))

    @property
    def name(self) -> str:
        """Under which it was submitted."""
        return self.offer.name

    def finish(self) -> None:
        """Bring the results to their arrays."""
        start = 0
        for one in self.brought:
            if not self._direct:
                part = self.result[start:start + one.spec.count].reshape(one.spec.shape)
                fill(one.target(), part)
            start += one.spec.count
        self.done = True

    def results(self) -> list[Any]:
        """The results, one for each array."""
        return [one.result for one in self.brought]


def _elements(one: Brought) -> numpy.ndarray:
    if one.view is None:
        return numpy.zeros(one.spec.count, one.dtype)
    return on_host(one.view).reshape(-1)
