"""Training whose state, gradients and weights are cut over the ranks: ZeRO 1, 2 and 3.

    stage   cut                       a step sends, of n bytes and P ranks
    0       nothing                   allreduce of gradients               2n(P-1)/P
    1       the optimizer's state     reduce-scatter, allgather of weights  2n(P-1)/P
    2       + gradients               the same, group by group             2n(P-1)/P
    3       + weights                 + allgather in both passes           3n(P-1)/P

and one allreduce of three numbers, in which ranks agree on the norm, on whether all is finite, and
on whether every gradient came. Sums of all stages are made on the communicator that was given, in
one order where it promises one: with ``determinism="size"`` all stages have the same bits.
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
from hpccoll.training.buckets import BUCKET_BYTES, FIRST_BUCKET_BYTES
from hpccoll.training.compress.scheme import Steps
from hpccoll.training.given import communicator, listed
from hpccoll.training.optimizers import ElementwiseOptimizer
from hpccoll.training.shard import checkpoint
from hpccoll.training.shard.agreement import GRADIENTS, agree_on, one_of, refuse, specs_of
from hpccoll.training.shard.clip import Clip, agree, join, norm_of, power
from hpccoll.training.shard.gradients import Gradients
from hpccoll.training.shard.owned import Owned, exact_type
from hpccoll.training.shard.partition import check_units, plan_groups
from hpccoll.training.shard.quantised import ZeroPlusPlus
from hpccoll.training.shard.scale import LossScale, Scale
from hpccoll.training.shard.storage import InMemory, Mapped
from hpccoll.training.shard.volume import Holding
from hpccoll.training.shard.weights import CutWeights, Fetching, WholeWeights
from hpccoll.training.shard.wires import Wires


class Update(NamedTuple):
    """What a step did.

    Attributes:
        number: steps so far.
        norm: of the gradient, before it was clipped; ``nan`` where nobody looked.
        applied: weights were changed; not where a loss scale was too large.
        scale: of the next losses.
    """

    number: int
    norm: float
    applied: bool
    scale: float


class Sharded:
    """Parameters, gradients and optimizer state of one rank; collective from end to end.

    Args:
        comm: an ``hpccoll.Comm`` on which nobody else makes collectives meanwhile.
        parameters: arrays of floating-point numbers, in the order of a forward pass; those of
            rank 0 count. They are copied: :attr:`parameters` is what the model uses from now on.
        optimizer: element-wise, see :mod:`hpccoll.training.optimizers`. May be replaced between
            steps by one with the same state, such as with another rate.
        stage: 0 to 3.
        names: of the arrays, for messages.
        units: indices of the arrays that are used together, in the order of a forward pass; by
            default every array is one.
        op: ``"average"`` or ``"sum"`` of the ranks' gradients.
        clip: largest 2-norm of the gradient of all arrays, or a
            :class:`~hpccoll.training.shard.clip.Clip`.
        loss_scale: losses are multiplied by :attr:`scale`, gradients divided by it; a step whose
            gradients are not finite is skipped.
        check: without a loss scale, gradients that are not finite are an error.
        missing: ``"raise"``, or ``"zeros"`` for arrays that a pass may leave out.
        accumulate: what :meth:`paused` does at stages 2 and 3: ``"whole"`` gradients add up here,
            without communication, or ``"shards"`` add up, with an exchange in every pass.
        bucket_bytes, first_bucket_bytes: limits of a group at stages 0 to 2.
        fetching: when weights of stage 3 come and go.
        zeropp: what travels as integers at stage 3.
        storage: folder for files in which the state is mapped; by default it is in memory.
        model_comm: ranks that hold other parts of the model, at this place of ``comm``; the norm
            is that of the whole model.
        replicated: indices of arrays that all ranks of ``model_comm`` hold alike, counted once.

    Attributes:
        optimizer, units: as above.
        number: steps so far.

    Raises:
        ArgumentError: options that do not go together.
        ShardError: arrays or options that differ between ranks.
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
        arrays = [numpy.asarray(array) for array in listed("parameters", parameters)]
        fetching, zeropp = fetching or Fetching(), zeropp or ZeroPlusPlus()
        if units is None:
            units = [[index] for index in range(len(arrays))]
        check_units(units, len(arrays))
        self.units = [list(unit) for unit in units]
        self._specs = specs_of(arrays, names)
        agree_on(comm, self._specs, str((
            stage, self.units, op, self.clip, loss_scale, check, missing, accumulate, bucket_bytes,
            first_bucket_bytes, fetching, zeropp, sorted(self.replicated))))
        self._groups = plan_groups(self._specs, self.size, bucket_bytes, first_bucket_bytes,
                                   self.units if stage == 3 else None, fetching.persistent)
        self._spans = [group.part(self.rank) if stage else slice(0, group.bucket.count)
                       for group in self._groups]
        self._wires = Wires(comm, stage, zeropp)
        dtypes = [arrays[group.bucket.members[0]].dtype for group in self._groups]
        vectors = self._wires.begin(self._groups, arrays, self._spans if stage == 3 else None)
        self._weights: WholeWeights | CutWeights = (
            CutWeights(self.rank, self._specs, self._groups, self.units, vectors,
                       self._wires.gather, fetching, self._wires.inside) if stage == 3 else
            WholeWeights(self.rank, self._specs, self._groups, self.units, vectors,
                         self._wires.gather if stage else None))
        store = Mapped(storage) if storage is not None else InMemory()
        self._owned = [Owned(self._weights.part(number), optimizer, store, exact_type(dtype))
                       for number, dtype in enumerate(dtypes)]
        # Sums of numbers of two bytes must not overflow: half of the division comes before.
        low = any(dtype.itemsize == 2 for dtype in dtypes)
        before = 2.0 ** (self.size.bit_length() // 2) if low and op == "average" else 1.0
        self._divisor = (self.size if op == "average" else 1) / before
        self._gradients = Gradients(self.rank, stage, self._specs, self._groups, dtypes,
                                    self._reduction, before, missing == "zeros",
                                    accumulate == "shards")

    # -- what a model uses ---------------------------------------------------------------------
    @property
    def parameters(self) -> list[numpy.ndarray]:
        """The model's arrays, changed by every step; stages 0 to 2.

        Raises:
            ArgumentError: stage 3; use :meth:`fetched`.
        """
        if isinstance(self._weights, CutWeights):
            raise ArgumentError("stage", "stage 3 has no full weights", "use 'with fetched(unit)'")
        return self._weights.arrays

    @property
    def gradients(self) -> list[numpy.ndarray]:
        """Arrays that a backward pass may write to, and then call ``ready(index)``; stages 0, 1.

        Raises:
            ArgumentError: stages 2 and 3, which hold no whole gradients.
        """
        if self.stage > 1:
            raise ArgumentError("stage", f"stage {self.stage} has no full gradients",
                                "use ready(index, gradient)")
        return self._gradients.views

    def fetch(self, unit: int) -> dict[int, numpy.ndarray]:
        """The arrays of a unit, by index; stage 3 gathers them, and begins those that come next.

        Valid until it is released, or the next step. All ranks fetch the same units in the
        same order.

        Raises:
            ArgumentError: no such unit.
        """
        return self._weights.fetch(unit)

    def release(self, unit: int) -> bool:
        """Let a unit go; tell whether its arrays are gone, as at stage 3 only.

        Raises:
            ArgumentError: no such unit, or it was not fetched.
        """
        return self._weights.release(unit)

    @contextmanager
    def fetched(self, unit: int) -> Iterator[dict[int, numpy.ndarray]]:
        """Fetch a unit for the block of a ``with``."""
        yield self.fetch(unit)
        self.release(unit)

    @property
    def scale(self) -> float:
        """What to multiply the loss by before the backward pass."""
        return self._scale.value

    # -- a step --------------------------------------------------------------------------------
    def ready(self, index: int, gradient: Any = None) -> None:
        """Bring the gradient of an array, in any order; its group sets off when it is whole.

        What is wrong with it is raised by :meth:`step`, on all ranks.

        Args:
            index: of the array.
            gradient: of its shape and type; may be omitted where :attr:`gradients` was written.
        """
        self._gradients.ready(index, gradient)
        self._weights.poll()

    def paused(self) -> AbstractContextManager[None]:
        """Add up the gradients of a backward pass, for a later one to exchange.

        Nothing is sent, and whole gradients stay here; with ``accumulate="shards"`` every block
        is one pass that is exchanged at once, and this rank's part adds up.
        """
        return self._gradients.paused()

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """A block for the passes of one step: its error on one rank is raised on all.

        The others get it in their :meth:`step`. At stage 3 from the second step on: only then is
        it known which weights they are going to fetch.

        Raises:
            ShardError: in place of an error in the block.
        """
        try:
            yield
        except Exception as error:
            self._gradients.faults.append(f"{type(error).__name__}: {error}")
            self._weights.catch_up()
            try:
                self.step()
            except ShardError as told:
                raise told from error
            raise

    def step(self) -> Update:
        """Finish the exchange, and make a step of the optimizer with the gradients of all ranks.

        Raises:
            ShardError: on all ranks, if gradients of one are missing or wrong. Those that were
                brought are forgotten, nothing else is changed.
            NonFiniteError: on all ranks, if a gradient holds inf or nan; without a loss scale.
        """
        faults = self._gradients.finish()
        norm, finite, wrong = self._look(len(faults))
        try:
            if wrong:
                refuse(self.comm, faults, GRADIENTS, "gradients are missing elsewhere")
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
            self._scale = self.loss_scale.after(self._scale, finite)
        return Update(self.number, norm, finite, self.scale)

    def _apply(self, factor: float) -> None:
        self.number += 1
        self._change(lambda owned, gradient: owned.step(
            self.optimizer, gradient, self.number, self._divisor * self.scale, factor))

    def _change(self, change: Callable[[Owned, numpy.ndarray], None]) -> None:
        """Change weights group by group, and give each to the others while the next is changed."""
        self._weights.expire()
        for number, owned in enumerate(self._owned):
            change(owned, self._gradients.part(number))
            self._weights.publish(number)
        self._weights.finish()

    # -- what must survive ---------------------------------------------------------------------
    def state(self) -> dict[str, Any]:
        """All that training goes on from, whole, on every rank; collective.

        Returns:
            ``{"number", "scale", "vectors": {name: [array of each parameter]}}``, the exact
            weights under ``"weights"``. It does not depend on the stage or the ranks.
        """
        gather = self._wires.exact_gather if self.stage else None
        vectors = {name: checkpoint.collect(gather, self._groups, self._specs, parts)
                   for name, parts in self._vectors().items()}
        return {"number": self.number, "scale": tuple(self._scale), "vectors": vectors}

    def load(self, state: dict[str, Any]) -> None:
        """Go on from what :meth:`state` gave, here or at another stage or number of ranks.

        Raises:
            ArgumentError: it is of other arrays, or of another optimizer.
        """
        checkpoint.check(self._specs, self._vectors(), state["vectors"])
        for name, parts in self._vectors().items():
            checkpoint.spread(self._groups, self._spans, state["vectors"][name], parts)
        self._go_on(state["number"], state["scale"])

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write a file on every rank, and an index; what was there before is replaced; collective.

        Raises:
            ShardError: on all ranks, if a rank cannot write; the files of before stay.
        """
        vectors = {name: [part if self.stage else part[span]
                          for part, span in zip(parts, self._own_spans())]
                   for name, parts in self._vectors().items()}
        checkpoint.save(self._wires.gathers, folder, self._groups, self._specs, vectors,
                        {"number": self.number, "scale": tuple(self._scale)})

    def restore(self, folder: str | os.PathLike[str]) -> None:
        """Go on from what :meth:`save` wrote, with any number of ranks, and any stage; collective.

        Raises:
            ShardError: on all ranks, if files are missing, or those of other arrays.
        """
        facts = checkpoint.restore(self._wires.gathers, folder, self._groups, self._specs,
                                   self._spans, self._vectors())
        self._go_on(facts["number"], facts["scale"])

    @property
    def footprint(self) -> Holding:
        """Bytes that this rank holds now."""
        return Holding(self._weights.nbytes, self._gradients.nbytes,
                         sum(owned.nbytes for owned in self._owned))

    def close(self) -> None:
        """Free the communicators that were made; collective."""
        self._wires.free()

    # ------------------------------------------------------------------------------------------
    def _reduction(self, number: int, vector: numpy.ndarray) -> Steps:
        return self._wires.reduce(self._groups[number], vector)

    def _look(self, faults: int) -> tuple[float, bool, bool]:
        """Agree on the norm, on whether it is finite, and on whether anything is wrong."""
        order = self.clip.order if self.clip else 2.0
        looked = self.check or self.clip is not None or self.loss_scale is not None
        mine = join([power(values, order) for values in self._counted()], order) if looked else 0.0
        told = agree(self.comm, mine, order, not math.isfinite(mine), faults)
        if self.model_comm is not None:
            told = agree(self.model_comm, told[0], order, *told[1:])
        double = any(spec.dtype == "float64" for spec in self._specs)
        norm = norm_of(told[0], order, double) / (self._divisor * self.scale)
        return norm if looked and not told[1] else math.nan, not told[1], bool(told[2])

    def _counted(self) -> Iterator[numpy.ndarray]:
        """The gradients that this rank looks at for all: no element twice."""
        others_look = self.model_comm is not None and self.model_comm.Get_rank() > 0
        for number, (group, span) in enumerate(zip(self._groups, self._own_spans())):
            values = self._gradients.counted(number)
            for index, _, place in group.pieces(span):
                if not (others_look and index in self.replicated):
                    yield values[place]

    def _own_spans(self) -> list[slice]:
        return [group.part(self.rank) for group in self._groups]

    def _vectors(self) -> dict[str, list[numpy.ndarray]]:
        """Exact weights and the optimizer's vectors, by name and group."""
        names = self._owned[0].state if self._owned else ()
        return {"weights": [owned.exact for owned in self._owned],
                **{name: [owned.state[name] for owned in self._owned] for name in names}}

    def _go_on(self, number: int, scale: Sequence[float]) -> None:
        """Let all ranks see weights that were loaded."""
        self.number = number
        if self.loss_scale:
            self._scale = Scale(float(scale[0]), int(scale[1]))
        self._change(lambda owned, gradient: owned.publish())
