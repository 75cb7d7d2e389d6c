"""Synchronized batch normalisation over the batches of all ranks.

Two reductions for each layer and pass: the sums, then the squares of the centred values, which
avoids cancellation. Both are differentiable. Batches may differ in size or be empty. PyTorch's
``SyncBatchNorm`` does the same on the process group ``"hpccoll"``; this class needs no process
group.
Source: Ioffe and Szegedy, ICML 2015.
"""

from __future__ import annotations

from typing import Any

import torch

from hpccoll.errors import ArgumentError
from hpccoll.torch.horovod.async_operations import SUM
from hpccoll.torch.horovod.broadcast_state import allreduce
from hpccoll.torch.horovod.processes import ProcessSet, global_process_set


class SyncBatchNorm(torch.nn.modules.batchnorm._BatchNorm):
    """Normalises each channel (dimension 1) over all other dimensions and all ranks.

    Args:
        num_features: number of channels; further arguments are those of ``torch.nn.BatchNorm1d``.
        process_set: the ranks.
    """

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float | None = 0.1,
                 affine: bool = True, track_running_stats: bool = True,
                 process_set: ProcessSet = global_process_set, **where: Any):
        super().__init__(num_features, eps, momentum, affine, track_running_stats, **where)
        self._process_set = process_set

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2 or input.shape[1] != self.num_features:
            raise ArgumentError("input", f"expected a batch with {self.num_features} channels in "
                                f"dimension 1, got the shape {tuple(input.shape)}")

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Normalise the input; collective in training mode."""
        self._check_input_dim(input)
        if not self.training and self.track_running_stats:
            return super().forward(input)
        others = [dim for dim in range(input.dim()) if dim != 1]
        shape = [1 if dim in others else -1 for dim in range(input.dim())]
        wide = input if input.dtype == torch.float64 else input.float()
        own = wide.new_tensor([input.numel() // self.num_features])
        sums = self._total(torch.cat([wide.sum(others), own]))
        count = sums[-1].detach()
        mean = sums[:-1] / count
        rest = wide - mean.view(shape)
        variance = self._total(rest.square().sum(others)) / count
        if self.track_running_stats:
            self._remember(mean.detach(), variance.detach() * count / (count - 1).clamp(min=1))
        result = rest * torch.rsqrt(variance + self.eps).view(shape)
        if self.affine:
            result = result * self.weight.view(shape) + self.bias.view(shape)
        return result.to(input.dtype)

    def _total(self, values: torch.Tensor) -> torch.Tensor:
        return allreduce(values, op=SUM, process_set=self._process_set)

    def _remember(self, mean: torch.Tensor, variance: torch.Tensor) -> None:
        """Update the running statistics, which evaluation uses."""
        self.num_batches_tracked.add_(1)
        step = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), step)
        self.running_var.lerp_(variance.to(self.running_var.dtype), step)
