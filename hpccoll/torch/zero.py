"""``ZeroOptimizer``: any element-wise optimizer of PyTorch, whose state is cut over the ranks.

    gradients --reduce-scatter--> this rank's shards --optimizer--> weights --allgather--> model

    stage 1    state is cut                                      FlatParameters
    stage 2    a gradient is gone once its buffer is reduced     FlatParameters
    stage 3    weights are whole only while they are used        CutModules

This rank's optimizer knows its own shards only, so its state takes 1/P of the memory.
Source: Rajbhandari, Rasley, Ruwase and He, "ZeRO", SC 2020.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy
import torch

from hpccoll.errors import ArgumentError, ExchangeError, ShardError
from hpccoll.torch import operations, whole_state
from hpccoll.torch.begin import AVERAGE, SUM
from hpccoll.torch.cut_modules import CutModules
from hpccoll.torch.flat import HALF, FlatParameters, Part
from hpccoll.torch.processes import ProcessSet, global_process_set
from hpccoll.torch.tensors import values
from hpccoll.training.buckets import BUCKET_BYTES
from hpccoll.training.shard.agreement import GRADIENTS, one_of, refuse
from hpccoll.training.shard.clip import clip_shards
from hpccoll.training.shard.volume import Holding
from hpccoll.training.shard.weights import Fetching

#: What to do where ranks have fetched different weights.
SAME_MODULES = ("at stage 3 all ranks run the same modules in the same order, forward and "
                "backward; the gradients of this step are lost")


class ZeroOptimizer(torch.optim.Optimizer):
    """Trains with state, at stage 2 gradients, and at stage 3 weights, cut over the ranks.

    Making one is collective: all ranks begin with the weights of rank 0. ``param_groups`` are those
    of this rank's optimizer, with its shards as parameters, so schedulers and
    :class:`~hpccoll.torch.scaler.AgreedGradScaler` work on them; ``synchronize()`` puts the reduced
    gradients there. ``state_dict`` is this rank's part.

    At stage 3 the parameters of a module are there while its forward and backward run, and in
    ``with gathered():``; elsewhere they have a shape and a type, and whoever computes with them is
    told so. All ranks run the same modules in the same order.

    Args:
        params: parameters, or groups of them, as PyTorch's optimizers take them.
        kind: class of the optimizer; element-wise, such as ``torch.optim.AdamW``.
        stage: 1 cuts state, 2 gradients too, 3 weights too.
        op: ``Average`` or ``Sum`` of the ranks' gradients.
        backward_passes_per_step: gradients of so many passes are added up before they travel.
        bucket_bytes: of a flat buffer, at stages 1 and 2.
        process_set: the ranks.
        module: the model that the parameters belong to; stage 3 cuts all of it, what is not
            trained too. At other stages it gives names.
        units: modules of which all weights come and go together, such as the layers of a
            transformer; by default every module with parameters of its own is one. Stage 3.
        fetching: when weights come and go; see :class:`~hpccoll.training.shard.Fetching`. Stage 3.
        missing: a parameter that no backward pass has reached on a rank counts as ``"zeros"``
            there, or ``"raise"`` says so on all ranks, before anything is changed.
        options: of ``kind``.

    Raises:
        ArgumentError: an optimizer that is not element-wise, or another argument that makes no
            sense.
        ExchangeMismatch: ranks have other parameters; on all of them.
    """

    param_groups: list[dict[str, Any]]
    _make: Callable[[list[dict[str, Any]]], torch.optim.Optimizer]

    def __init__(self, params: Iterable[Any], kind: type[torch.optim.Optimizer], *,
                 stage: int = 1, op: str = AVERAGE, backward_passes_per_step: int = 1,
                 bucket_bytes: int = BUCKET_BYTES,
                 process_set: ProcessSet = global_process_set,
                 module: torch.nn.Module | None = None, units: Sequence[torch.nn.Module] = (),
                 fetching: Fetching | None = None, missing: str = "zeros", **options: Any):
        one_of("stage", stage, (1, 2, 3))
        one_of("missing", missing, ("zeros", "raise"))
        if op not in (AVERAGE, SUM):
            raise ArgumentError("op", f"gradients are not reduced by {op!r}")
        if stage == 3 and module is None:
            raise ArgumentError("module", "is needed at stage 3, which works by hooks on modules",
                                "ZeroOptimizer(model.parameters(), kind, stage=3, module=model)")
        if stage < 3 and (units or fetching):
            raise ArgumentError("stage", f"{stage} has no units and no fetching", "use 3")
        check_element_wise(kind, options)
        self._passes, self._missing = backward_passes_per_step, missing
        self._make = lambda groups: kind(groups, **options)
        self._process_set = process_set
        self._seen: dict[torch.Tensor, int] = {}
        self._synchronized = False
        super().__init__(params, options)
        groups = self.param_groups
        #: All parameters that were given, in their groups.
        self._given = [list(group["params"]) for group in groups]
        trained = [[each for each in given if each.requires_grad] for given in self._given]
        self._names = {} if module is None else {
            each: name for name, each in module.named_parameters()}
        line = process_set.line
        # A first look at it is made by all ranks together; not by its thread in a backward pass.
        line.run(operations.call(lambda: line.comm.layout))
        self._cut: CutModules | FlatParameters = (
            CutModules(module, trained, process_set, op, units, fetching or Fetching())
            if stage == 3 and module is not None else
            FlatParameters(trained, process_set, stage, op, bucket_bytes))
        self._hooks = [each.register_post_accumulate_grad_hook(self._arrived)
                       for members in trained for each in members]
        for number, group in enumerate(groups):
            group["params"] = [part.shard for part in self._parts if part.kind == number]
        self._inner = self._make(groups)
        self.param_groups, self.state = self._inner.param_groups, self._inner.state
        process_set.at_close(self.close)

    @property
    def _parts(self) -> list[Part]:
        return self._cut.parts

    @property
    def shards(self) -> list[torch.Tensor]:
        """This rank's parts; their ``grad`` is the reduced gradient after ``synchronize()``."""
        return [part.shard for part in self._parts]

    @property
    def footprint(self) -> Holding:
        """Bytes that this rank holds now for weights, gradients and state."""
        weights, gradients = self._cut.nbytes
        exact = sum(part.shard.nbytes for part in self._parts if part.members[0].dtype in HALF)
        state = sum(value.nbytes for entries in self.state.values() for value in entries.values()
                    if isinstance(value, torch.Tensor) and value.dim())
        return Holding(weights, gradients, state + exact)

    def gathered(self, *modules: torch.nn.Module) -> AbstractContextManager[None]:
        """A block in which weights are whole on every rank; collective.

        For ``state_dict()`` and ``load_state_dict()`` of the model, and whatever else wants to see
        weights at stage 3. What is changed inside is taken over, and must be the same on all ranks.

        Args:
            modules: those whose weights are wanted, with all inside; by default the whole model.
        """
        return self._cut.gathered(modules)

    def close(self) -> None:
        """Let go of the model's gradients; at stage 3 collective, and weights stay cut."""
        if self._hooks:
            self._cut.close()
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    # -- gradients ---------------------------------------------------------------------------
    def _arrived(self, parameter: torch.Tensor) -> None:
        """Autograd has added to a gradient."""
        seen = self._seen[parameter] = self._seen.get(parameter, 0) + 1
        if seen > self._passes:
            raise ExchangeError(
                f"gradients were computed more than {self._passes} time(s) before step(); give "
                "ZeroOptimizer backward_passes_per_step to accumulate them")
        self._cut.arrived(parameter)
        if seen == self._passes:
            self._cut.ready(parameter)

    def synchronize(self) -> None:
        """Wait until this rank's shards have their reduced gradients; every rank calls it.

        Parameters that a backward pass did not reach count as zeros, or are an error.

        Raises:
            ShardError: on all ranks, before anything is changed: with ``missing="raise"`` it names
                parameters and ranks; at stage 3, ranks that have run other modules.
        """
        missing = [f"the gradient of '{self._name(each)}' did not come" for part in self._parts
                   for each in part.members if each not in self._seen]
        reduced = self._cut.reduced()
        self._seen.clear()
        if self._missing == "raise" or isinstance(self._cut, CutModules):
            line = self._process_set.line
            line.run(operations.call(lambda: self._check(missing)))
        for part, gradient in zip(self._parts, reduced):
            part.shard.grad = gradient
        self._synchronized = True

    def wait_for_gradients(self) -> None:
        """:meth:`synchronize`, unless that was done since the last backward pass; collective.

        What was done to the reduced gradients since then stays: they may be unscaled, then clipped.
        """
        if not self._synchronized or self._cut.under_way:
            self.synchronize()

    def _name(self, parameter: torch.Tensor) -> str:
        listed = [each for given in self._given for each in given]
        return self._names.get(parameter) or next(
            f"parameter {index}" for index, each in enumerate(listed) if each is parameter)

    def _check(self, missing: list[str]) -> None:
        """Raise, on all ranks, where ranks have used different weights, or lack gradients."""
        comm = self._process_set.line.comm
        mine = numpy.array([self._cut.order(), len(missing) * (self._missing == "raise")])
        told = numpy.empty((comm.Get_size(), 2), mine.dtype)
        comm.Allgather(mine, told)
        if (told[:, 0] != told[0, 0]).any():
            raise ShardError({int(rank): ["has fetched other weights than rank 0, or in another "
                                          "order"] for rank in (told[:, 0] != told[0, 0]).nonzero()
                              [0]}, SAME_MODULES)
        if told[:, 1].any():
            refuse(comm, missing, GRADIENTS)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make a step with the gradients of all ranks; every rank calls it.

        Raises:
            ArgumentError: a closure, which would see other weights on every rank.
        """
        if closure is not None:
            raise ArgumentError("closure", "cannot be used where state is cut over ranks",
                                "call backward() before step()")
        self.wait_for_gradients()
        self._synchronized = False
        self._inner.step()
        self._cut.publish()

    step.hooked = True  # type: ignore[attr-defined]  # the inner optimizer runs the hooks of a step

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients of the model and of the shards.

        Raises:
            ExchangeError: they are being reduced.
        """
        if self._cut.under_way:
            raise ExchangeError("zero_grad() came after backward() and before step() or "
                                "synchronize(): the gradients are under way")
        self._synchronized = False
        for part in self._parts:
            for each in (*part.members, part.shard):
                if set_to_none or each.grad is None:
                    each.grad = None
                else:
                    each.grad.zero_()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refused once the parameters are cut.

        Raises:
            ArgumentError: always, after the optimizer was made.
        """
        if hasattr(self, "_inner"):
            raise ArgumentError("param_group", "cannot be added once parameters are cut",
                                "make a new ZeroOptimizer")
        super().add_param_group(param_group)

    # -- state -------------------------------------------------------------------------------
    def state_dict(self) -> dict[str, Any]:
        """This rank's part of the state; other ranks, or another number of them, have others.

        At stage 3 its weights too; elsewhere those are the model's.
        """
        own = [part.shard if self._is_apart(part) else None for part in self._parts]
        return {**self._inner.state_dict(), "cut": self._cut_of(), "shards": own}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from what :meth:`state_dict` gave on the same rank of as many; collective.

        Raises:
            ArgumentError: it is of another rank, or of other parameters.
        """
        if state_dict.get("cut") != self._cut_of():
            raise ArgumentError("state_dict", "is of another rank, another number of ranks, or "
                                "other parameters", "load what this rank has saved")
        for part, saved in zip(self._parts, state_dict.get("shards", ())):
            if saved is not None:
                part.shard.copy_(saved)
        self._load({key: value for key, value in state_dict.items()
                    if key not in ("cut", "shards")})
        self._cut.publish()

    def full_state_dict(self) -> dict[str, Any]:
        """The whole state on every rank, as ``kind`` on one rank would give it; collective.

        It does not depend on the stage or the number of ranks. Of weights of two bytes it holds the
        exact ones, as ``"exact"``; weights of four are the model's, see :meth:`gathered`.
        """
        return whole_state.collect(self._process_set, self._make, self._given, self._parts,
                                   self._inner)

    def load_full_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from what :meth:`full_state_dict` gave, or ``kind`` on one rank; collective.

        Load the model's weights first.

        Raises:
            ArgumentError: it is of other parameters.
        """
        self._load(whole_state.cut(self._process_set.rank(), self._make, self._given, self._parts,
                                   self._inner, state_dict))
        self._cut.publish()

    def _load(self, state_dict: dict[str, Any]) -> None:
        self._inner.load_state_dict(state_dict)
        self.param_groups, self.state = self._inner.param_groups, self._inner.state

    def _is_apart(self, part: Part) -> bool:
        """Tell whether what this rank steps on is not in the model."""
        return isinstance(self._cut, CutModules) or part.members[0].dtype in HALF

    def _cut_of(self) -> list[Any]:
        return [self._process_set.rank(), [list(part.group.counts) for part in self._parts]]


def clip_grad_norm_(parameters: ZeroOptimizer | torch.Tensor | Iterable[torch.Tensor],
                    max_norm: float, norm_type: float = 2.0,
                    process_set: ProcessSet = global_process_set) -> torch.Tensor:
    """Shorten gradients that are spread over ranks to a norm over all of them; collective.

    Args:
        parameters: tensors of which every element is on one rank only, or a
            :class:`ZeroOptimizer`, whose gradients are waited for.
        max_norm: the largest norm.
        norm_type: its order; ``math.inf`` for the largest absolute value.
        process_set: the ranks that the elements are spread over.

    Returns:
        The norm before, the same on all ranks. Nothing is changed if it is not finite.
    """
    if isinstance(parameters, ZeroOptimizer):
        parameters.wait_for_gradients()
        parameters = parameters.shards
    tensors = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
    grads = [each.grad for each in tensors if each.grad is not None]
    line = process_set.line
    norm = line.run(operations.call(lambda: clip_shards(
        line.comm, [values(each).reshape(-1) for each in grads], max_norm, norm_type)))
    return torch.tensor(norm)


def check_element_wise(kind: type[torch.optim.Optimizer], options: dict[str, Any]) -> None:
    """Try two steps on a vector whole and in two parts.

    Raises:
        ArgumentError: they differ, so the optimizer cannot be cut.
    """
    start = torch.tensor([1.0, -2.0, 0.5, 3.0])
    slopes = torch.tensor([0.5, 1.0, -4.0, 0.25]), torch.tensor([1.0, 0.0, 2.0, -3.0])

    def trained(pieces: Sequence[slice]) -> torch.Tensor:
        parts = [start[piece].clone() for piece in pieces]
        optimizer = kind(parts, **options)
        for slope in slopes:
            for part, piece in zip(parts, pieces):
                part.grad = slope[piece].clone()
            optimizer.step()
        return torch.cat(parts)

    try:
        same = torch.equal(trained([slice(0, 4)]), trained([slice(0, 1), slice(1, 4)]))
    except TypeError as error:
        raise ArgumentError("kind", f"{kind.__name__} cannot make a step alone: {error}",
                            "choose an element-wise optimizer, such as AdamW") from error
    if not same:
        raise ArgumentError("kind", f"a step of {kind.__name__} looks at whole tensors, which are "
                            "cut here", "choose an element-wise optimizer, such as AdamW")
