"""Expert parallelism: dispatch of tokens to experts, and combination of outputs.

The number of tokens for each rank depends on the choices of all ranks: counts are exchanged first,
then rows. A token may choose several experts; their outputs are weighted and summed. An expert
accepts at most ``capacity`` tokens of each rank: first choices first, in token order (GShard:
Lepikhin et al., 2021). Dropped choices contribute zeros and are counted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy

from hpccoll.errors import ArgumentError
from hpccoll.errors.waits import rank_list
from hpccoll.training.groups.sequence import part_boundaries

#: Count that reports invalid choices on this rank.
REFUSED = -1


class Experts:
    """Experts distributed over ranks.

    Args:
        comm: communicator of the experts, such as ``mesh.ep``.
        experts: total number of experts, or the number of each rank.
        capacity: largest number of tokens of one rank for an expert; unlimited if omitted.

    Attributes:
        cuts: rank r has the experts ``cuts[r]`` to ``cuts[r + 1] - 1``.

    Raises:
        ArgumentError: invalid numbers.
    """

    def __init__(self, comm: Any, experts: int | Sequence[int], capacity: int | None = None):
        size = comm.Get_size()
        if isinstance(experts, int):
            self.cuts = part_boundaries(max(experts, 0), size)
        else:
            self.cuts = (0, *numpy.cumsum(experts, dtype=int).tolist())
        if len(self.cuts) != size + 1 or self.cuts[-1] < 1 or min(numpy.diff(self.cuts)) < 0:
            raise ArgumentError("experts", f"got {experts!r} for {size} ranks",
                                "pass a number of at least 1, or one per rank")
        if capacity is not None and capacity < 1:
            raise ArgumentError("capacity", f"is {capacity}", "give at least 1, or None")
        self.comm, self.capacity = comm, capacity

    def dispatch(self, tokens: Any, chosen: Any, weights: Any = None) -> Dispatch:
        """Send tokens to their chosen experts; collective.

        Args:
            tokens: shape ``[n, ...]``, one row for each token; n may differ between ranks.
            chosen: shape ``[n]`` or ``[n, k]``: indices of experts, first choice first.
            weights: shape of ``chosen``; 1 if omitted.

        Raises:
            ArgumentError: shapes do not match, or an expert does not exist; on all ranks, with the
                ranks at fault.
        """
        tokens, problem = numpy.ascontiguousarray(tokens), ""
        try:
            chosen, weights = self._check_choices(len(tokens), chosen, weights)
        except ArgumentError as error:
            problem, chosen = str(error), numpy.empty((len(tokens), 0), int)
            weights = chosen
        # Sending order: by expert, which is also by rank; stable within an expert.
        token, choice = self._within_capacity(chosen)
        order = numpy.argsort(chosen[token, choice], kind="stable")
        token, choice = token[order], choice[order]
        counts = numpy.bincount(chosen[token, choice], minlength=self.cuts[-1])
        awaited = self._exchange_counts(counts, problem)
        return Dispatch(self, tokens, weights, (token, choice), counts, awaited)

    def _check_choices(self, count: int, chosen: Any, weights: Any) -> tuple[Any, Any]:
        """Return validated choices and weights of shape [n, k]."""
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

    def _within_capacity(self, chosen: Any) -> tuple[Any, Any]:
        """Return the tokens and choices within the capacity, first choices first."""
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
        """Return the token counts from each rank to each local expert, shape [P, my experts]."""
        comm, rank = self.comm, self.comm.Get_rank()
        lengths, mine = numpy.diff(self.cuts), self.cuts[rank + 1] - self.cuts[rank]
        # One extra number for each rank, so that ranks without experts receive one too.
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
    """Dispatched tokens and the return path; created by :meth:`Experts.dispatch`.

    Attributes:
        tokens: shape ``[m, ...]``: received rows, by expert, and for each expert by source rank.
        counts: number of tokens for each local expert.
        dropped: number of this rank's choices beyond the capacity.
    """

    def __init__(self, owner: Experts, tokens: Any, weights: Any, kept: tuple[Any, Any],
                 counts: Any, awaited: Any):
        self._comm, self._weights, self._choices = owner.comm, weights, kept
        self._rows = len(tokens)
        self._send_counts = [int(counts[start:stop].sum())
                             for start, stop in zip(owner.cuts, owner.cuts[1:])]
        self._awaited = awaited.sum(1).tolist()
        self.counts, self.dropped = awaited.sum(0), weights.size - len(kept[0])
        # Rows arrive by rank; this permutation sorts them by expert.
        numbers = numpy.tile(numpy.arange(awaited.shape[1]), len(awaited))
        self._order = numpy.argsort(numpy.repeat(numbers, awaited.reshape(-1)), kind="stable")
        self._returned: Any = None
        self.tokens = self._send_to_experts(tokens[kept[0]])

    def combine(self, outputs: Any) -> Any:
        """Return the outputs of experts to the ranks of their tokens; collective.

        Args:
            outputs: shape ``[m, ...]``: one row for each of ``tokens``, in the same order.

        Returns:
            Shape ``[n, ...]``: for each token the weighted sum over its choices, in their order;
            zeros if all were dropped.

        Raises:
            ArgumentError: wrong number of rows.
        """
        self._returned = self._send_back(outputs)
        return self._sum_choices(self._weight_rows(self._returned))

    def combine_gradients(self, gradients: Any) -> tuple[Any, Any]:
        """Return the gradients of :meth:`combine`; collective.

        Args:
            gradients: gradients of its result, shape ``[n, ...]``.

        Returns:
            Gradients of the outputs, shape ``[m, ...]``, and of the weights, shape ``[n, k]``; zero
            for dropped choices.

        Raises:
            ArgumentError: wrong shape, or ``combine`` was not called.
        """
        if self._returned is None:
            raise ArgumentError("combine_gradients", "requires a preceding combine",
                                "call combine first")
        token, choice = self._choices
        rows = self._check_rows("gradients", gradients, self._rows)[token]
        of_weights = numpy.zeros(self._weights.shape, self._weights.dtype)
        # 16-bit numbers are summed in 32 bits.
        wide = numpy.result_type(self._weights.dtype, "f4")
        products = rows.astype(wide) * self._returned.astype(wide)
        of_weights[token, choice] = products.reshape(len(rows), -1).sum(1)
        return self._send_to_experts(self._weight_rows(rows)), of_weights

    def token_gradients(self, gradients: Any) -> Any:
        """Return the gradient of the sent tokens; collective.

        Args:
            gradients: gradients of ``tokens``, shape ``[m, ...]``.

        Returns:
            Shape ``[n, ...]``: for each token the sum over its choices.

        Raises:
            ArgumentError: wrong number of rows.
        """
        return self._sum_choices(self._send_back(gradients))

    def _send_to_experts(self, rows: Any) -> Any:
        return self._move(rows, self._send_counts, self._awaited)[self._order]

    def _send_back(self, rows: Any) -> Any:
        """Send rows back from the experts, in the original sending order."""
        rows = self._check_rows("outputs", rows, len(self._order))
        unsorted = numpy.empty_like(rows, order="C")
        unsorted[self._order] = rows
        return self._move(unsorted, self._awaited, self._send_counts)

    def _move(self, rows: Any, sent: Sequence[int], awaited: Sequence[int]) -> Any:
        row = math.prod(rows.shape[1:])
        out = numpy.empty_like(rows, shape=(sum(awaited), *rows.shape[1:]), order="C")
        self._comm.Alltoallv(
            [numpy.ascontiguousarray(rows).reshape(-1), [row * count for count in sent]],
            [out.reshape(-1), [row * count for count in awaited]])
        return out

    def _weight_rows(self, rows: Any) -> Any:
        weights = self._weights[self._choices].astype(rows.dtype)
        return rows * weights.reshape(-1, *[1] * (rows.ndim - 1))

    def _sum_choices(self, rows: Any) -> Any:
        """Sum the rows of each token's choices, first choice first."""
        out = numpy.zeros_like(rows, shape=(self._rows, *rows.shape[1:]))
        token, choice = self._choices
        for number in range(self._weights.shape[1]):
            # At most one row of each token, so indices are unique.
            out[token[choice == number]] += rows[choice == number]
        return out

    def _check_rows(self, argument: str, rows: Any, count: int) -> Any:
        rows = numpy.asarray(rows)
        if len(rows) != count:
            raise ArgumentError(argument, f"have {len(rows)} rows on rank "
                                          f"{self._comm.Get_rank()}, expected {count}",
                                "pass one row per item, in the same order")
        return rows


def _columns(values: Any) -> Any:
    values = numpy.asarray(values)
    return values[:, None] if values.ndim == 1 else values
