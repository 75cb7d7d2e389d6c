"""Horovod's wrapper for PyTorch optimizers, which averages gradients over ranks.

The result is an instance of a subclass of the optimizer's class, so schedulers, scalers and
``state_dict`` work unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from hpccoll.errors import ArgumentError
from hpccoll.torch import operations
from hpccoll.torch.horovod.async_operations import ADASUM, AVERAGE, SUM, Compression, Compressor
from hpccoll.torch.horovod.broadcast_state import allreduce
from hpccoll.torch.horovod.gradients import GradientExchange, Preferences
from hpccoll.torch.horovod.processes import ProcessSet, global_process_set
from hpccoll.torch.tensors import values
from hpccoll.training.compress import parse
from hpccoll.training.exchange import Exchange


def DistributedOptimizer(optimizer: torch.optim.Optimizer,
                         named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
                         compression: Any = Compression.none, backward_passes_per_step: int = 1,
                         op: str = AVERAGE, gradient_predivide_factor: float = 1.0,
                         groups: int | Sequence[Sequence[torch.Tensor]] | None = None,
                         sparse_as_dense: bool = False,
                         process_set: ProcessSet = global_process_set) -> Any:
    """Wrap an optimizer to reduce gradients during the backward pass; collective.

    ``step`` waits for the gradients. To clip them, call ``synchronize`` first; ``step`` then does
    not wait again.

    Args:
        optimizer: a ``torch.optim.Optimizer``.
        named_parameters: named parameters, such as ``model.named_parameters()``, for messages.
        compression: a member of ``Compression``, a scheme of :mod:`hpccoll.training.compress`, or
            its text, such as ``"powersgd:rank=4"``.
        backward_passes_per_step: number of passes whose gradients are accumulated before the
            exchange.
        op: ``Average``, ``Sum``, or ``Adasum``: each rank steps locally, and the parameter updates
            are combined (Maleki et al., arXiv 2006.02924).
        gradient_predivide_factor: divisor of a mean before the sum; the rest is applied after it.
        groups: the number of buckets, or lists of parameters that are sent together; by default
            buckets of 1/32 of all parameters, 1 to 25 MiB each.
        sparse_as_dense: True to send sparse gradients as dense ones.
        process_set: the ranks; on other ranks the optimizer steps locally.

    Raises:
        ArgumentError: unnamed parameters, duplicate names, unknown compression, or an invalid
            argument.
        ExchangeMismatch: ranks have different parameters; on all ranks.
    """
    if op not in (AVERAGE, SUM, ADASUM):
        raise ArgumentError("op", f"gradients do not support {op!r}",
                            "choose Average, Sum or Adasum")
    if gradient_predivide_factor != 1 and op != AVERAGE:
        raise ArgumentError("gradient_predivide_factor", "requires op=Average")
    if backward_passes_per_step < 1:
        raise ArgumentError("backward_passes_per_step", "must be at least 1")
    chosen = compression.name if isinstance(compression, Compressor) else compression
    scheme = "none" if chosen is None else parse(chosen)
    kind = type(optimizer)
    way = (_SingleRankOptimizer if not process_set.included()
           else _AdasumOptimizer if op == ADASUM else _Averaging)
    wrapped: Any = object.__new__(type(kind.__name__, (way, kind), {}))
    # A scheduler that was created before has patched ``step`` of the instance.
    wrapped.__dict__.update((key, value) for key, value in vars(optimizer).items()
                            if key != "step")
    preferences = Preferences(scheme, backward_passes_per_step, op,
                              1 / gradient_predivide_factor, gradient_predivide_factor, groups,
                              sparse_as_dense)
    wrapped._begin(_names(optimizer, named_parameters), preferences, process_set)
    return wrapped


def _names(optimizer: torch.optim.Optimizer,
           named: Iterable[tuple[str, torch.Tensor]] | None) -> dict[torch.Tensor, str]:
    if named is None:
        return {}
    pairs = list(named)
    if not all(isinstance(each, tuple) and len(each) == 2 for each in pairs):
        raise ArgumentError("named_parameters", "expected pairs of a name and a parameter",
                            "pass model.named_parameters()")
    names = [name for name, _ in pairs]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ArgumentError("named_parameters", f"duplicate name {twice[0]!r}")
    found = {parameter: name for name, parameter in pairs}
    without = sum(each not in found for each in _parameters(optimizer))
    if without:
        raise ArgumentError("named_parameters", f"{without} of the optimizer's parameters have no "
                            "name", "name all of them, or none")
    return found


def _parameters(optimizer: Any) -> list[torch.Tensor]:
    return [each for group in optimizer.param_groups for each in group["params"]]


class _Averaging:
    """Reduces gradients before the step."""

    _gradients: GradientExchange
    _synchronized = _skipping = False

    def _begin(self, names: dict[torch.Tensor, str], preferences: Preferences,
               process_set: ProcessSet) -> None:
        self._process_set = process_set
        self._gradients = GradientExchange(lambda: _parameters(self), names, preferences,
                                           process_set)
        process_set.at_close(self._gradients.close)

    def synchronize(self) -> None:
        """Wait until the gradients are reduced; ``step`` then does not wait again.

        Collective.

        Raises:
            ExchangeError: ranks have different parameters, or a rank has failed.
        """
        self._gradients.synchronize()
        self._synchronized = True

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Return a context for steps that do not wait for gradients, after ``synchronize``."""
        self._skipping = True
        try:
            yield
        finally:
            self._skipping = False

    def fail(self, error: BaseException) -> None:
        """Send an error of this rank to the others, for example of its backward pass.

        Waiting ranks raise ``RankFailed`` immediately instead of a time-out. A program that exits
        with an error sends it automatically.
        """
        self._gradients.fail(error)

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Set the number of backward passes that are accumulated before the exchange."""
        self._gradients.passes = passes

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Wait for the gradients and run a step; collective.

        A ``closure`` computes gradients itself; they are reduced in each call, and the optimizer
        gets the mean loss of all ranks, so that all ranks take the same decisions.
        """
        if closure is not None:
            return super().step(lambda: self._evaluate(closure))  # type: ignore[misc]
        if not self._skipping and (self._gradients.under_way or not self._synchronized):
            self.synchronize()
        self._synchronized = False
        return super().step()  # type: ignore[misc]

    # PyTorch wraps ``step`` of each class to run step hooks; the wrapped optimizer already runs
    # them.
    step.hooked = True  # type: ignore[attr-defined]

    def _evaluate(self, closure: Callable[[], Any]) -> Any:
        try:
            loss = closure()
        except Exception as error:
            self.fail(error)
            raise
        self.synchronize()
        self._synchronized = False
        if not isinstance(loss, torch.Tensor):
            return loss
        return allreduce(loss.detach(), process_set=self._process_set)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients.

        Raises:
            ExchangeError: their reduction is pending; on all ranks.
        """
        self._gradients.check_idle()
        self._synchronized = False
        super().zero_grad(set_to_none)  # type: ignore[misc]


class _OwnGradients:
    """Local gradients: no reduction before a step."""

    def synchronize(self) -> None:
        """Do nothing: gradients are local."""

    def skip_synchronize(self) -> AbstractContextManager[None]:
        """Do nothing: a step does not wait for gradients."""
        return nullcontext()


class _SingleRankOptimizer(_OwnGradients):
    """A rank outside the process set, which steps locally."""

    def _begin(self, names: dict[torch.Tensor, str], preferences: Preferences,
               process_set: ProcessSet) -> None:
        """Do nothing: no exchange is needed."""

    def fail(self, error: BaseException) -> None:
        """Do nothing: no rank waits for this one."""

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Do nothing: gradients accumulate until ``zero_grad``."""


class _AdasumOptimizer(_OwnGradients):
    """Steps locally, then combines the parameter updates of all ranks with Adasum."""

    _exchange: Exchange | None = None

    def _begin(self, names: dict[torch.Tensor, str], preferences: Preferences,
               process_set: ProcessSet) -> None:
        self._names, self._preferences, self._process_set = names, preferences, process_set
        self._members: list[torch.Tensor] = []
        process_set.at_close(self._end)

    def _end(self) -> None:
        if self._exchange is not None:
            self._exchange.close()
        self._exchange = None

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Run a step and combine its update with those of the other ranks; collective."""
        members = [each for each in _parameters(self) if each.requires_grad]
        starts = [each.detach().clone() for each in members]
        result = super().step(closure)  # type: ignore[misc]
        changes = [(each.detach() - start).contiguous() for each, start in zip(members, starts)]
        self._exchange_for(members, changes).reduce([values(change) for change in changes])
        for each, start, change in zip(members, starts, changes):
            each.detach().copy_(start.add_(change))
        return result

    step.hooked = True  # type: ignore[attr-defined]

    def _exchange_for(self, members: list[torch.Tensor], changes: list[torch.Tensor]) -> Exchange:
        if self._exchange is None or len(members) != len(self._members):
            self._end()
            line = self._process_set.line
            self._exchange = line.run(operations.call(lambda: Exchange(
                line.comm, [values(change) for change in changes],
                names=[self._names.get(each, f"parameter.{index}")
                       for index, each in enumerate(members)],
                op=ADASUM, compress=self._preferences.compress)))
            self._members = members
        return self._exchange
