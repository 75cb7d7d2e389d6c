"""Callbacks for ``model.fit`` with Horovod's names."""

from __future__ import annotations

from typing import Any

import keras
import numpy
from mpi4py import MPI

from hpccoll.errors import ArgumentError, ExchangeMismatch
from hpccoll.errors.agreement import compare
from hpccoll.keras.optimizer import Averaging
from hpccoll.training.framework import communicator


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):
    """Broadcasts the initial weights and optimizer state of one rank.

    Random generators of layers (dropout) keep separate states on each rank.

    Args:
        root_rank: rank of the root.
        comm: the ranks.

    Raises:
        ArgumentError: invalid rank.
    """

    def __init__(self, root_rank: int = 0, *, comm: MPI.Intracomm | None = None):
        super().__init__()
        self.comm, self.root = communicator(comm), root_rank
        if not 0 <= root_rank < self.comm.size:
            raise ArgumentError("root_rank", f"rank {root_rank} is not in a communicator of "
                                f"{self.comm.size}")

    def on_train_begin(self, logs: Any = None) -> None:
        """Broadcast weights and optimizer state.

        Raises:
            ExchangeMismatch: ranks have different models; on all ranks.
            ArgumentError: the optimizer averages inside a ``LossScaleOptimizer``.
        """
        optimizer = self.model.optimizer
        if isinstance(getattr(optimizer, "inner_optimizer", None), Averaging):
            raise ArgumentError("optimizer", "ranks could skip different steps: a "
                                             "LossScaleOptimizer contains the DistributedOptimizer",
                                "wrap the LossScaleOptimizer in the DistributedOptimizer")
        if not optimizer.built:
            optimizer.build(self.model.trainable_variables)
        variables = [*self.model.weights, *optimizer.variables]
        # Keras numbers layers per process, so compare shapes and dtypes, not names.
        difference = compare(self.comm, [f"{variable.dtype}{list(variable.shape)}"
                                         for variable in variables])
        if difference is not None:
            raise ExchangeMismatch(f"models differ in variable {difference.place}: {difference}; "
                                   "build the same model on all ranks", (), difference.ranks)
        mine = self.comm.rank == self.root
        values = self.comm.bcast([keras.ops.convert_to_numpy(variable) for variable in variables]
                                 if mine else None, self.root)
        for variable, value in zip(variables, values if not mine else ()):
            variable.assign(value)


class MetricAverageCallback(keras.callbacks.Callback):
    """Averages the metrics of an epoch over the ranks.

    Place it before callbacks that use metrics, such as ``EarlyStopping`` and
    ``ReduceLROnPlateau``, which then take the same decisions on all ranks.

    Args:
        comm: the ranks.
    """

    def __init__(self, *, comm: MPI.Intracomm | None = None):
        super().__init__()
        self.comm = communicator(comm)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Average the metrics; all ranks must have the same names.

        Raises:
            ExchangeMismatch: names differ; on all ranks.
        """
        logs = {} if logs is None else logs
        names = sorted(logs)
        difference = compare(self.comm, [", ".join(names)])
        if difference is not None:
            raise ExchangeMismatch(f"metrics differ: {difference}; compile the same metrics and "
                                   "validate on all ranks", tuple(names), difference.ranks)
        values = numpy.array([float(logs[name]) for name in names])
        sums = numpy.empty_like(values)
        self.comm.Allreduce(values, sums)
        logs.update((name, float(value) / self.comm.size) for name, value in zip(names, sums))


class LearningRateWarmupCallback(keras.callbacks.Callback):
    """Increases the learning rate in each batch, from that of one rank to that of all.

    With p ranks a step uses p times the examples and p times the learning rate, which is too large
    in the first epochs (Goyal et al., arXiv:1706.02677). After the fraction ``f`` of the warm-up
    the rate is ``initial_lr / p * (1 + f (p - 1))``.

    Args:
        initial_lr: learning rate after the warm-up, for all ranks together.
        warmup_epochs: length of the warm-up in epochs.
        steps_per_epoch: batches of an epoch; by default from the data.
        verbose: 1 to print the rate after the warm-up on rank 0.
        comm: the ranks.

    Raises:
        ArgumentError: the length of the warm-up is not positive.
    """

    def __init__(self, initial_lr: float, warmup_epochs: float = 5,
                 steps_per_epoch: int | None = None, verbose: int = 0, *,
                 comm: MPI.Intracomm | None = None):
        super().__init__()
        if warmup_epochs <= 0:
            raise ArgumentError("warmup_epochs", f"must be positive, got {warmup_epochs}")
        self.comm, self.initial_lr, self.verbose = communicator(comm), initial_lr, verbose
        self.warmup_epochs, self.steps_per_epoch = warmup_epochs, steps_per_epoch
        self.epoch, self.over = 0, False

    def on_train_begin(self, logs: Any = None) -> None:
        """Determine the number of batches of an epoch.

        Raises:
            ArgumentError: the number of batches is unknown.
        """
        self.over = False
        self.steps_per_epoch = self.steps_per_epoch or self.params.get("steps")
        if not self.steps_per_epoch:
            raise ArgumentError("steps_per_epoch", "the data has no length",
                                "pass steps_per_epoch")

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Record the epoch, from which the warm-up is computed."""
        self.epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Set the learning rate of this batch."""
        if self.over:
            return
        done = (self.epoch + batch / (self.steps_per_epoch or 1)) / self.warmup_epochs
        self.over = done >= 1
        # On JAX the variables are outdated during an epoch, and are read again after this.
        getattr(self.model, "jax_state_sync", lambda: None)()
        rate = self.initial_lr / self.comm.size * (1 + min(1.0, done) * (self.comm.size - 1))
        self.model.optimizer.learning_rate = rate
        if self.over and self.verbose and self.comm.rank == 0:
            print(f"Epoch {self.epoch + 1}: the warm-up ends, the learning rate is {rate:g}")
