"""Sharded training of optimizer state, gradients and weights: ZeRO 1, 2 and 3.

    stage   sharded                   a step sends, of n bytes and P ranks
    0       nothing                   allreduce of gradients               2n(P-1)/P
    1       the optimizer's state     reduce-scatter, allgather of weights  2n(P-1)/P
    2       + gradients               the same, group by group             2n(P-1)/P
    3       + weights                 + allgather in both passes           3n(P-1)/P

and one allreduce of three numbers: the norm, the count of non-finite values, and the count of
missing gradients. All stages compute sums on the user's communicator, in its deterministic order if
it has one: with ``determinism="size"`` all stages are bitwise equal.
Source: Rajbhandari, Rasley, Ruwase and He, "ZeRO", SC 2020; DeepSpeed; PyTorch's FSDP.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

import numpy

from hpccoll.errors import ArgumentError, ArgumentTypeError, NonFiniteError, ShardError
from hpccoll.training.arguments import as_list, communicator
from hpccoll.training.buckets import BUCKET_BYTES, FIRST_BUCKET_BYTES
from hpccoll.training.compress.scheme import Steps
from hpccoll.training.optimizers import ElementwiseOptimizer
from hpccoll.training.shard import checkpoint
from hpccoll.training.shard.agreement import GRADIENTS, agreed_specs, one_of, raise_on_all_ranks
from hpccoll.training.shard.clip import (
    Clip,
    LossScale,
    Scale,
    join_powers,
    norm_of,
    power_sum,
    reduce_powers,
)
from hpccoll.training.shard.communicators import ShardCommunicators
from hpccoll.training.shard.gradients import Gradients
from hpccoll.training.shard.memory_model import MemoryUse
from hpccoll.training.shard.partition import check_units, plan_groups
from hpccoll.training.shard.quantised import ZeroPlusPlus
from hpccoll.training.shard.shard_state import InMemory, MappedFiles, ShardState, exact_type
from hpccoll.training.shard.weights import Fetching, ReplicatedWeights, ShardedWeights


class Update(NamedTuple):
    """Result of a step.

    Attributes:
        number: number of completed steps.
        norm: norm of the gradient before clipping; ``nan`` if it was not computed.
        applied: True if weights were updated; False if the loss scale was too large.
        scale: loss scale of the next step.
    """

    number: int
    norm: float
    applied: bool
    scale: float


class Sharded:
    """Sharded parameters, gradients and optimizer state; all methods are collective.

    Args:
        comm: an ``hpccoll.Comm`` with no other collectives in the meantime.
        parameters: floating-point arrays, in the order of a forward pass; those of rank 0 are
            broadcast. They are copied: the model must use :attr:`parameters`.
        optimizer: element-wise optimizer, see :mod:`hpccoll.training.optimizers`. Between steps it
            may be replaced by one with the same state, such as one with another rate.
        stage: 0 to 3.
        names: names of the arrays, for messages.
        units: indices of the arrays that are used together, in the order of a forward pass; by
            default each array is one unit.
        op: ``"average"`` or ``"sum"`` of the ranks' gradients.
        clip: largest 2-norm of the gradient of all arrays, or a
            :class:`~hpccoll.training.shard.clip.Clip`.
        loss_scale: loss scaling: multiply losses by :attr:`scale`; gradients are divided by it.
            A step with non-finite gradients is skipped.
        check: without a loss scale, raise an error for non-finite gradients.
        missing: ``"raise"``, or ``"zeros"`` for arrays that a pass may omit.
        accumulate: behaviour of :meth:`accumulate` at stages 2 and 3: ``"whole"`` accumulates whole
            gradients without communication, ``"shards"`` accumulates parts with an exchange in
            each pass.
        bucket_bytes, first_bucket_bytes: limits of a group at stages 0 to 2.
        fetching: limits of weights at stage 3.
        zeropp: quantisation at stage 3.
        storage: folder for memory-mapped state; by default the state is in memory.
        model_comm: communicator of the ranks with the other parts of the model, at this position of
            ``comm``; the norm is that of the whole model.
        replicated: indices of arrays that are equal on all ranks of ``model_comm``, counted once.

    Attributes:
        optimizer, units: as above.
        number: number of completed steps.

    Raises:
        ArgumentError: incompatible options.
        ShardError: arrays or options differ between ranks.
    """

    def __init__(self, comm: Any, parameters: Sequence[Any], optimizer: ElementwiseOptimizer, *,
                 stage: int = 1, names: Sequence[str] | None = None,
                 units: Sequence[Sequence[int]] | None = None, op: str = "average",
                 clip: float | Clip | None = None, loss_scale: LossScale | None = None,
                 check: bool = True, missing: str = "raise", accumulate: str = "whole",
                 bucket_bytes: int = BUCKET_BYTES, first_bucket_bytes: int = FIRST_BUCKET_BYTES,
                 fetching: Fetching | None = None, zeropp: ZeroPlusPlus | None = None,
                 storage: str | os.PathLike[str] | None = None, model_comm: Any = None,
                 replicated: Sequence[int] = ()):
        one_of("stage", stage, (0, 1, 2, 3))
        one_of("op", op, ("average", "sum"))
        one_of("missing", missing, ("raise", "zeros"))
        one_of("accumulate", accumulate, ("whole", "shards"))
        if not isinstance(optimizer, ElementwiseOptimizer):
            raise ArgumentTypeError("optimizer", "expected an element-wise optimizer, got "
                                                 f"{optimizer!r}",
                                    "pass an object, such as Adam(rate=0.01)")
        communicator("comm", comm)
        if model_comm is not None:
            communicator("model_comm", model_comm)
        for argument, value, kind in (("loss_scale", loss_scale, LossScale),
                                      ("fetching", fetching, Fetching),
                                      ("zeropp", zeropp, ZeroPlusPlus)):
            if value is not None and not isinstance(value, kind):
                raise ArgumentTypeError(argument, f"expected a {kind.__name__}, got {value!r}",
                                        f"pass {kind.__name__}(), or leave it out")
        if clip is not None and not isinstance(clip, (int, float, Clip)):
            raise ArgumentTypeError("clip", f"expected a norm or a Clip, got {clip!r}")
        if stage < 3 and (fetching or zeropp):
            raise ArgumentError("stage", f"{stage} does not support fetching and zeropp",
                                "use stage 3")
        self.comm, self.optimizer, self.stage = comm, optimizer, stage
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        self.clip = Clip(clip) if isinstance(clip, (int, float)) else clip
        self.loss_scale, self.check = loss_scale, check
        self.model_comm, self.replicated = model_comm, frozenset(replicated)
        self.number = 0
        self._scale = Scale(loss_scale.initial if loss_scale else 1.0)
        arrays = [numpy.asarray(array) for array in as_list("parameters", parameters)]
        fetching, zeropp = fetching or Fetching(), zeropp or ZeroPlusPlus()
        if units is None:
            units = [[index] for index in range(len(arrays))]
        check_units(units, len(arrays))
        self.units = [list(unit) for unit in units]
        self._specs = agreed_specs(comm, arrays, names, str((
            stage, self.units, op, self.clip, loss_scale, check, missing, accumulate, bucket_bytes,
            first_bucket_bytes, fetching, zeropp, sorted(self.replicated))))
        self._groups = plan_groups(self._specs, self.size, bucket_bytes, first_bucket_bytes,
                                   self.units if stage == 3 else None, fetching.persistent)
        self._spans = [group.part(self.rank) if stage else slice(0, group.bucket.count)
                       for group in self._groups]
        self._comms = ShardCommunicators(comm, stage, zeropp)
        dtypes = [arrays[group.bucket.members[0]].dtype for group in self._groups]
        vectors = self._comms.broadcast_arrays(self._groups, arrays, self._spans if stage == 3
                                               else None)
        self._weights: ReplicatedWeights | ShardedWeights = (
            ShardedWeights(self.rank, self._specs, self._groups, self.units, vectors,
                           self._comms.gather, fetching, self._comms.inside) if stage == 3 else
            ReplicatedWeights(self.rank, self._specs, self._groups, self.units, vectors,
                              self._comms.gather if stage else None))
        store = MappedFiles(storage) if storage is not None else InMemory()
        self._states = [ShardState(self._weights.part(number), optimizer, store, exact_type(dtype))
                        for number, dtype in enumerate(dtypes)]
        # 16-bit sums must not overflow: divide by about half of the divisor first.
        low = any(dtype.itemsize == 2 for dtype in dtypes)
        before = 2.0 ** (self.size.bit_length() // 2) if low and op == "average" else 1.0
        self._divisor = (self.size if op == "average" else 1) / before
        self._gradients = Gradients(self.rank, stage, self._specs, self._groups, dtypes,
                                    self._reduction, before, missing == "zeros",
                                    accumulate == "shards")

    # -- weights and gradients of the model ----------------------------------------------------
    @property
    def parameters(self) -> list[numpy.ndarray]:
        """Arrays of the model, which each step updates; stages 0 to 2.

        Raises:
            ArgumentError: stage 3; use :meth:`fetch`.
        """
        if isinstance(self._weights, ShardedWeights):
            raise ArgumentError("stage", "stage 3 has no full weights", "use 'with fetched(unit)'")
        return self._weights.arrays

    @property
    def gradients(self) -> list[numpy.ndarray]:
        """Gradient buffers for a backward pass, before ``ready(index)``; stages 0 and 1.

        Raises:
            ArgumentError: stages 2 and 3, which have no whole gradients.
        """
        if self.stage > 1:
            raise ArgumentError("stage", f"stage {self.stage} has no full gradients",
                                "use ready(index, gradient)")
        return self._gradients.views

    def fetch(self, unit: int) -> dict[int, numpy.ndarray]:
        """Return the arrays of a unit by index; stage 3 gathers them and prefetches the next.

        Valid until the release or the next step. All ranks must fetch the same units in the same
        order.

        Raises:
            ArgumentError: unknown unit.
        """
        return self._weights.fetch(unit)

    def release(self, unit: int) -> bool:
        """Release a unit; return True if its arrays are invalid, at stage 3 only.

        Raises:
            ArgumentError: unknown unit, or it was not fetched.
        """
        return self._weights.release(unit)

    @contextmanager
    def fetched(self, unit: int) -> Iterator[dict[int, numpy.ndarray]]:
        """Return a context manager that fetches and releases a unit."""
        yield self.fetch(unit)
        self.release(unit)

    @property
    def scale(self) -> float:
        """Factor for the loss before the backward pass."""
        return self._scale.value

    # -- a step --------------------------------------------------------------------------------
    def ready(self, index: int, gradient: Any = None) -> None:
        """Submit the gradient of an array, in any order; launch its group if it is complete.

        :meth:`step` raises on all ranks if the gradient is invalid on one.

        Args:
            index: index of the array.
            gradient: array of its shape and dtype; may be omitted if :attr:`gradients` was written.
        """
        self._gradients.ready(index, gradient)
        self._weights.poll()

    def paused(self) -> AbstractContextManager[None]:
        """Return a context that accumulates the gradients of a backward pass.

        A later pass exchanges them: nothing is sent, and this rank stores whole gradients. With
        ``accumulate="shards"`` each block is one pass with an exchange, and only this rank's part
        is accumulated.
        """
        return self._gradients.accumulate()

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Return a context for the passes of one step that propagates errors to all ranks.

        Other ranks raise in their :meth:`step`. At stage 3 this works from the second step on,
        because the first step determines the order of fetches.

        Raises:
            ShardError: for any error in the block.
        """
        try:
            yield
        except Exception as error:
            self._gradients.faults.append(f"{type(error).__name__}: {error}")
            self._weights.fetch_remaining()
            try:
                self.step()
            except ShardError as sharded:
                raise sharded from error
            raise

    def step(self) -> Update:
        """Finish the exchange, and run an optimizer step with the gradients of all ranks.

        Raises:
            ShardError: on all ranks, if gradients of one are missing or invalid. Submitted
                gradients are discarded; nothing else is changed.
            NonFiniteError: on all ranks, if a gradient contains inf or nan; without a loss scale.
        """
        faults = self._gradients.finish()
        norm, finite, wrong = self._reduce_checks(len(faults))
        try:
            if wrong:
                raise_on_all_ranks(self.comm, faults, GRADIENTS, "gradients are missing elsewhere")
            if not finite and self.loss_scale is None:
                raise NonFiniteError(f"a gradient has inf or nan: step {self.number + 1}; use "
                                     "check=False to ignore it, or a loss_scale to skip the step")
            if finite:
                self._apply(self.clip.factor(norm) if self.clip else 1.0)
            else:
                self._weights.rewind()
        finally:
            self._gradients.clear()
        if self.loss_scale:
            self._scale = self.loss_scale.next_scale(self._scale, finite)
        return Update(self.number, norm, finite, self.scale)

    def _apply(self, factor: float) -> None:
        self.number += 1
        self._update(lambda owned, gradient: owned.step(
            self.optimizer, gradient, self.number, self._divisor * self.scale, factor))

    def _update(self, change: Callable[[ShardState, numpy.ndarray], None]) -> None:
        """Update weights group by group; gather each group while the next one is updated."""
        self._weights.expire()
        for number, owned in enumerate(self._states):
            change(owned, self._gradients.part(number))
            self._weights.publish(number)
        self._weights.finish()

    # -- checkpoints ---------------------------------------------------------------------------
    def state(self) -> dict[str, Any]:
        """Gather the whole training state on every rank; collective.

        Returns:
            ``{"number", "scale", "vectors": {name: [array of each parameter]}}``, with exact
            weights as ``"weights"``. It does not depend on the stage or the number of ranks.
        """
        gather = self._comms.exact_gather if self.stage else None
        vectors = {name: checkpoint.gather_arrays(gather, self._groups, self._specs, parts)
                   for name, parts in self._vectors().items()}
        return {"number": self.number, "scale": tuple(self._scale), "vectors": vectors}

    def load(self, state: dict[str, Any]) -> None:
        """Restore a state of :meth:`state`, also of another stage or number of ranks.

        Raises:
            ArgumentError: the state belongs to other arrays or another optimizer.
        """
        checkpoint.check(self._specs, self._vectors(), state["vectors"])
        for name, parts in self._vectors().items():
            checkpoint.scatter_arrays(self._groups, self._spans, state["vectors"][name], parts)
        self._publish_loaded(state["number"], state["scale"])

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write or replace a checkpoint: a file on each rank and an index; collective.

        Raises:
            ShardError: on all ranks, if a rank cannot write; the older checkpoint remains.
        """
        vectors = {name: [part if self.stage else part[span]
                          for part, span in zip(parts, self._local_spans())]
                   for name, parts in self._vectors().items()}
        checkpoint.save(self._comms.gathers, folder, self._groups, self._specs, vectors,
                        {"number": self.number, "scale": tuple(self._scale)})

    def restore(self, folder: str | os.PathLike[str]) -> None:
        """Restore a checkpoint of any number of ranks and any stage; collective.

        Raises:
            ShardError: on all ranks, if files are missing or belong to other arrays.
        """
        facts = checkpoint.restore(self._comms.gathers, folder, self._groups, self._specs,
                                   self._spans, self._vectors())
        self._publish_loaded(facts["number"], facts["scale"])

    @property
    def footprint(self) -> MemoryUse:
        """Return the current memory of this rank."""
        return MemoryUse(self._weights.nbytes, self._gradients.nbytes,
                           sum(owned.nbytes for owned in self._states))

    def close(self) -> None:
        """Free the created communicators; collective."""
        self._comms.free()

    # ------------------------------------------------------------------------------------------
    def _reduction(self, number: int, vector: numpy.ndarray) -> Steps:
        return self._comms.reduce(self._groups[number], vector)

    def _reduce_checks(self, faults: int) -> tuple[float, bool, bool]:
        """Reduce the norm, non-finite values and faults over ranks."""
        order = self.clip.order if self.clip else 2.0
        looked = self.check or self.clip is not None or self.loss_scale is not None
        mine = join_powers([power_sum(values, order) for values in self._norm_gradients()],
                           order) if looked else 0.0
        sums = reduce_powers(self.comm, mine, order, not math.isfinite(mine), faults)
        if self.model_comm is not None:
            sums = reduce_powers(self.model_comm, sums[0], order, *sums[1:])
        double = any(spec.dtype == "float64" for spec in self._specs)
        norm = norm_of(sums[0], order, double) / (self._divisor * self.scale)
        return norm if looked and not sums[1] else math.nan, not sums[1], bool(sums[2])

    def _norm_gradients(self) -> Iterator[numpy.ndarray]:
        """Yield the gradients that this rank counts in norms, without duplicates."""
        others_look = self.model_comm is not None and self.model_comm.Get_rank() > 0
        for number, (group, span) in enumerate(zip(self._groups, self._local_spans())):
            values = self._gradients.norm_part(number)
            for index, _, place in group.pieces(span):
                if not (others_look and index in self.replicated):
                    yield values[place]

    def _local_spans(self) -> list[slice]:
        return [group.part(self.rank) for group in self._groups]

    def _vectors(self) -> dict[str, list[numpy.ndarray]]:
        """Return exact weights and the optimizer's vectors, by name and group."""
        names = self._states[0].state if self._states else ()
        return {"weights": [owned.exact for owned in self._states],
                **{name: [owned.state[name] for owned in self._states] for name in names}}

    def _publish_loaded(self, number: int, scale: Sequence[float]) -> None:
        self.number = number
        if self.loss_scale:
            self._scale = Scale(float(scale[0]), int(scale[1]))
        self._update(lambda owned, gradient: owned.publish())
