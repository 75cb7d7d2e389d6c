"""Process group: operations of ``torch.distributed`` on a private communicator.

    dist.all_reduce(t)                  inline, on the caller's thread    collectives
    dist.all_reduce(t, async_op=True)   the group's queue                 work_queue
    dist.isend(t, 1)                    immediately, any number           peers

A synchronous call first waits for pending asynchronous calls: calls of a group run in the order of
issue. It then runs immediately, without a new object or a message to another thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from mpi4py import MPI
from torch.distributed import ProcessGroup
from torch.distributed import distributed_c10d as c10d

from hpccoll import Comm
from hpccoll.errors import ProcessGroupError
from hpccoll.errors.waits import raisable
from hpccoll.torch.process_group import collectives
from hpccoll.torch.process_group.operators import (
    OneOrMore,
    as_list,
    one_list,
    operator_of,
    options_of,
)
from hpccoll.torch.process_group.peers import Peers
from hpccoll.torch.process_group.registered import RegisteredMemory
from hpccoll.torch.process_group.sparse import allreduce_sparse, check_sparse
from hpccoll.torch.process_group.work import FINISHED, CoalescedWork, GroupWork, run_eagerly
from hpccoll.torch.process_group.work_queue import Arrivals, WorkQueue
from hpccoll.torch.streams import current_in_cupy

Tensors = Sequence[torch.Tensor]
#: Name of the backend.
NAME = "hpccoll"
#: Names of calls in profiles, if they differ from the methods.
EVENTS = {"allreduce": "all_reduce", "allgather": "all_gather", "alltoall": "all_to_all"}
#: Seconds that a wait adds to the group's time-out: the call itself fails first, with an error that
#: names the missing ranks.
SURPLUS = 5.0
#: Number of small calls whose objects are kept alive, and their largest number of elements: DDP's
#: ``join`` passes such an object to C++ only, where it has no methods after garbage collection.
KEPT, FEW = 64, 256


@run_eagerly
class Group(ProcessGroup):
    """Process group on an MPI communicator.

    Args:
        comm: communicator of the members in rank order; the group frees it.
        store: torch's store of this group.
        title: name of the group.
        timeout: time limit of a call, which then raises ``GroupTimeout``, or the communicator's
            ``CollectiveTimeout`` with the missing ranks.
    """

    def __init__(self, comm: Comm, store: Any, title: str, timeout: timedelta):
        super().__init__(comm.rank, comm.size)
        self.comm, self.store, self.title = comm, store, title
        self.seconds = timeout.total_seconds()
        comm.layout  # noqa: B018 - detected by all ranks here, not by the lane of some
        self.arrivals = Arrivals(comm)
        self.lane = WorkQueue(f"hpccoll group {title}", self.arrivals)
        self.peers = Peers(comm, f"group {title}")
        self.registered = RegisteredMemory(comm)
        self.issued = 0
        self.kept: deque[GroupWork] = deque(maxlen=KEPT)
        self.error: BaseException | None = None
        self._name, self._description = title, ""
        self._devices = ["cpu", *(["cuda"] if torch.cuda.is_available() and find_spec("cupy")
                                  else [])]
        self._coalesced: list[Any] | None = None
        self.device_comm: Comm | None = None

    # -- issuing -----------------------------------------------------------------------------
    def _issue(self, name: str, run: Callable[[], Any], options: Any, tensors: Tensors) -> Any:
        """Issue a call; PyTorch's profiler records it by its public name."""
        if not torch.autograd._profiler_enabled():
            return self._start(name, run, options, tensors)
        with torch.profiler.record_function(f"{NAME}:{EVENTS.get(name, name)}") as event:
            work = self._start(name, run, options, tensors)
            if work is not FINISHED:
                event._call_end_callbacks_on_future(work.get_future())
        return work

    def _start(self, name: str, run: Callable[[], Any], options: Any, tensors: Tensors) -> Any:
        """Run a call to completion, or append it to the queue; see :meth:`_issue`."""
        self.issued += 1
        if self.error is not None:
            raise raisable(self.error)
        lane = self.lane
        if not getattr(options, "asyncOp", True) and not lane.queue:
            self.arrivals.mine[0] = self.issued
            if tensors and tensors[0].is_cuda:
                with current_in_cupy(tensors[0].device):
                    run()
            else:
                run()
            return FINISHED
        work = GroupWork(self._describe(name), run, tensors, self._seconds(options))
        work.number = self.issued
        work.give_up = self._give_up
        if sum(tensor.numel() for tensor in tensors) <= FEW:
            self.kept.append(work)
        lane.put(work)
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    def _comm_for(self, *tensors: torch.Tensor) -> Comm:
        """Return the communicator of a call; for CUDA tensors, all ranks pass device arrays."""
        if "cuda" not in self._devices or not any(tensor.is_cuda for tensor in tensors):
            return self.comm
        if self.device_comm is None:
            self.device_comm = Comm(self.comm, device="cuda")
        return self.device_comm

    def _describe(self, name: str) -> str:
        return f"{name}, call {self.issued} of group {self.title} on rank {self.comm.rank},"

    def _seconds(self, options: Any) -> float:
        given = getattr(options, "timeout", None)
        if given is not None and given > timedelta(0):
            return given.total_seconds()
        return self.seconds + SURPLUS

    def _give_up(self, work: GroupWork) -> None:
        self.error = ProcessGroupError(f"group {self.title} is broken: {work.error}")

    # -- collectives -------------------------------------------------------------------------
    # ``given`` are torch's options, or the arguments that hooks and programs pass instead.
    def allreduce(self, tensors: OneOrMore, *given: Any, **named: Any) -> Any:
        tensor, = tensors = as_list(tensors)
        opts = options_of(c10d.AllreduceOptions, *given, **named)
        operator, reduce = operator_of(opts.reduceOp, tensor.dtype), collectives.allreduce
        comm = self._comm_for(tensor)
        if tensor.layout is not torch.strided:
            check_sparse(tensor, operator)
            reduce, comm = allreduce_sparse, self.comm  # sends counts in host memory, too
        return self._issue("allreduce", partial(reduce, comm, tensor, operator), opts, tensors)

    def allreduce_coalesced(self, tensors: Tensors, *given: Any, **named: Any) -> Any:
        opts = options_of(c10d.AllreduceCoalescedOptions, *given, **named)
        operators = [operator_of(opts.reduceOp, tensor.dtype) for tensor in tensors]
        return self._issue("allreduce_coalesced", partial(
            collectives.allreduce_coalesced, self._comm_for(*tensors), list(tensors), operators),
            opts, tensors)

    def reduce(self, tensors: OneOrMore, *given: Any, **named: Any) -> Any:
        tensor, = tensors = as_list(tensors)
        opts = options_of(c10d.ReduceOptions, *given, **named)
        operator = operator_of(opts.reduceOp, tensor.dtype)
        return self._issue("reduce", partial(
            collectives.reduce, self._comm_for(tensor), tensor, operator, opts.rootRank), opts,
            tensors)

    def broadcast(self, tensors: OneOrMore, *given: Any, **named: Any) -> Any:
        tensor, = tensors = as_list(tensors)
        opts = options_of(c10d.BroadcastOptions, *given, **named)
        return self._issue("broadcast", partial(
            collectives.broadcast, self._comm_for(tensor), tensor, opts.rootRank), opts, tensors)

    def all_gather_single(self, output: torch.Tensor, source: torch.Tensor, *given: Any,
                          **named: Any) -> Any:
        return self._issue(
            "all_gather_single", partial(
                collectives.all_gather_single, self._comm_for(output), output, source),
            options_of(c10d.AllgatherOptions, *given, **named), [output])

    def all_gather_single_coalesced(self, outputs: Tensors, sources: Tensors, *given: Any,
                                    **named: Any) -> Any:
        runs = [partial(collectives.all_gather_single, self._comm_for(output), output, source)
                for output, source in zip(outputs, sources, strict=True)]
        return self._issue("all_gather_single_coalesced", partial(_all, runs),
                           options_of(c10d.AllgatherOptions, *given, **named), outputs)

    def allgather(self, outputs: Sequence[OneOrMore], sources: OneOrMore, *given: Any,
                  **named: Any) -> Any:
        found, (source,) = one_list(outputs), as_list(sources)
        return self._issue(
            "allgather", partial(collectives.all_gather, self._comm_for(source), found, source),
            options_of(c10d.AllgatherOptions, *given, **named), found)

    def allgather_coalesced(self, outputs: Sequence[Tensors], sources: Tensors, *given: Any,
                            **named: Any) -> Any:
        # outputs[rank][i] is rank's sources[i].
        runs = [partial(collectives.all_gather, self._comm_for(source),
                        [each[index] for each in outputs], source)
                for index, source in enumerate(sources)]
        return self._issue("allgather_coalesced", partial(_all, runs),
                           options_of(c10d.AllgatherOptions, *given, **named),
                           [tensor for each in outputs for tensor in each])

    def gather(self, outputs: Sequence[OneOrMore], sources: OneOrMore, *given: Any, **named: Any
               ) -> Any:
        found, (source,) = one_list(outputs), as_list(sources)
        opts = options_of(c10d.GatherOptions, *given, **named)
        return self._issue("gather", partial(
            collectives.gather, self._comm_for(source), found, source, opts.rootRank), opts,
            found or [source] * source.is_cuda)

    def scatter(self, outputs: OneOrMore, sources: Sequence[OneOrMore], *given: Any, **named: Any
                ) -> Any:
        output, = outputs = as_list(outputs)
        opts = options_of(c10d.ScatterOptions, *given, **named)
        return self._issue("scatter", partial(
            collectives.scatter, self._comm_for(output), output, one_list(sources),
            opts.rootRank), opts, outputs)

    def reduce_scatter(self, outputs: OneOrMore, sources: Sequence[OneOrMore], *given: Any,
                       **named: Any) -> Any:
        output, = outputs = as_list(outputs)
        opts = options_of(c10d.ReduceScatterOptions, *given, **named)
        operator = operator_of(opts.reduceOp, output.dtype)
        return self._issue("reduce_scatter", partial(
            collectives.reduce_scatter, self._comm_for(output), output, one_list(sources),
            operator), opts, outputs)

    def reduce_scatter_single(self, output: torch.Tensor, source: torch.Tensor, *given: Any,
                              **named: Any) -> Any:
        opts = options_of(c10d.ReduceScatterOptions, *given, **named)
        operator = operator_of(opts.reduceOp, output.dtype)
        return self._issue("reduce_scatter_single", partial(
            collectives.reduce_scatter_single, self._comm_for(output), output, source, operator),
            opts, [output])

    def reduce_scatter_single_coalesced(self, outputs: Tensors, sources: Tensors, *given: Any,
                                        **named: Any) -> Any:
        opts = options_of(c10d.ReduceScatterOptions, *given, **named)
        runs = [partial(collectives.reduce_scatter_single, self._comm_for(output), output, source,
                        operator_of(opts.reduceOp, output.dtype))
                for output, source in zip(outputs, sources, strict=True)]
        return self._issue("reduce_scatter_single_coalesced", partial(_all, runs), opts, outputs)

    def all_to_all_single(self, output: torch.Tensor, source: torch.Tensor,
                          output_splits: Sequence[int], input_splits: Sequence[int], *given: Any,
                          **named: Any) -> Any:
        return self._issue("all_to_all_single", partial(
            collectives.all_to_all_single, self._comm_for(output), output, source, output_splits,
            input_splits),
            options_of(c10d.AllToAllOptions, *given, **named), [output])

    def alltoall(self, outputs: Tensors, sources: Tensors, *given: Any, **named: Any) -> Any:
        return self._issue(
            "alltoall", partial(collectives.all_to_all, self._comm_for(*outputs), outputs,
                                sources),
            options_of(c10d.AllToAllOptions, *given, **named), outputs)

    def barrier(self, *given: Any, **named: Any) -> Any:
        return self._issue("barrier", self.comm.Barrier,
                           options_of(c10d.BarrierOptions, *given, **named), [])

    # Names in older versions.
    _allgather_base = all_gather_single
    _reduce_scatter_base = reduce_scatter_single
    alltoall_base = all_to_all_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    # -- messages between two ranks ----------------------------------------------------------
    def send(self, tensors: Tensors, dst: int, tag: int) -> GroupWork:
        return self._message(self.peers.send(tensors[0], dst, tag, self.seconds))

    def recv(self, tensors: Tensors, src: int, tag: int) -> GroupWork:
        return self._message(self.peers.receive(tensors[0], src, tag, self.seconds))

    def recv_anysource(self, tensors: Tensors, tag: int) -> GroupWork:
        return self._message(self.peers.receive(tensors[0], MPI.ANY_SOURCE, tag, self.seconds))

    def _message(self, work: GroupWork) -> GroupWork:
        work.give_up = self._give_up
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False
                          ) -> None:
        self.lane.drain()
        self.peers.monitored_barrier(timeout.total_seconds() if timeout else self.seconds,
                                     wait_all_ranks)

    # -- calls issued as one -----------------------------------------------------------------
    def start_coalescing(self, device: Any = None) -> None:
        self._coalesced = []

    def end_coalescing(self, device: Any = None) -> Any:
        works, self._coalesced = self._coalesced or [], None
        return CoalescedWork(works)

    _start_coalescing, _end_coalescing = start_coalescing, end_coalescing

    # -- queries of torch --------------------------------------------------------------------
    supports_coalescing = supports_splitting = supports_time_estimate = False
    supports_shrinking = supports_reconfigure = supports_window = False

    def getBackendName(self) -> str:
        return NAME

    name = _get_backend_name = getBackendName

    @property
    def _device_types(self) -> list[torch.device]:
        # None while torch creates the group: torch's flight recorder (2.15) attaches to groups with
        # devices, and fails without a C++ backend.
        known = self in torch.distributed.distributed_c10d._world.pg_map
        return [torch.device(name) for name in self._devices] if known else []

    def _get_backend(self, device: Any) -> Group:
        return self

    # A group without a C++ backend does not store its name.
    @property
    def group_name(self) -> str:
        return self._name

    @property
    def group_desc(self) -> str:
        return self._description

    def _set_group_name(self, name: str) -> None:
        self._name = name

    def _set_group_desc(self, description: str) -> None:
        self._description = description

    def getGroupName(self) -> str:
        return self._name

    def get_group_store(self) -> Any:
        return self.store

    def _get_sequence_number_for_group(self) -> int:
        return self.issued

    def _set_sequence_number_for_group(self) -> None:
        self.issued = 0

    def _has_hooks(self) -> bool:
        return False

    def supports_tensor_alloc(self, device: Any) -> bool:
        return torch.device(device).type in self._devices

    def allocate_tensor(self, size: int, dtype: torch.dtype = torch.float32,
                        device: Any = "cpu") -> torch.Tensor:
        """Return a flat tensor that other ranks of the node read in place; collective."""
        self.lane.drain()
        return self.registered.tensor(size, dtype, torch.device(device))

    def set_timeout(self, timeout: timedelta) -> None:
        self.seconds = self.comm.timeout = timeout.total_seconds()

    # -- the end -----------------------------------------------------------------------------
    def abort(self) -> None:
        self._end(ProcessGroupError(f"group {self.title} was aborted"))

    def shutdown(self) -> None:
        """Wait for pending calls and free the communicator; collective."""
        if self.error is None:
            self.lane.drain()
            self._end(ProcessGroupError(f"group {self.title} was destroyed"))
            self.comm.Free()

    def _end(self, error: BaseException) -> None:
        self.error = error
        for part in (self.lane, self.peers):
            part.clear(error)
            part.close()


def _all(runs: Sequence[Callable[[], None]]) -> None:
    for run in runs:
        run()
