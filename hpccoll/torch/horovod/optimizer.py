"""Any optimizer of PyTorch on gradients averaged over all ranks, as Horovod wraps it.

The wrapped optimizer is an instance of a class made from its own, so schedulers, scalers and
``state_dict`` see what they know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from hpccoll.errors import ArgumentError
from hpccoll.torch import operations
from hpccoll.torch.horovod.begin import ADASUM, AVERAGE, SUM
from hpccoll.torch.horovod.compression import Compression, Compressor
from hpccoll.torch.horovod.functions import allreduce
from hpccoll.torch.horovod.gradients import GradientExchange, Wishes
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
    """Wrap an optimizer: gradients are reduced while the backward pass runs; collective.

    ``step`` waits for them; ``synchronize`` waits before, for clipping and the like, and then
    ``step`` does not again.

    Args:
        optimizer: any of PyTorch's, or of that kind.
        named_parameters: such as ``model.named_parameters()``; names show in messages.
        compression: ``Compression.fp16`` and so on, or a scheme of
            :mod:`hpccoll.training.compress` or its text, such as ``"powersgd:rank=4"``.
        backward_passes_per_step: gradients of so many passes are added up before they travel.
        op: ``Average``, ``Sum``, or ``Adasum``: every rank makes its step alone, and the changes
            of parameters are combined (Maleki et al., arXiv 2006.02924).
        gradient_predivide_factor: a mean divides by it before the sum, and by the rest after.
        groups: the number of buckets, or lists of parameters that travel together; by default
            buckets of a 32nd part of all, 1 to 25 MiB each.
        sparse_as_dense: sparse gradients travel as dense ones.
        process_set: the ranks; on others the optimizer makes its steps alone.

    Raises:
        ArgumentError: parameters without a name, two of one name, no such compression, or an
            argument that makes no sense.
        ExchangeMismatch: ranks have other parameters; on all of them.
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
    way = _Alone if not process_set.included() else _Combining if op == ADASUM else _Averaging
    wrapped: Any = object.__new__(type(kind.__name__, (way, kind), {}))
    # A scheduler made before has put its own ``step`` into the instance.
    wrapped.__dict__.update((key, value) for key, value in vars(optimizer).items()
                            if key != "step")
    wishes = Wishes(scheme, backward_passes_per_step, op,
                    1 / gradient_predivide_factor, gradient_predivide_factor, groups,
                    sparse_as_dense)
    wrapped._begin(_names(optimizer, named_parameters), wishes, process_set)
    return wrapped


def _names(optimizer: torch.optim.Optimizer,
           named: Iterable[tuple[str, torch.Tensor]] | None) -> dict[torch.Tensor, str]:
    """Names of parameters.

    Raises:
        ArgumentError: not pairs, a name that comes twice, a parameter without one.
    """
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
    """Before the step, gradients are reduced."""

    _gradients: GradientExchange
    _synchronized = _skipping = False

    def _begin(self, names: dict[torch.Tensor, str], wishes: Wishes,
               process_set: ProcessSet) -> None:
        self._process_set = process_set
        self._gradients = GradientExchange(lambda: _parameters(self), names, wishes, process_set)
        process_set.at_close(self._gradients.close)

    def synchronize(self) -> None:
        """Wait until the gradients are reduced; ``step`` then takes them as they are.

        Every rank calls it.

        Raises:
            ExchangeError: ranks have different parameters, or one of them has failed.
        """
        self._gradients.synchronize()
        self._synchronized = True

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Make steps without waiting for gradients, after ``synchronize``."""
        self._skipping = True
        try:
            yield
        finally:
            self._skipping = False

    def fail(self, error: BaseException) -> None:
        """Tell the other ranks that this one cannot go on, as after an error in its backward pass.

        They raise ``RankFailed`` where they wait, and not after a time-out. A program that ends
        with an error tells them by itself.
        """
        self._gradients.fail(error)

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Add up the gradients of so many backward passes before they travel."""
        self._gradients.passes = passes

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Wait for the gradients and make a step; every rank calls it.

        A ``closure`` computes gradients itself; they are reduced each time, and the loss that the
        optimizer sees is the mean of all ranks', so that all decide alike.
        """
        if closure is not None:
            return super().step(lambda: self._evaluate(closure))  # type: ignore[misc]
        if not self._skipping and (self._gradients.under_way or not self._synchronized):
            self.synchronize()
        self._synchronized = False
        return super().step()  # type: ignore[misc]

    # PyTorch wraps ``step`` of every class to run the hooks of a step; that of the wrapped
    # optimizer runs them.
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
        """Drop the gradients.

        Raises:
            ExchangeError: they are being reduced; on all ranks.
        """
        self._gradients.check_idle()
        self._synchronized = False
        super().zero_grad(set_to_none)  # type: ignore[misc]


class _OwnGradients:
    """Gradients stay this rank's own: nothing is reduced before a step."""

    def synchronize(self) -> None:
        """Do nothing: gradients stay this rank's own."""

    def skip_synchronize(self) -> AbstractContextManager[None]:
        """Do nothing: there is nothing to wait for before a step."""
        return nullcontext()


class _Alone(_OwnGradients):
    """A rank outside of the process set: its steps are its own."""

    def _begin(self, names: dict[torch.Tensor, str], wishes: Wishes,
               process_set: ProcessSet) -> None:
        """There is nothing to begin."""

    def fail(self, error: BaseException) -> None:
        """Do nothing: nobody waits for this rank."""

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Do nothing: gradients are added up until ``zero_grad``."""


class _Combining(_OwnGradients):
    """Every rank makes its own step; then the changes of all are combined by Adasum."""

    _exchange: Exchange | None = None

    def _begin(self, names: dict[torch.Tensor, str], wishes: Wishes,
               process_set: ProcessSet) -> None:
        self._names, self._wishes, self._process_set = names, wishes, process_set
        self._members: list[torch.Tensor] = []
        process_set.at_close(self._end)

    def _end(self) -> None:
        if self._exchange is not None:
            self._exchange.close()
        self._exchange = None

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make a step and combine it with those of the other ranks; every rank calls it."""
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
                op=ADASUM, compress=self._wishes.compress)))
            self._members = members
        return self._exchange
