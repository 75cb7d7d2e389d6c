"""Sharding of optimizer state, gradients and parameters over ranks (ZeRO 1 to 3).

    partition memory_model      ownership of elements; cost of a stage in closed form
    clip                        global norms and loss scales, equal on all ranks
    shard_state                 owned part of a group, its storage and its optimizer step
    gradients weights           gradients to their owners, weights from their owners
    quantised communicators     ZeRO++; collectives and communicators of a stage
    agreement checkpoint        consistency checks between ranks; checkpoints and resharding
    zero                        Sharded: the interface for training loops

Names are imported lazily: closed forms need no MPI.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpccoll.training.shard.clip import Clip as Clip
    from hpccoll.training.shard.clip import LossScale as LossScale
    from hpccoll.training.shard.clip import clip_shards as clip_shards
    from hpccoll.training.shard.clip import global_norm as global_norm
    from hpccoll.training.shard.memory_model import footprint as footprint
    from hpccoll.training.shard.memory_model import sent_bytes as sent_bytes
    from hpccoll.training.shard.quantised import ZeroPlusPlus as ZeroPlusPlus
    from hpccoll.training.shard.weights import Fetching as Fetching
    from hpccoll.training.shard.zero import Sharded as Sharded

#: Modules of the public names.
PLACES = {"Clip": "clip", "Fetching": "weights", "LossScale": "clip", "Sharded": "zero",
          "ZeroPlusPlus": "quantised", "clip_shards": "clip", "footprint": "memory_model",
          "global_norm": "clip", "sent_bytes": "memory_model"}
__all__ = ["Clip", "Fetching", "LossScale", "Sharded", "ZeroPlusPlus", "clip_shards", "footprint",
           "global_norm", "sent_bytes"]


def __getattr__(name: str) -> Any:
    if name in PLACES:
        return getattr(import_module(f"{__name__}.{PLACES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])
