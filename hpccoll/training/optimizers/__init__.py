"""Optimizers for flat vectors, whole or sharded.

    sgd adam         element-wise: elements are independent, so each shard steps separately
    onebit_adam      Adam with 1-bit momentum after its variance is frozen
    zero_one_adam    0/1 Adam, which also skips communication in most steps

The first two are an :class:`~hpccoll.training.optimizers.sgd.ElementwiseOptimizer`: frozen
settings, ``start`` creates the state, ``step`` updates parameters and state in place. The others
communicate in a step, so they take this rank's local gradients, and their steps are generators as
in :mod:`hpccoll.training.compress.scheme`.
"""

from hpccoll.training.optimizers.adam import Adam
from hpccoll.training.optimizers.onebit_adam import OneBitAdam
from hpccoll.training.optimizers.sgd import ElementwiseOptimizer, Sgd
from hpccoll.training.optimizers.zero_one_adam import ZeroOneAdam

__all__ = ["Adam", "ElementwiseOptimizer", "OneBitAdam", "Sgd", "ZeroOneAdam"]
