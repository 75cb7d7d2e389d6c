"""A loss scale that all ranks agree on, for training in float16.

Where one rank's gradients overflow, all ranks leave out the step and lower the scale, or their
models and scales would part. Source: PyTorch's ``GradScaler``, after Micikevicius et al., ICLR
2018.
"""

from __future__ import annotations

from typing import Any

import torch

from hpccoll.torch.horovod.begin import MAX
from hpccoll.torch.horovod.functions import allreduce_
from hpccoll.torch.horovod.processes import ProcessSet, global_process_set


class AgreedGradScaler(torch.amp.GradScaler):
    """``torch.amp.GradScaler`` for optimizers of :mod:`hpccoll.torch`, or any on all ranks.

    Gradients that are under way are waited for before they are looked at.

    Args:
        device: ``"cpu"`` or ``"cuda"``.
        process_set: the ranks that agree.
        options: of ``torch.amp.GradScaler``.
    """

    def __init__(self, device: str = "cuda", process_set: ProcessSet = global_process_set,
                 **options: Any):
        super().__init__(device, **options)
        self._process_set = process_set

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """Divide gradients by the scale; every rank calls it, or ``step``, which does."""
        if not self.is_enabled():
            return
        wait = getattr(optimizer, "synchronize", None)
        if wait is not None:
            wait()
        super().unscale_(optimizer)
        found = self._per_optimizer_states[id(optimizer)]["found_inf_per_device"]
        flag = torch.tensor(max((each.item() for each in found.values()), default=0.0))
        allreduce_(flag, op=MAX, process_set=self._process_set)
        # A rank that owns nothing of a sharded optimizer has no gradients, and no entry.
        for device in found or [torch.device(self._device)]:
            found[device] = flag.to(device)
