"""Gradient exchange: :class:`Exchange` and its parts.

    settings brought pool   settings, pending arrays, fusion buffers
    wiring warden ledger    communicators, error and stall handling, timing
    travel reducing         gates and transfers; scaling and reduction
    fixed turns             buckets in fixed order; operations that involve all buckets
    negotiated              arrays in any order, with votes
    core face               waiting, errors, closing; Exchange, the public interface
"""

from hpccoll.training.exchange.api import Exchange
from hpccoll.training.exchange.settings import ExchangeOptions

__all__ = ["Exchange", "ExchangeOptions"]
