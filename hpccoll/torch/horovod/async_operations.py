"""Start of operations on a process set: scaling of reductions, and default names.

    tensor * prescale --> op over all ranks --> (/ number of ranks, for a mean) * postscale
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from hpccoll.errors import ArgumentError, ExchangeError
from hpccoll.torch import operations
from hpccoll.torch.horovod.processes import ProcessSet
from hpccoll.torch.operation_queue import AsyncResult, then
from hpccoll.torch.tensors import as_dense, values

#: Valid values of ``op``.
OPS = AVERAGE, SUM, MIN, MAX, PRODUCT, ADASUM = (
    "average", "sum", "min", "max", "product", "adasum")


class How(NamedTuple):
    """Reduction and scaling of tensors."""

    op: str = AVERAGE
    prescale: float = 1.0
    postscale: float = 1.0

    @classmethod
    def of(cls, op: str | None, average: bool | None = None, prescale: float = 1.0,
           postscale: float = 1.0) -> How:
        """Return the reduction for Horovod's arguments."""
        if average is not None:
            if op is not None:
                raise ArgumentError("average", "is an alias of op; pass one of them")
            op = AVERAGE if average else SUM
        if op is not None and op not in OPS:
            raise ArgumentError.unknown_word("op", op, OPS)
        return cls(op or AVERAGE, float(prescale), float(postscale))

    def check_derivative(self) -> None:
        """Raise unless the reduction is differentiable."""
        if self.op not in (AVERAGE, SUM):
            raise ArgumentError("op", f"{self.op!r} has no derivative",
                                "reduce tensor.detach()")


def reduce(tensor: torch.Tensor, name: str | None, how: How, process_set: ProcessSet
           ) -> AsyncResult:
    """Reduce a tensor in place; the result is the tensor.

    Raises:
        ArgumentError: a sparse tensor.
    """
    if tensor.layout is not torch.strided:
        raise ArgumentError("tensor", f"is {tensor.layout}", "use sparse_allreduce_async, or "
                                                             "tensor.to_dense()")
    whole, line = as_dense(tensor), process_set.line
    scale(whole, how.prescale)
    op, said = SUM if how.op == AVERAGE else how.op, line.name("allreduce", name)
    if op == PRODUCT:
        pending = line.start(operations.allreduce(line.comm, whole, op, said))
    else:
        pending = _named_operation(process_set, said, whole, op)

    def store(_: Any) -> torch.Tensor:
        rescale(whole, how, process_set.size())
        if whole.data_ptr() != tensor.data_ptr():
            tensor.detach().copy_(whole)
        return tensor

    return then(pending, store)


def _named_operation(process_set: ProcessSet, name: str, whole: torch.Tensor,
                     op: str) -> AsyncResult:
    """Reduce in place with the tensors of this name on the other ranks."""
    exchange = process_set.exchange

    def complete(call: Callable[[], Any]) -> Any:
        try:
            return call()
        except ExchangeError:
            # The exchange has ended on all ranks, and each raises when it waits.
            process_set.end_exchange()
            raise

    handle = complete(lambda: exchange.submit(name, values(whole), op=op))

    def look(wait: bool) -> bool:
        if wait:
            complete(handle.wait)
        return handle.done()

    return AsyncResult(look, lambda: complete(handle.wait))


def scatter(tensor: torch.Tensor, rows: Sequence[int] | None, name: str | None, how: How,
            process_set: ProcessSet) -> AsyncResult:
    """Reduce rows and scatter ``rows[r]`` of them to rank r; by default, even parts.

    Raises:
        ArgumentError: Adasum.
    """
    whole, line = tensor.detach().clone(memory_format=torch.contiguous_format), process_set.line
    scale(whole, how.prescale)
    if how.op == ADASUM:
        raise ArgumentError("op", f"rows do not support {how.op!r}",
                            "choose Average, Sum, Min, Max or Product")
    if rows is None:
        rows = operations.even_rows(operations.rows_of(tensor), process_set.size())
    op = SUM if how.op == AVERAGE else how.op
    pending = line.start(operations.reduce_scatter(line.comm, whole, op, rows,
                                                   line.name("reducescatter", name)))
    return then(pending, lambda reduced: rescale(reduced, how, process_set.size()))


def gather(tensor: torch.Tensor, name: str | None, process_set: ProcessSet) -> AsyncResult:
    """Gather rows; the result is a tensor and the number of rows of each rank."""
    line = process_set.line
    return line.start(operations.allgather(line.comm, tensor, line.name("allgather", name)))


def share(tensor: torch.Tensor, root: int, name: str | None, process_set: ProcessSet
          ) -> AsyncResult:
    """Broadcast the root's tensor in place; the result is the tensor."""
    line = process_set.line
    return line.start(operations.broadcast(line.comm, tensor, root, process_set.ranks,
                                           line.name("broadcast", name)))


def alltoall_rows(tensor: torch.Tensor, splits: Sequence[int] | None, name: str | None,
                  process_set: ProcessSet) -> AsyncResult:
    """Send rows to all ranks; the result is the received rows and their number by rank.

    By default, all ranks receive equal parts.
    """
    line = process_set.line
    if splits is None:
        rows, size = operations.rows_of(tensor), process_set.size()
        splits = [rows // size] * size
    return line.start(operations.alltoall(line.comm, tensor, splits, line.name("alltoall", name)))


def names(name: str | None, count: int) -> list[str | None]:
    """Return the names of a group's members; a single member has the group's name.

    >>> names("g", 2), names("g", 1), names(None, 2)
    (['g.0', 'g.1'], ['g'], [None, None])
    """
    if name is None or count == 1:
        return [name] * count
    return [f"{name}.{index}" for index in range(count)]


def rescale(numbers: torch.Tensor, how: How, size: int) -> torch.Tensor:
    """Apply the division of a mean and the postscale to a sum, in place."""
    if how.op == AVERAGE:
        if numbers.is_floating_point() or numbers.is_complex():
            numbers.div_(size)
        else:
            numbers.div_(size, rounding_mode="trunc")
    return scale(numbers, how.postscale)


def scale(numbers: torch.Tensor, factor: float) -> torch.Tensor:
    """Multiply in place; integers are rounded towards zero, as in Horovod."""
    if factor == 1:
        return numbers
    if numbers.is_floating_point() or numbers.is_complex():
        return numbers.mul_(factor)
    return numbers.copy_(numbers.double().mul_(factor))


class Compressor(NamedTuple):
    """Cast to a wire dtype."""

    name: str
    dtype: torch.dtype | None = None

    def compress(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Return the compressed tensor, and the context for :meth:`decompress`."""
        if self.dtype is None or not tensor.is_floating_point():
            return tensor, tensor.dtype
        return tensor.to(self.dtype), tensor.dtype

    def decompress(self, tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """Return the tensor in its original dtype."""
        return tensor.to(ctx)


class Compression:
    """Compressors by Horovod's names, and bfloat16.

    ``DistributedOptimizer`` and the DDP hooks also accept the text of any scheme of
    :mod:`hpccoll.training.compress`, such as ``"topk:density=0.01"``.
    """

    none = Compressor("none")
    fp16 = Compressor("fp16", torch.float16)
    bf16 = Compressor("bf16", torch.bfloat16)
