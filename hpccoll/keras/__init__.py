"""Keras 3 on any of its backends: an optimizer wrapper and callbacks, named as Horovod names them.

    framework            is Keras here, and in which version
    communicator         the communicator that is used unless told otherwise
    optimizer            DistributedOptimizer: the mean of gradients over ranks, on each backend
    callbacks            start values from one rank, means of metrics, a warm-up of the rate

A module here imports those before it in this list only.
"""

from hpccoll.keras.framework import require_keras

require_keras()

from hpccoll.keras.callbacks import (  # noqa: E402  what is missing is said before it is needed
    BroadcastGlobalVariablesCallback,
    LearningRateWarmupCallback,
    MetricAverageCallback,
)
from hpccoll.keras.communicator import world  # noqa: E402
from hpccoll.keras.optimizer import DistributedOptimizer  # noqa: E402

__all__ = ["BroadcastGlobalVariablesCallback", "DistributedOptimizer",
           "LearningRateWarmupCallback", "MetricAverageCallback", "world"]
