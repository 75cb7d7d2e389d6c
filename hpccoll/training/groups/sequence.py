"""Ulysses: attention over a distributed sequence (Jacobs et al., 2023).

Outside attention each rank holds a part of the sequence with all heads; inside it, the whole
sequence with some heads. One all-to-all converts between the forms. A rank sends
(s h / P) b (P - 1) / P bytes for s tokens of h elements of b bytes: 1/P of an allgather of the
sequence.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy

from hpccoll.errors import ArgumentError


def part_boundaries(count: int, parts: int) -> tuple[int, ...]:
    """Return the boundaries of even parts; the first ones may be longer by one.

    >>> part_boundaries(7, 3)
    (0, 3, 5, 7)
    """
    each, more = divmod(count, parts)
    return tuple(number * each + min(number, more) for number in range(parts + 1))


class Ulysses:
    """Conversion between the token-parallel and the head-parallel form of a sequence.

    The two conversions are inverse and transpose of each other: the gradient of one is the other,
    applied to the gradient.

    Args:
        comm: communicator of the sequence, such as ``mesh.sp``.
        tokens: length of the whole sequence.
        heads: number of attention heads. Neither needs to be a multiple of the number of ranks.

    Attributes:
        token_cuts, head_cuts: rank r has tokens ``token_cuts[r]`` to ``token_cuts[r + 1] - 1``,
            and heads accordingly.

    Raises:
        ArgumentError: a negative number.
    """

    def __init__(self, comm: Any, tokens: int, heads: int):
        for name, number in ("tokens", tokens), ("heads", heads):
            if number < 0:
                raise ArgumentError(name, f"is {number}", "pass 0 or more")
        self.comm, self.tokens, self.heads = comm, tokens, heads
        self.token_cuts = part_boundaries(tokens, comm.Get_size())
        self.head_cuts = part_boundaries(heads, comm.Get_size())
        self.my_tokens = _length(self.token_cuts, comm.Get_rank())
        self.my_heads = _length(self.head_cuts, comm.Get_rank())

    def to_heads(self, values: Any) -> Any:
        """Convert a part of the tokens with all heads to all tokens with a part of the heads.

        Args:
            values: shape ``[my tokens, heads, ...]``, any dtype and strides. Stack queries, keys
                and values behind the heads to send them together.

        Returns:
            A new array of shape ``[tokens, my heads, ...]``.

        Raises:
            ArgumentError: wrong shape.
        """
        values = self._check_shape(values, self.my_tokens, self.heads)
        parts = [values[:, start:stop] for start, stop in zip(self.head_cuts, self.head_cuts[1:])]
        sent = numpy.concatenate([part.reshape(-1) for part in parts])
        out = numpy.empty_like(values, shape=(self.tokens, self.my_heads, *values.shape[2:]),
                               order="C")
        # Parts of the sequence arrive in order, in their final place.
        self._exchange(sent, [part.size for part in parts], out.reshape(-1),
                       [_length(self.token_cuts, rank) * math.prod(out.shape[1:])
                        for rank in range(self.comm.Get_size())])
        return out

    def to_tokens(self, values: Any) -> Any:
        """Convert all tokens with a part of the heads to a part of the tokens with all heads.

        Args:
            values: shape ``[tokens, my heads, ...]``, any dtype and strides.

        Returns:
            A new array of shape ``[my tokens, heads, ...]``.

        Raises:
            ArgumentError: wrong shape.
        """
        values = self._check_shape(values, self.tokens, self.my_heads)
        out = numpy.empty_like(values, shape=(self.my_tokens, self.heads, *values.shape[2:]),
                               order="C")
        parts = [out[:, start:stop] for start, stop in zip(self.head_cuts, self.head_cuts[1:])]
        row = math.prod(values.shape[1:])
        received = numpy.empty_like(out, shape=(out.size,))
        self._exchange(numpy.ascontiguousarray(values).reshape(-1),
                       [_length(self.token_cuts, rank) * row
                        for rank in range(self.comm.Get_size())],
                       received, [part.size for part in parts])
        start = 0
        for part in parts:
            part[...] = received[start:start + part.size].reshape(part.shape)
            start += part.size
        return out

    def _exchange(self, sent: Any, counts: Sequence[int], received: Any, awaited: Sequence[int]
                  ) -> None:
        # All ranks know all cuts, so all make the same call; the even case is tuned by size.
        if self.tokens % self.comm.Get_size() == self.heads % self.comm.Get_size() == 0:
            self.comm.Alltoall(sent, received)
        else:
            self.comm.Alltoallv([sent, counts], [received, awaited])

    def _check_shape(self, values: Any, *wanted: int) -> Any:
        """Return the array if it has the wanted tokens and heads."""
        values = numpy.asarray(values)
        if tuple(values.shape[:2]) != wanted:
            raise ArgumentError(
                "values", f"have shape {tuple(values.shape)} on rank {self.comm.Get_rank()}, "
                          f"expected {wanted[0]} tokens x {wanted[1]} heads x anything",
                "partition the sequence by token_cuts and the heads by head_cuts")
        return values


def _length(cut: Sequence[int], rank: int) -> int:
    return cut[rank + 1] - cut[rank]
