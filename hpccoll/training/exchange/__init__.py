"""Gradient exchange: :class:`Exchange` and its parts.

    settings                            settings
    tensor_entry fusion_buffer          pending arrays; their contiguous memory
    communicators failure_propagation   communicators; errors and stalls
    transfer reducing                   barriers and transfers; scaling and reduction
    fixed collective_step               buckets in fixed order; operations of all ranks together
    negotiated                          arrays in any order, with votes
    core api                            waiting, errors, closing; Exchange, the public interface
"""

from hpccoll.training.exchange.api import Exchange
from hpccoll.training.exchange.settings import ExchangeOptions

__all__ = ["Exchange", "ExchangeOptions"]
