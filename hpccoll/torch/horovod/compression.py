"""What travels in place of a tensor: a type of half the size, or a scheme of ours.

``Compression.fp16`` is Horovod's: cast, reduce, cast back. :class:`DistributedOptimizer
<hpccoll.torch.horovod.optimizer.DistributedOptimizer>` and the hooks of DDP take the text of any
scheme of :mod:`hpccoll.training.compress` in its place, such as ``"topk:density=0.01"``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch


class Compressor(NamedTuple):
    """A type that travels.

    Attributes:
        name: of the scheme of :mod:`hpccoll.training.compress` that does the same.
        dtype: what floating-point tensors are cast to; their own if ``None``.
    """

    name: str
    dtype: torch.dtype | None = None

    def compress(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """The tensor that travels, and what :meth:`decompress` needs."""
        if self.dtype is None or not tensor.is_floating_point():
            return tensor, tensor.dtype
        return tensor.to(self.dtype), tensor.dtype

    def decompress(self, tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """The tensor in its own type."""
        return tensor.to(ctx)


class Compression:
    """The compressors by Horovod's names, and bfloat16."""

    none = Compressor("none")
    fp16 = Compressor("fp16", torch.float16)
    bf16 = Compressor("bf16", torch.bfloat16)
