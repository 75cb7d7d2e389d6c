"""Sharding: optimizer state, gradients and parameters cut over the ranks (ZeRO 1 to 3).

    partition volume            which rank owns which elements; what a stage costs in closed form
    storage flight              where state lies; exchanges on their way
    clip scale                  global norms, and loss scales, that all ranks agree on
    owned gradients weights     what a rank owns; what travels to owners, and back from them
    quantised wires             ZeRO++; what a stage sends, and on which communicators
    agreement checkpoint        what ranks must have in common; shards put together and cut anew
    zero                        Sharded: all of these for a training loop

Names are loaded on first use: closed forms need no MPI.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpccoll.training.shard.clip import Clip as Clip
    from hpccoll.training.shard.clip import clip_shards as clip_shards
    from hpccoll.training.shard.clip import global_norm as global_norm
    from hpccoll.training.shard.quantised import ZeroPlusPlus as ZeroPlusPlus
    from hpccoll.training.shard.scale import LossScale as LossScale
    from hpccoll.training.shard.volume import footprint as footprint
    from hpccoll.training.shard.volume import sent_bytes as sent_bytes
    from hpccoll.training.shard.weights import Fetching as Fetching
    from hpccoll.training.shard.zero import Sharded as Sharded

#: Where the public names are.
PLACES = {"Clip": "clip", "Fetching": "weights", "LossScale": "scale", "Sharded": "zero",
          "ZeroPlusPlus": "quantised", "clip_shards": "clip", "footprint": "volume",
          "global_norm": "clip", "sent_bytes": "volume"}
__all__ = ["Clip", "Fetching", "LossScale", "Sharded", "ZeroPlusPlus", "clip_shards", "footprint",
           "global_norm", "sent_bytes"]


def __getattr__(name: str) -> Any:
    if name in PLACES:
        return getattr(import_module(f"{__name__}.{PLACES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])
