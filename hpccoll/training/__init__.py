"""Training: gradients exchanged, compressed and sharded over any ``hpccoll.Comm``.

    arrays buckets order            arrays of any kind, the plan of buckets, what goes first
    trace report picture            what happened to every array; what it amounts to
    compress/                       schemes: how one bucket travels
    optimizers/                     element by element, or with momentum that is compressed
    adasum sparse                   gradients combined by agreement; rows of large tables
    engine control negotiation      who drives it, what ranks tell each other, what is ready
    autotune exchange/              better settings while it runs; Exchange, for a training loop
    shard/ averaging                state cut into shards (ZeRO 1-3); averages instead of exchange
    groups/                         mesh(dp=, tp=, ...), and what such groups exchange

It stands on the public names of :mod:`hpccoll` alone and knows no framework: :mod:`hpccoll.torch`,
:mod:`hpccoll.jax` and :mod:`hpccoll.keras` stand on it. A new compressor is a module in
``compress`` and a row in its table.

A name is loaded on first use: importing the package needs neither NumPy nor MPI.
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

#: Public names and the modules that they are in.
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
