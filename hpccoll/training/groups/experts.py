"""Experts: tokens go to the ranks of the experts that they chose, and come back.

How many tokens a rank gets is known only when all have chosen: counts are exchanged first, then
rows. A token may choose several experts; what comes back is weighted and added up. An expert takes
at most ``capacity`` tokens of each rank: first choices go first, in the order of the tokens
(GShard: Lepikhin et al., 2021); what is dropped comes back as zeros, and is counted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy

from hpccoll.errors import ArgumentError
from hpccoll.errors.waits import rank_list
from hpccoll.training.groups.sequence import cuts

#: A count that says: this rank's choices cannot be used.
REFUSED = -1


class Experts:
    """Experts on ranks.

    Args:
        comm: the ranks among which the experts are divided, such as ``mesh.ep``.
        experts: how many; or how many each rank has, in order.
        capacity: tokens of one rank that an expert takes; all if omitted.

    Attributes:
        cuts: rank r has the experts ``cuts[r]`` to ``cuts[r + 1] - 1``.

    Raises:
        ArgumentError: numbers that make no sense.
    """

    def __init__(self, comm: Any, experts: int | Sequence[int], capacity: int | None = None):
        size = comm.Get_size()
        if isinstance(experts, int):
            self.cuts = cuts(max(experts, 0), size)
        else:
            self.cuts = (0, *numpy.cumsum(experts, dtype=int).tolist())
        if len(self.cuts) != size + 1 or self.cuts[-1] < 1 or min(numpy.diff(self.cuts)) < 0:
            raise ArgumentError("experts", f"got {experts!r} for {size} ranks",
                                "pass a number of at least 1, or one per rank")
        if capacity is not None and capacity < 1:
            raise ArgumentError("capacity", f"is {capacity}", "give at least 1, or None")
        self.comm, self.capacity = comm, capacity

    def dispatch(self, tokens: Any, chosen: Any, weights: Any = None) -> Dispatch:
        """Send tokens to the experts that they chose; collective.

        Args:
            tokens: shape ``[n, ...]``, one row each; ranks may have different n.
            chosen: shape ``[n]`` or ``[n, k]``: numbers of experts, the first choice first.
            weights: of the shape of ``chosen``; 1 if omitted.

        Raises:
            ArgumentError: shapes that do not fit, or an expert that there is not; on all ranks,
                and names those at fault.
        """
        tokens, problem = numpy.ascontiguousarray(tokens), ""
        try:
            chosen, weights = self._checked(len(tokens), chosen, weights)
        except ArgumentError as error:
            problem, chosen = str(error), numpy.empty((len(tokens), 0), int)
            weights = chosen
        # As rows are sent: by expert, which is by rank, too; of one expert as they were kept.
        token, choice = self._kept(chosen)
        order = numpy.argsort(chosen[token, choice], kind="stable")
        token, choice = token[order], choice[order]
        counts = numpy.bincount(chosen[token, choice], minlength=self.cuts[-1])
        awaited = self._exchange_counts(counts, problem)
        return Dispatch(self, tokens, weights, (token, choice), counts, awaited)

    def _checked(self, count: int, chosen: Any, weights: Any) -> tuple[Any, Any]:
        """Choices and weights of shape [n, k]."""
        chosen = _columns(chosen)
        if chosen.ndim != 2 or len(chosen) != count:
            raise ArgumentError("chosen", f"has shape {chosen.shape} for {count} tokens",
                                "pass one row of choices per token")
        if chosen.dtype.kind not in "iu" and chosen.size:
            raise ArgumentError("chosen", f"has elements of type {chosen.dtype}",
                                "pass the indices of experts")
        if chosen.size and not 0 <= chosen.min() <= chosen.max() < self.cuts[-1]:
            raise ArgumentError("chosen", f"contains experts {chosen.min()} to {chosen.max()}",
                                f"valid experts are 0 to {self.cuts[-1] - 1}")
        weights = numpy.ones(chosen.shape, "f4") if weights is None else _columns(weights)
        if weights.shape != chosen.shape:
            raise ArgumentError("weights", f"have shape {weights.shape}, choices have shape "
                                           f"{chosen.shape}", "pass one weight per choice")
        return chosen.astype(int), weights

    def _kept(self, chosen: Any) -> tuple[Any, Any]:
        """Tokens and choices that are within the capacity, first choices first."""
        choice, token = numpy.divmod(numpy.arange(chosen.size), max(len(chosen), 1))
        experts = chosen.T.reshape(-1)
        if self.capacity is None:
            return token, choice
        order = numpy.argsort(experts, kind="stable")
        ordered = experts[order]
        place = numpy.arange(len(ordered)) - numpy.searchsorted(ordered, ordered)
        kept = numpy.sort(order[place < self.capacity])
        return token[kept], choice[kept]

    def _exchange_counts(self, counts: Any, problem: str) -> Any:
        """Tokens that every rank sends to each of this rank's experts, shape [P, my experts].

        Raises:
            ArgumentError: on all ranks, if any rank has a problem.
        """
        comm, rank = self.comm, self.comm.Get_rank()
        lengths, mine = numpy.diff(self.cuts), self.cuts[rank + 1] - self.cuts[rank]
        # One number more for every rank, which also ranks without experts get.
        sent = numpy.concatenate([[REFUSED if problem else 0, *counts[start:stop]]
                                  for start, stop in zip(self.cuts, self.cuts[1:])]).astype("i8")
        awaited = numpy.empty((comm.Get_size(), mine + 1), "i8")
        comm.Alltoallv([sent, (lengths + 1).tolist()],
                       [awaited, [mine + 1] * comm.Get_size()])
        refusing = numpy.flatnonzero(awaited[:, 0] == REFUSED).tolist()
        if refusing:
            raise ArgumentError("dispatch", f"invalid arguments on {rank_list(refusing)}"
                                            f"{f' ({problem})' * bool(problem)}",
                                "no token was sent")
        return awaited[:, 1:]


class Dispatch:
    """Tokens at their experts, and the way back; made by :meth:`Experts.dispatch`.

    Attributes:
        tokens: shape ``[m, ...]``: the rows that came, expert by expert, and for each in the order
            of the ranks they came from.
        counts: of them for each of this rank's experts.
        dropped: choices of this rank that an expert had no room for.
    """

    def __init__(self, owner: Experts, tokens: Any, weights: Any, kept: tuple[Any, Any],
                 counts: Any, awaited: Any):
        self._comm, self._weights, self._kept = owner.comm, weights, kept
        self._rows = len(tokens)
        self._sent = [int(counts[start:stop].sum())
                      for start, stop in zip(owner.cuts, owner.cuts[1:])]
        self._awaited = awaited.sum(1).tolist()
        self.counts, self.dropped = awaited.sum(0), weights.size - len(kept[0])
        # Rows come rank by rank; the order that makes them come expert by expert.
        numbers = numpy.tile(numpy.arange(awaited.shape[1]), len(awaited))
        self._order = numpy.argsort(numpy.repeat(numbers, awaited.reshape(-1)), kind="stable")
        self._returned: Any = None
        self.tokens = self._there(tokens[kept[0]])

    def combine(self, outputs: Any) -> Any:
        """Bring the experts' outputs back; collective.

        Args:
            outputs: shape ``[m, ...]``: a row for each of ``tokens``, in their order.

        Returns:
            Shape ``[n, ...]``: for each token the weighted sum over its choices, the first one
            first; zeros where all were dropped.

        Raises:
            ArgumentError: another number of rows.
        """
        self._returned = self._back(outputs)
        return self._summed(self._weighted(self._returned))

    def combine_gradients(self, gradients: Any) -> tuple[Any, Any]:
        """The gradients of :meth:`combine`; collective.

        Args:
            gradients: of its result, shape ``[n, ...]``.

        Returns:
            Those of the outputs, shape ``[m, ...]``, and of the weights, shape ``[n, k]``: zero
            where a choice was dropped.

        Raises:
            ArgumentError: another shape, or ``combine`` was not called.
        """
        if self._returned is None:
            raise ArgumentError("combine_gradients", "requires a preceding combine",
                                "call combine first")
        token, choice = self._kept
        rows = self._checked("gradients", gradients, self._rows)[token]
        of_weights = numpy.zeros(self._weights.shape, self._weights.dtype)
        # Sums of 16-bit numbers are added up in 32 bits.
        wide = numpy.result_type(self._weights.dtype, "f4")
        products = rows.astype(wide) * self._returned.astype(wide)
        of_weights[token, choice] = products.reshape(len(rows), -1).sum(1)
        return self._there(self._weighted(rows)), of_weights

    def token_gradients(self, gradients: Any) -> Any:
        """The gradient of the tokens that were sent; collective.

        Args:
            gradients: of ``tokens``, shape ``[m, ...]``.

        Returns:
            Shape ``[n, ...]``: for each token the sum over its choices.

        Raises:
            ArgumentError: another number of rows.
        """
        return self._summed(self._back(gradients))

    def _there(self, rows: Any) -> Any:
        """Bring rows to the experts."""
        return self._move(rows, self._sent, self._awaited)[self._order]

    def _back(self, rows: Any) -> Any:
        """Bring rows back from the experts, to the order in which they were sent."""
        rows = self._checked("outputs", rows, len(self._order))
        unsorted = numpy.empty_like(rows, order="C")
        unsorted[self._order] = rows
        return self._move(unsorted, self._awaited, self._sent)

    def _move(self, rows: Any, sent: Sequence[int], awaited: Sequence[int]) -> Any:
        row = math.prod(rows.shape[1:])
        out = numpy.empty_like(rows, shape=(sum(awaited), *rows.shape[1:]), order="C")
        self._comm.Alltoallv(
            [numpy.ascontiguousarray(rows).reshape(-1), [row * count for count in sent]],
            [out.reshape(-1), [row * count for count in awaited]])
        return out

    def _weighted(self, rows: Any) -> Any:
        """Rows of the choices that were kept, times their weights."""
        weights = self._weights[self._kept].astype(rows.dtype)
        return rows * weights.reshape(-1, *[1] * (rows.ndim - 1))

    def _summed(self, rows: Any) -> Any:
        """Add the rows of every token's choices up, the first choice first."""
        out = numpy.zeros_like(rows, shape=(self._rows, *rows.shape[1:]))
        token, choice = self._kept
        for number in range(self._weights.shape[1]):
            # One row at most of each token: no two additions to one place.
            out[token[choice == number]] += rows[choice == number]
        return out

    def _checked(self, argument: str, rows: Any, count: int) -> Any:
        """The array, if it has so many rows."""
        rows = numpy.asarray(rows)
        if len(rows) != count:
            raise ArgumentError(argument, f"have {len(rows)} rows on rank "
                                          f"{self._comm.Get_rank()}, expected {count}",
                                "pass one row per item, in the same order")
        return rows


def _columns(values: Any) -> Any:
    """An array with a column for every choice."""
    values = numpy.asarray(values)
    return values[:, None] if values.ndim == 1 else values
