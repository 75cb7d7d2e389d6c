"""Loss scaling that is equal on all ranks, for float16 training.

If gradients of one rank overflow, all ranks skip the step and reduce the scale; otherwise their
models and scales would diverge. Source: PyTorch's ``GradScaler``, after Micikevicius et al., ICLR
2018.
"""

from __future__ import annotations

from typing import Any

import torch

from hpccoll.torch.horovod.async_operations import MAX
from hpccoll.torch.horovod.broadcast_state import allreduce_
from hpccoll.torch.horovod.processes import ProcessSet, global_process_set


class AgreedGradScaler(torch.amp.GradScaler):
    """``torch.amp.GradScaler`` for optimizers of :mod:`hpccoll.torch`, or any on all ranks.

    Waits for pending gradients before it checks them.

    Args:
        device: ``"cpu"`` or ``"cuda"``.
        process_set: the ranks with a common scale.
        options: arguments of ``torch.amp.GradScaler``.
    """

    def __init__(self, device: str = "cuda", process_set: ProcessSet = global_process_set,
                 **options: Any):
        super().__init__(device, **options)
        self._process_set = process_set

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """Divide gradients by the scale; collective. ``step`` calls this method."""
        if not self.is_enabled():
            return
        wait = getattr(optimizer, "synchronize", None)
        if wait is not None:
            wait()
        super().unscale_(optimizer)
        found = self._per_optimizer_states[id(optimizer)]["found_inf_per_device"]
        flag = torch.tensor(max((each.item() for each in found.values()), default=0.0))
        allreduce_(flag, op=MAX, process_set=self._process_set)
        # A rank without a part of a sharded optimizer has no gradients and no entry.
        for device in found or [torch.device(self._device)]:
            found[device] = flag.to(device)
