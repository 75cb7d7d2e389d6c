"""Optimizers for flat vectors, whole or cut into shards.

    sgd adam         element by element: no two elements know of each other, so any shard may step
                     for itself
    onebit_adam      Adam whose momentum travels in one bit, once its variance is frozen
    zero_one_adam    and which travels in some steps only

The first two are an :class:`~hpccoll.training.optimizers.sgd.ElementwiseOptimizer`: frozen
settings, ``start`` makes the state, ``step`` changes parameters and state in place. The others
exchange what they step with, so they take this rank's own gradients, and their steps are generators
like those of :mod:`hpccoll.training.compress.scheme`.
"""

from hpccoll.training.optimizers.adam import Adam
from hpccoll.training.optimizers.onebit_adam import OneBitAdam
from hpccoll.training.optimizers.sgd import ElementwiseOptimizer, Sgd
from hpccoll.training.optimizers.zero_one_adam import ZeroOneAdam

__all__ = ["Adam", "ElementwiseOptimizer", "OneBitAdam", "Sgd", "ZeroOneAdam"]
