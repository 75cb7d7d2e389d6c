"""Data-parallel training: exchange, compression and sharding of gradients.

    arguments framework             checks of arguments and of installed frameworks
    arrays buckets                  arrays of any framework, bucket plans
    trace report picture            timelines of arrays and buckets, their summary and plots
    compress/                       compression schemes for one bucket
    optimizers/                     element-wise optimizers, and those with compressed momentum
    adasum sparse                   Adasum; allreduce of sparse rows
    engine negotiation              progress thread; readiness votes, priority scheduling
    stall_inspector                 control messages between ranks, queries for missing arrays
    autotune exchange/              autotuning of settings; Exchange, for a training loop
    shard/ averaging                sharded state (ZeRO 1-3); model averaging
    groups/                         mesh(dp=, tp=, ...) and the exchanges of parallel groups

Works with any ``hpccoll.Comm``. Uses only the public names of :mod:`hpccoll` and imports no
framework: :mod:`hpccoll.torch`, :mod:`hpccoll.jax` and :mod:`hpccoll.keras` build on it. A new
compressor is a class in ``compress`` and a row in its table.

Names are imported lazily: importing the package needs neither NumPy nor MPI.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpccoll.training.averaging import LateExchange as LateExchange
    from hpccoll.training.averaging import ModelAverager as ModelAverager
    from hpccoll.training.exchange import Exchange as Exchange
    from hpccoll.training.exchange import ExchangeOptions as ExchangeOptions
    from hpccoll.training.groups import mesh as mesh
    from hpccoll.training.shard import Sharded as Sharded
    from hpccoll.training.shard import clip_shards as clip_shards
    from hpccoll.training.shard import global_norm as global_norm

#: Public names and their modules.
PLACES = {"Exchange": "exchange", "ExchangeOptions": "exchange", "LateExchange": "averaging",
          "ModelAverager": "averaging", "Sharded": "shard", "clip_shards": "shard",
          "global_norm": "shard", "mesh": "groups"}
__all__ = ["Exchange", "ExchangeOptions", "LateExchange", "ModelAverager", "Sharded",
           "clip_shards", "global_norm", "mesh"]


def __getattr__(name: str) -> Any:
    if name in PLACES:
        return getattr(import_module(f"hpccoll.training.{PLACES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])
