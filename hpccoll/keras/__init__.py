"""Keras 3 on any backend: an optimizer wrapper and callbacks with Horovod's names.

    optimizer            DistributedOptimizer: averages gradients over ranks, on each backend
    callbacks            broadcast of initial values, averaged metrics, learning rate warm-up

A module imports only modules before it in this list.
"""

from hpccoll.training.framework import require, world

require("keras", "3", "keras,jax", ": set KERAS_BACKEND to 'jax', 'torch' or 'tensorflow'")

from hpccoll.keras.callbacks import (  # noqa: E402  report a missing package before its import
    BroadcastGlobalVariablesCallback,
    LearningRateWarmupCallback,
    MetricAverageCallback,
)
from hpccoll.keras.optimizer import DistributedOptimizer  # noqa: E402

__all__ = ["BroadcastGlobalVariablesCallback", "DistributedOptimizer",
           "LearningRateWarmupCallback", "MetricAverageCallback", "world"]
