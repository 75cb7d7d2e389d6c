"""Exchange of a model's gradients, overlapped with the backward pass.

    backward --parameter hooks--> Exchange.ready --synchronize()--> reduced on every rank

Parameters are exchanged in a fixed order, without negotiation. A parameter without a gradient on
this rank contributes zeros. If no rank has a gradient, it stays None, so that weight decay and
moments behave as on one rank. One small message at the end of each step reports new parameters (a
grown model or unfrozen layers), which get a separate exchange, and sparse gradients, which are sent
as indices and values from the next step on.
"""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn, TypeAlias

import numpy
import torch
from mpi4py import MPI

from hpccoll.errors import ArgumentError, ExchangeError
from hpccoll.torch import operations
from hpccoll.torch.horovod.broadcast_state import sparse_allreduce_async
from hpccoll.torch.horovod.processes import ProcessSet
from hpccoll.torch.tensors import as_dense, values
from hpccoll.training.buckets import FIRST_BUCKET_BYTES
from hpccoll.training.exchange import Exchange

Parameter: TypeAlias = torch.Tensor
#: Kinds of a gradient, ordered so that the maximum over ranks applies to all.
UNUSED, DENSE, SPARSE = range(3)


class Preferences(NamedTuple):
    """User settings; see :func:`~hpccoll.torch.horovod.optimizer.DistributedOptimizer`."""

    compress: Any = "none"
    passes: int = 1
    op: str = "average"
    prescale: float = 1.0
    postscale: float = 1.0
    groups: int | Sequence[Sequence[Parameter]] | None = None
    sparse_as_dense: bool = False


class GradientExchange:
    """Exchange of the gradients of an optimizer's parameters."""

    def __init__(self, listing: Callable[[], list[Parameter]], names: Mapping[Parameter, str],
                 preferences: Preferences, process_set: ProcessSet):
        self._listing, self._names = listing, dict(names)
        self._preferences, self._process_set = preferences, process_set
        self.passes = preferences.passes
        self.exchanges: list[Exchange] = []
        self._places: dict[Parameter, tuple[Exchange, int]] = {}
        self._members: dict[int, list[Parameter]] = {}
        self._sparse: dict[Parameter, None] = {}
        self._seen: dict[Parameter, int] = {}
        self._sent: dict[Parameter, int] = {}
        self._hooks: dict[Parameter, Any] = {}
        new = self._watch()
        for group, limit in self._parameter_groups(new):
            self._place(group, limit)
        atexit.register(self._abort_at_exit)

    @property
    def under_way(self) -> bool:
        """Return True if an exchange of gradients of this step is pending."""
        return bool(self._sent)

    def close(self) -> None:
        """Close the exchanges and remove hooks; during a step, on all ranks."""
        atexit.unregister(self._abort_at_exit)
        for hook in self._hooks.values():
            hook.remove()
        for exchange in self.exchanges:
            exchange.close()
        self._hooks.clear()
        self.exchanges.clear()

    def fail(self, error: BaseException) -> None:
        """Send an error to the other ranks, which raise ``RankFailed``."""
        for exchange in self.exchanges:
            exchange.fail(error)

    def _abort_at_exit(self) -> None:
        """Send an uncaught error to the waiting ranks at program exit."""
        error = getattr(sys, "last_value", None)
        if error is not None:
            self.fail(error)

    # -- parameters --------------------------------------------------------------------------
    def _watch(self) -> list[Parameter]:
        """Register hooks on parameters without one; return these parameters."""
        new = [each for each in self._listing() if each.requires_grad and each not in self._hooks]
        for parameter in new:
            self._names.setdefault(parameter, f"parameter.{len(self._hooks)}")
            self._hooks[parameter] = parameter.register_post_accumulate_grad_hook(self._on_gradient)
        return new

    def _parameter_groups(self, parameters: Sequence[Parameter]) -> Iterable[tuple[list[Parameter],
                                                                                   int | None]]:
        """Yield groups of parameters with their bucket limit, if the user set one."""
        groups, nbytes = self._preferences.groups, sum(each.nbytes for each in parameters)
        if groups is None or isinstance(groups, int):
            yield list(parameters), -(-nbytes // groups) if groups else None
            return
        rest = dict.fromkeys(parameters)
        for group in groups:
            for each in group:
                if each not in rest:
                    raise ArgumentError("groups", "a parameter is in two groups, or is not a "
                                                  "trainable parameter of the optimizer")
                del rest[each]
            yield list(group), sum(each.nbytes for each in group)
        if rest:
            yield list(rest), None

    def _place(self, parameters: Sequence[Parameter], bucket_bytes: int | None = None,
               state: Any = None) -> None:
        """Create an exchange for parameters, with the state of another one; collective."""
        if not parameters:
            return
        preferences, line = self._preferences, self._process_set.line
        first = FIRST_BUCKET_BYTES if bucket_bytes is None else bucket_bytes
        exchange = line.run(operations.call(lambda: Exchange(
            line.comm, [values(as_dense(each)) for each in parameters],
            names=[self._names[each] for each in parameters], op=preferences.op,
            prescale=preferences.prescale, postscale=preferences.postscale,
            compress=preferences.compress,
            bucket_bytes=bucket_bytes, first_bucket_bytes=first)))
        if state is not None:
            exchange.load(state)
        self.exchanges.append(exchange)
        self._members[id(exchange)] = list(parameters)
        self._places.update((each, (exchange, index)) for index, each in enumerate(parameters))

    # -- one step ----------------------------------------------------------------------------
    def _on_gradient(self, parameter: Parameter) -> None:
        seen = self._seen[parameter] = self._seen.get(parameter, 0) + 1
        if seen > self.passes:
            self._raise(
                f"the gradient of {self._names[parameter]!r} was computed more than {self.passes} "
                "time(s) before step() or synchronize(); set backward_passes_per_step of "
                "DistributedOptimizer to accumulate gradients", self._names[parameter])
        if seen == self.passes and parameter in self._places:
            self._send(parameter)

    def _raise(self, problem: str, *names: str) -> NoReturn:
        """Raise an error on this and all other ranks."""
        rank = self._process_set.rank()
        error = ExchangeError(f"on rank {rank}: {problem}", names, (rank,))
        self.fail(error)
        raise error

    def check_idle(self) -> None:
        """Raise if an exchange of gradients of this step is pending."""
        if self._sent:
            self._raise("zero_grad() called between backward() and step() or synchronize(): the "
                        "gradients are pending")

    def _send(self, parameter: Parameter) -> None:
        kind = UNUSED if parameter.grad is None else DENSE
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        elif parameter.grad.layout is not torch.strided:
            kind = DENSE if self._preferences.sparse_as_dense else SPARSE
            parameter.grad = parameter.grad.to_dense()
        if not parameter.grad.is_contiguous():
            parameter.grad = parameter.grad.contiguous()
        exchange, index = self._places[parameter]
        self._sent[parameter] = kind
        exchange.ready(index, values(parameter.grad))

    def synchronize(self) -> None:
        """Wait until all gradients are reduced; collective."""
        self._reduce(self.exchanges)
        for parameter in self._sparse:
            self._reduce_sparse(parameter)
        new = self._watch()
        unusual = self._agree(new)
        if new:
            self._place(new)
            self._reduce(self.exchanges[-1:])
        if unusual:
            kinds = self._most([self._sent[each] for each in self._places])
            of = {kind: [each for each, found in zip(self._places, kinds) if found == kind]
                  for kind in (UNUSED, SPARSE)}
            for parameter in of[UNUSED]:
                parameter.grad = None
            for parameter in of[SPARSE]:  # SparseAdam requires sparse gradients; an index is a row
                parameter.grad = parameter.grad.to_sparse(1)
            self._move_out(of[SPARSE])
        self._sent.clear()
        self._seen.clear()

    def _reduce(self, exchanges: Sequence[Exchange]) -> None:
        for exchange in exchanges:
            for parameter in self._members[id(exchange)]:
                if parameter not in self._sent:
                    self._send(parameter)
        for exchange in exchanges:
            exchange.wait()

    def _agree(self, new: Sequence[Parameter]) -> bool:
        """Compare parameter counts of all ranks; return True if any has an unusual gradient."""
        unusual = any(kind != DENSE for kind in self._sent.values()) or any(
            each.grad is None or each.grad.layout is not torch.strided for each in new)
        known = len(self._places)
        facts = self._most([known, -known, len(new), -len(new), unusual])
        if facts[0] != -facts[1] or facts[2] != -facts[3]:
            line = self._process_set.line
            counts = line.run(operations.call(lambda: line.comm.allgather(known + len(new))))
            raise ExchangeError("ranks have different parameters: " + ", ".join(
                f"rank {rank} has {count}" for rank, count in enumerate(counts))
                + "; add parameters on all ranks in the same step")
        return bool(facts[4])

    def _most(self, numbers: Sequence[int]) -> list[int]:
        line, largest = self._process_set.line, numpy.array(numbers, dtype="i8")

        def steps() -> operations.Operation:
            yield line.comm.Iallreduce(MPI.IN_PLACE, largest, MPI.MAX)

        line.run(steps())
        return largest.tolist()

    # -- sparse gradients --------------------------------------------------------------------
    def _reduce_sparse(self, parameter: Parameter) -> None:
        preferences = self._preferences
        mine = parameter.grad if parameter.grad is not None else torch.sparse_coo_tensor(
            size=parameter.shape, dtype=parameter.dtype)
        mine = mine if mine.layout is torch.sparse_coo else mine.to_sparse()
        total = sparse_allreduce_async(mine, self._names[parameter], preferences.op,
                                       self._process_set).wait()
        # A gradient that no rank has stays None.
        parameter.grad = total if total._nnz() else None

    def _move_out(self, sparse: Sequence[Parameter]) -> None:
        """Remove parameters with sparse gradients from their exchanges; collective."""
        self._sparse.update(dict.fromkeys(sparse))
        for exchange in list(dict.fromkeys(self._places[each][0] for each in sparse)):
            state, members = exchange.state(), self._members.pop(id(exchange))
            self.exchanges.remove(exchange)
            exchange.close()
            for each in members:
                del self._places[each]
            self._place([each for each in members if each not in self._sparse], state=state)
