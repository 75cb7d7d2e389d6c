"""DDP communication hooks of PyTorch for compression schemes and Adasum.

    state = CompressState("powersgd:rank=4")
    ddp.register_comm_hook(state, compress_hook)

DDP passes its buckets in one order on all ranks. Each bucket becomes an operation in a separate
queue that overlaps with the backward pass. Residuals of a compressor are stored by *parameter*: DDP
rebuilds its buckets after the first iteration, and a residual stored by bucket index would be added
to other parameters. DDP may use any process group; the data are sent with MPI.
"""

from __future__ import annotations

from typing import Any

import torch
from mpi4py import MPI

from hpccoll import Comm
from hpccoll.errors import ArgumentError
from hpccoll.torch import operations
from hpccoll.torch.operation_queue import Operation, OperationLine
from hpccoll.torch.process_group.work import promise
from hpccoll.torch.tensors import as_dense, values
from hpccoll.training.adasum import Adasum
from hpccoll.training.compress import parse, states
from hpccoll.training.compress.scheme import Reduction, Scheme

#: Dtypes of the computation; other floating-point types are cast to the first and back.
WIDE = torch.float32, torch.float64


class CompressState:
    """State of a hook.

    Creation and :meth:`close` are collective.

    Args:
        compress: a scheme of :mod:`hpccoll.training.compress`, its text such as
            ``"topk:density=0.01"``, or ``"adasum"``.
        comm: the ranks of DDP's process group, in its order; ``MPI.COMM_WORLD`` by default.

    Raises:
        ArgumentError: an unknown scheme, or the communicator does not match the process group.
    """

    def __init__(self, compress: str | Scheme = "none", comm: MPI.Intracomm | None = None):
        self.scheme = None if compress == "adasum" else parse(compress)
        ranks = comm or MPI.COMM_WORLD
        # Unlike Dup, Split copies no attributes, which would call functions of the user.
        self._comm = Comm(MPI.Intracomm.Split(ranks, 0, ranks.Get_rank()), progress="calls")
        self._line = OperationLine(self._comm)
        self._buckets: dict[tuple[int, ...], tuple[Reduction, list[torch.Tensor]]] = {}
        self._owners: dict[int, tuple[int, ...]] = {}
        self._kept: dict[int, dict[str, Any]] = {}

    def check(self, ranks: int) -> None:
        """Raise ArgumentError unless the communicator has as many ranks as DDP's group."""
        if ranks != self._comm.Get_size():
            raise ArgumentError("comm", f"has {self._comm.Get_size()} ranks, but torch's process "
                                f"group {ranks}",
                                "pass CompressState the communicator of the same ranks")

    def start(self, parameters: list[torch.Tensor], flat: torch.Tensor
              ) -> torch.futures.Future[torch.Tensor]:
        """Start to reduce a bucket in place."""
        errors: list[BaseException | None] = []

        def outcome() -> torch.Tensor:
            if errors[0] is not None:
                raise errors[0]  # DDP raises a RuntimeError with its text
            return flat

        def on_done(error: BaseException | None) -> None:
            errors.append(error)
            complete()

        future, complete = promise(outcome)
        pending = self._line.start(self._travel(parameters, flat), on_done)
        if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
            pending.wait()  # nothing else would progress it
        return future

    def _travel(self, parameters: list[torch.Tensor], flat: torch.Tensor) -> Operation:
        wide = as_dense(flat if flat.dtype in WIDE else flat.to(WIDE[0]))
        yield from self._reduction(parameters).reduce(values(wide).reshape(-1))
        if wide.data_ptr() != flat.data_ptr():
            flat.copy_(wide)

    def _reduction(self, parameters: list[torch.Tensor]) -> Reduction:
        """Return the reduction for a bucket of these parameters, with their stored state."""
        key = tuple(map(id, parameters))
        if key in self._buckets:
            return self._buckets[key][0]
        if any(owner in self._buckets for owner in map(self._owners.get, key)):
            self._keep()
        shapes = [tuple(each.shape) for each in parameters]
        reduction = (self.scheme or Adasum()).start(self._comm, shapes)
        if all(each in self._kept for each in key):
            reduction.load(states.join_states([self._kept[each] for each in key],
                                              [each.numel() for each in parameters]))
        self._buckets[key] = reduction, parameters
        self._owners.update(dict.fromkeys(key, key))
        return reduction

    def _keep(self) -> None:
        """Store the state by parameter before buckets are rebuilt; collective."""
        for reduction, parameters in self._buckets.values():
            parts = states.split_state(reduction.state(), [each.numel() for each in parameters])
            self._kept.update(zip(map(id, parameters), parts))
        self._buckets.clear()

    def state(self, model: torch.nn.Module) -> dict[str, dict[str, Any]]:
        """Return the residuals by parameter name, for a checkpoint; collective."""
        self._line.run(operations.call(self._keep))
        return {name: self._kept[id(each)] for name, each in model.named_parameters()
                if id(each) in self._kept}

    def load(self, model: torch.nn.Module, state: dict[str, dict[str, Any]]) -> None:
        """Restore a state that :meth:`state` returned; between steps, on every rank."""
        self._buckets.clear()
        self._kept = {id(each): state[name] for name, each in model.named_parameters()
                      if name in state}

    def close(self) -> None:
        """Free the communicator; collective."""
        self._line.close()
        self._comm.Free()


# No annotations: DDP compares them with its classes, and here they would be strings.
def compress_hook(state, bucket):
    """Average a bucket of gradients over ranks, compressed.

    Args:
        state: a :class:`CompressState`.
        bucket: a ``torch.distributed.GradBucket``.

    Returns:
        A ``torch.futures.Future`` of the averaged bucket.

    Raises:
        ArgumentError: not a :class:`CompressState`, or not a bucket of DDP.
    """
    if not isinstance(state, CompressState):
        raise ArgumentError("state", f"expected a CompressState, got {type(state).__name__}",
                            "ddp.register_comm_hook(CompressState('bf16'), compress_hook)")
    if not hasattr(bucket, "parameters"):
        raise ArgumentError("bucket", f"{type(bucket).__name__} does not report its parameters",
                            f"torch {torch.__version__} is too old: pip install 'hpccoll[torch]'")
    return state.start(bucket.parameters(), bucket.buffer())
