"""The exchange of gradients: :class:`Exchange`, in its parts.

    settings brought pool   what is wanted, one array on its way, the memory it travels in
    wiring warden ledger    communicators, errors and stalls of all ranks, times
    travel reducing         gates and transfers; scaled, reduced, scaled
    fixed turns             buckets in fixed order; everything that takes all ranks at once
    negotiated              arrays in any order, by votes
    core face               waiting, errors, the end; Exchange: what a training loop calls
"""

from hpccoll.training.exchange.face import Exchange
from hpccoll.training.exchange.settings import ExchangeOptions

__all__ = ["Exchange", "ExchangeOptions"]
