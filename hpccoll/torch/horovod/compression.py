"""Compression of tensors: casts to 16-bit types, as in Horovod.

``Compression.fp16`` casts, reduces and casts back. :class:`DistributedOptimizer
<hpccoll.torch.horovod.optimizer.DistributedOptimizer>` and the DDP hooks also accept the text of
any scheme of :mod:`hpccoll.training.compress`, such as ``"topk:density=0.01"``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch


class Compressor(NamedTuple):
    """Cast to a wire dtype.

    Attributes:
        dtype: wire dtype of floating-point tensors; ``None`` for no cast.
    """

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
    """Compressors by Horovod's names, and bfloat16."""

    none = Compressor("none")
    fp16 = Compressor("fp16", torch.float16)
    bf16 = Compressor("bf16", torch.bfloat16)
