"""``ZeroOptimizer``: any element-wise optimizer of PyTorch, whose state is cut over the ranks.

    gradients --reduce-scatter--> this rank's shards --optimizer--> weights --allgather--> model

Parameters of a group lie one behind the other in flat buffers, cut by
:mod:`hpccoll.training.shard.partition`; this rank's optimizer knows its own shards only, so its
state takes 1/P of the memory. At stage 2 a gradient is gone once its buffer has been reduced.
Models whose weights do not fit either (stage 3) are ``fully_shard``'s, on the process group
``"hpccoll"``; NumPy has :class:`hpccoll.training.shard.zero.Sharded`.
Source: Rajbhandari, Rasley, Ruwase and He, "ZeRO", SC 2020.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from mpi4py import MPI

from hpccoll.errors import ArgumentError, ExchangeError
from hpccoll.torch import operations
from hpccoll.torch.begin import AVERAGE, SUM
from hpccoll.torch.line import AsyncResult, Operation
from hpccoll.torch.processes import ProcessSet, global_process_set
from hpccoll.torch.tensors import memory, values
from hpccoll.training.buckets import BUCKET_BYTES, FIRST_BUCKET_BYTES, ArraySpec
from hpccoll.training.shard.clip import clip_shards
from hpccoll.training.shard.partition import ShardGroup, plan_groups

#: Types whose weights are kept, and whose steps are made, in float32.
HALF = torch.float16, torch.bfloat16


class CutBuffer(NamedTuple):
    """Parameters in one flat buffer.

    Attributes:
        group: how it is cut.
        members: the parameters, whose memory is that of the buffer.
        flat: the buffer.
        shard: what this rank's optimizer changes; a view of the buffer, or its exact weights.
        mine: the elements of the buffer that are this rank's.
    """

    group: ShardGroup
    members: list[torch.Tensor]
    flat: torch.Tensor
    shard: torch.Tensor
    mine: slice


class ZeroOptimizer(torch.optim.Optimizer):
    """Trains with state, and at stage 2 gradients, cut over the ranks.

    Making one is collective: all ranks begin with the weights of rank 0. ``param_groups`` are those
    of this rank's optimizer, with its shards as parameters, so schedulers and
    :class:`~hpccoll.torch.scaler.AgreedGradScaler` work on them; ``synchronize()`` puts the reduced
    gradients there. ``state_dict`` is this rank's part.

    Args:
        params: parameters, or groups of them, as PyTorch's optimizers take them.
        kind: class of the optimizer; element-wise, such as ``torch.optim.AdamW``.
        stage: 1 cuts state, 2 gradients too.
        op: ``Average`` or ``Sum`` of the ranks' gradients.
        backward_passes_per_step: gradients of so many passes are added up before they travel.
        bucket_bytes: of a flat buffer.
        process_set: the ranks.
        options: of ``kind``.

    Raises:
        ArgumentError: an optimizer that is not element-wise, or another argument that makes no
            sense.
        ExchangeMismatch: ranks have other parameters; on all of them.
    """

    param_groups: list[dict[str, Any]]

    def __init__(self, params: Iterable[Any], kind: type[torch.optim.Optimizer], *,
                 stage: int = 1, op: str = AVERAGE, backward_passes_per_step: int = 1,
                 bucket_bytes: int = BUCKET_BYTES,
                 process_set: ProcessSet = global_process_set, **options: Any):
        if stage not in (1, 2):
            raise ArgumentError("stage", f"{stage!r} is not 1 or 2", "for stage 3 use PyTorch's "
                                "fully_shard on the process group 'hpccoll'")
        if op not in (AVERAGE, SUM):
            raise ArgumentError("op", f"gradients are not reduced by {op!r}")
        check_element_wise(kind, options)
        self._stage, self._op, self._passes = stage, op, backward_passes_per_step
        self._process_set, self._under_way = process_set, dict[int, tuple[AsyncResult, Any]]()
        self._seen: dict[torch.Tensor, int] = {}
        self._synchronized = False
        super().__init__(params, options)
        groups = self.param_groups
        self._parts: list[CutBuffer] = []
        for group in groups:
            new = self._cut([each for each in group["params"] if each.requires_grad], bucket_bytes)
            self._parts += new
            group["params"] = [part.shard for part in new]
        self._places = {each: number for number, part in enumerate(self._parts)
                        for each in part.members}
        self._hooks = [each.register_post_accumulate_grad_hook(self._arrived)
                       for each in self._places]
        self._inner = kind(groups, **options)
        self.param_groups, self.state = self._inner.param_groups, self._inner.state
        process_set.at_close(self.close)

    @property
    def shards(self) -> list[torch.Tensor]:
        """This rank's parts; their ``grad`` is the reduced gradient after ``synchronize()``."""
        return [part.shard for part in self._parts]

    def close(self) -> None:
        """Let go of the model's gradients."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def _cut(self, members: list[torch.Tensor], bucket_bytes: int) -> list[CutBuffer]:
        """Put parameters into flat buffers with the weights of rank 0; collective."""
        line = self._process_set.line
        specs = [ArraySpec(str(index), tuple(each.shape), str(each.dtype), each.element_size())
                 for index, each in enumerate(members)]
        line.run(operations.called_alike(line.comm, f"ZeroOptimizer of {specs}"))
        parts = []
        for group in plan_groups(specs, self._process_set.size(), bucket_bytes,
                                 min(FIRST_BUCKET_BYTES, bucket_bytes)):
            own = [members[index] for index in group.bucket.members]
            flat = torch.cat([each.detach().reshape(-1) for each in own])
            line.run(operations.broadcast(line.comm, flat, 0, "weights"))
            for each, piece in zip(own, flat.split([each.numel() for each in own])):
                each.data = piece.view(each.shape)
            mine = group.part(self._process_set.rank())
            shard = flat[mine].float() if flat.dtype in HALF else flat[mine]
            parts.append(CutBuffer(group, own, flat, shard, mine))
        return parts

    # -- gradients ---------------------------------------------------------------------------
    def _arrived(self, parameter: torch.Tensor) -> None:
        """Autograd has added to a gradient."""
        number = self._places[parameter]
        seen = self._seen[parameter] = self._seen.get(parameter, 0) + 1
        if seen > self._passes or number in self._under_way:
            raise ExchangeError(
                f"gradients were computed more than {self._passes} time(s) before step(); give "
                "ZeroOptimizer backward_passes_per_step to accumulate them")
        # Buffers set off in one order on all ranks.
        while len(self._under_way) < len(self._parts) and all(
                self._seen.get(each) == self._passes
                for each in self._parts[len(self._under_way)].members):
            self._set_off(len(self._under_way))

    def _set_off(self, number: int) -> None:
        part = self._parts[number]
        flat = torch.cat([torch.zeros_like(each).reshape(-1) if each.grad is None else
                          each.grad.reshape(-1) for each in part.members])
        if self._op == AVERAGE and flat.dtype in HALF:
            flat /= self._process_set.size()  # before, or sums might overflow
        if self._stage == 2:
            for each in part.members:
                each.grad = None
        shard = flat.new_empty(part.group.counts[self._process_set.rank()])
        comm = self._process_set.line.comm

        def steps() -> Operation:
            yield comm.Ireduce_scatter(values(flat), values(shard), list(part.group.counts),
                                       MPI.SUM)
            return shard

        self._under_way[number] = self._process_set.line.start(steps()), flat

    def synchronize(self) -> None:
        """Wait until this rank's shards have their reduced gradients; every rank calls it.

        Parameters that a backward pass did not reach count as zeros.
        """
        for number in range(len(self._under_way), len(self._parts)):
            self._set_off(number)
        for number, part in enumerate(self._parts):
            reduced = self._under_way[number][0].wait().to(part.shard.dtype)
            if self._op == AVERAGE and part.flat.dtype not in HALF:
                reduced /= self._process_set.size()
            part.shard.grad = reduced
        self._under_way.clear()
        self._seen.clear()
        self._synchronized = True

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make a step with the gradients of all ranks; every rank calls it.

        Raises:
            ArgumentError: a closure, which would see other weights on every rank.
        """
        if closure is not None:
            raise ArgumentError("closure", "cannot be used where state is cut over ranks",
                                "call backward() before step()")
        if not self._synchronized or self._under_way:
            self.synchronize()
        self._synchronized = False
        self._inner.step()
        self._publish()

    step.hooked = True  # type: ignore[attr-defined]  # the inner optimizer runs the hooks of a step

    def _publish(self) -> None:
        """Give every rank the weights that the others have changed."""
        line, under_way = self._process_set.line, []
        for part in self._parts:
            if part.flat.dtype in HALF:
                part.flat[part.mine] = part.shard.to(part.flat.dtype)
            under_way.append(line.start(self._gathered(part)))
        for pending in under_way:
            pending.wait()

    def _gathered(self, part: CutBuffer) -> Operation:
        width = part.flat.element_size()
        yield self._process_set.line.comm.Iallgatherv(
            MPI.IN_PLACE, [memory(part.flat).view("u1"),
                           [width * count for count in part.group.counts]])

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients of the model and of the shards.

        Raises:
            ExchangeError: they are being reduced.
        """
        if self._under_way:
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

    def state_dict(self) -> dict[str, Any]:
        """This rank's part of the state; other ranks, or another number of them, have others."""
        return {**self._inner.state_dict(), "cut": self._cut_of()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from what :meth:`state_dict` gave on the same rank of as many.

        Raises:
            ArgumentError: it is of another rank, or of other parameters.
        """
        if state_dict.get("cut") != self._cut_of():
            raise ArgumentError("state_dict", "is of another rank, another number of ranks, or "
                                "other parameters", "load what this rank has saved")
        self._inner.load_state_dict({key: value for key, value in state_dict.items()
                                     if key != "cut"})
        self.param_groups, self.state = self._inner.param_groups, self._inner.state

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
        parameters.synchronize()
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
