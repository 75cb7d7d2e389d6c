"""Context: the state of one communicator, with a private duplicate that is freed with it.

User messages and hpccoll's never mix: hpccoll sends all its messages on a duplicate, cached as
an MPI attribute of the user's communicator. All ``hpccoll.Comm`` objects of one communicator share
it.

    user's communicator --attribute--> Context --owns--> duplicate, scratch, plans, executions

The attribute's delete callback runs when the user frees the communicator. That call is collective,
so the callback can free the duplicate. Garbage collection never frees it: it runs at different
times on different ranks and would deadlock.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Sequence
from contextlib import nullcontext
from typing import Any, Protocol, TypeVar

import numpy
from mpi4py import MPI

from hpccoll.calls.facts import CallFacts
from hpccoll.config import COMPILED, Config
from hpccoll.errors import ArgumentError, cause_of
from hpccoll.errors.mpi import RequestError
from hpccoll.errors.waits import RankStates
from hpccoll.ir.topology import Topology
from hpccoll.machine.discovery import Place, discover, on_one_node
from hpccoll.machine.groups import private_copy
from hpccoll.machine.limits import DEDICATED, OVERSUBSCRIBED
from hpccoll.runtime.attributes import CONTEXTS, existing_context, keyval
from hpccoll.runtime.bounded import BoundedDict
from hpccoll.runtime.events.logger import log_error
from hpccoll.runtime.events.phase_events import Moments
from hpccoll.runtime.execution.built import executor
from hpccoll.runtime.execution.compiled import BoundPlan, channel_class, new_queue
from hpccoll.runtime.execution.executor import Execution, Timeouts, run_prepared
from hpccoll.runtime.execution.remote import RunBatches
from hpccoll.runtime.planning.agreement import exchange_processes
from hpccoll.runtime.planning.binding import Action
from hpccoll.runtime.planning.description import Description
from hpccoll.runtime.planning.plan import Plan
from hpccoll.runtime.progress.waiting import Meeting, WaitTimer
from hpccoll.transport import Endpoint
from hpccoll.transport.call_hashes import split
from hpccoll.transport.checked import CheckedEndpoint
from hpccoll.transport.mpi import FIRST_TAG, MpiEndpoint
from hpccoll.transport.private_comm import PrivateComm
from hpccoll.transport.shm.caches import share_a_cache
from hpccoll.transport.shm.channels import OTHER_CELL_BYTES, SharedNode
from hpccoll.transport.shm.endpoint import SharedEndpoint

#: Tags 0-15 are for blocking collectives, the next two for a queue of nonblocking ones, and two
#: carry objects.
LANE_TAG, OBJECTS_TAG = 12, 14
#: Tag of the message that reports the failure of a rank.
ALARM_TAG = 11
#: Largest bytes of a nonblocking call in a queue, and of one in a queue and in segments.
LANE_BYTES, CUT_BYTES = 64 << 10, 64 << 20
#: Tags per nonblocking or persistent collective, allocated from FIRST_TAG on.
TAGS_PER_CALL = 8
#: Largest number of persistent collectives per communicator with channels in shared memory.
MOST_PERSISTENT = 64
#: Scratch cached between calls, in bytes. Larger scratch lives as long as its prepared calls.
KEPT_SCRATCH = 16 << 20
#: Cached plans and buffer locations per communicator.
MOST_KEPT = 256
#: Cached prepared calls per communicator, in messages; a call counts as at least 32.
MOST_PREPARED, LEAST_WEIGHT = 8192, 32


class GuardProtocol(Protocol):
    """Guard that checks that all ranks make the same calls, and rejects calls after a failure.

    Attributes:
        log, alarm: addresses of this rank's log of calls, 0 if it has none, and of the word that is
            set when a rank has failed.
        unraised: a failure that a thread detected here and that no call has raised yet.
    """

    unraised: BaseException | None
    log: int
    alarm: int

    @property
    def failure(self) -> BaseException | None:
        """First failure on this rank, which every later call raises; None without one."""

    @property
    def number(self) -> int:
        """Sequence number of this rank's last blocking call."""

    def call_hash(self, description: Description) -> int:
        """Return the call hash of a call's messages."""

    def opening(self, call_hash: int, tag: int) -> Action | None:
        """Return the callback for the start of a plan; None without one."""

    def end_callback(self, call_hash: int, tag: int) -> Action | None:
        """Return the callback for the end of a plan; None without one."""

    def on_alarm(self) -> None:
        """Raise an error if another rank has failed."""

    def fail(self, error: BaseException, title: str, description: Description | None, tag: int
             ) -> BaseException:
        """Record that a call failed here; return the exception for the caller."""

    def revoke(self) -> None:
        """End the calls of ranks that wait in shared memory, and reject later calls here."""

    def native(self, method: Callable[..., Any], name: str, call: Any, check: Callable[..., None]
               ) -> Callable[..., Any]:
        """Return a guarded wrapper of a blocking native method."""

    def watch_nonblocking(self, method: Callable[..., Any], name: str, call: Any) -> Callable[...,
                                                                                              Any]:
        """Return a guarded wrapper of a nonblocking native method."""

    def watch_persistent(self, request: MPI.Prequest, buffers: object, name: str) -> MPI.Prequest:
        """Return a persistent native request whose waits have a timeout."""

    def objects(self, method: Callable[..., Any], description: Description) -> Callable[..., Any]:
        """Return a guarded wrapper of a lower-case mpi4py method."""

    def unsent(self) -> None:
        """Withdraw the last call, a lower-case one of mpi4py that has sent nothing."""

    def watch_blocking(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a guarded wrapper of a collective function, which cannot hang forever."""

    def check_ranks(self, peers: Sequence[int]) -> RankStates:
        """Return the states of the ranks; raise an error if one has died or exited."""

    def run_after_meeting(self, function: Callable[..., Any], description: Description
                          ) -> Callable[..., Any]:
        """Return a wrapper that calls a collective constructor after all ranks have entered it."""

    def begin_duplicate(self, begin: Callable[..., Any], *args: Any) -> tuple[Any, MPI.Request]:
        """Start to duplicate the communicator; waits for the request have a timeout."""

    def compare(self, description: Description | None, title: str = "") -> None:
        """Raise an error unless all ranks are about to make the same call; collective."""


class Service(Protocol):
    """Resource of a higher layer with the lifetime of a context."""

    def __init__(self, context: Context): ...

    def free(self) -> None:
        """Release resources; the private duplicate is freed next."""


S = TypeVar("S", bound=Service)


class Context:
    """State of one communicator on this rank; creating it is collective.

    Args:
        user: the communicator.
        config: the settings of its first use.
        topology: the layout of nodes and ranks; discovered if ``None``.

    Attributes:
        user: the user's communicator.
        comm, rank, size: the private duplicate.
        processes: the processes of all ranks.
        topology: nodes and ranks.
        place: the system description for tuning rules.
        limits: message sizes and spin counts, which depend on whether each rank has its own core.
        remote, endpoint: messages through MPI only, and through shared memory where possible,
            with checksums if the configuration enables them.
        node: ranks that share memory with this one; ``None`` if shared memory is disabled.
        compiled: True if the compiled executor is in use.
        plans: cached plans, by call and choice.
        request_queue: the queue of nonblocking collectives with small messages; ``None`` unless all
            ranks share memory and use the compiled executor.
        compiled_plans: cached, for the compiled executor.
        batches: cached messages of compiled plans to other nodes, by compiled plan and addresses.
        compiled_operations: cached operations that run compiled plans.
        prepared: cached executions, by signature and addresses.
        seen: signatures and addresses of calls made once, which are prepared the next time.
        registered: its registered device memory; ``None`` before the first use.
        scratch_bytes: registered scratch memory of every rank; 0 if nothing is registered.
        moments: the trace of its blocking calls; ``None`` if phases are not traced.
        guard, call_guard: the guard of the calls, and the lock that admits one thread at a time;
            the creator of the context sets them.
    """

    def __init__(self, user: MPI.Intracomm, config: Config, topology: Topology | None):
        from hpccoll.cuda import NODE_ANSWERS, gpu_island, is_in_use
        self.user = MPI.Intracomm(user)
        self.comm = private_copy(self.user)
        self.comm.Set_name(f"hpccoll private of {user.Get_name()}"[:MPI.MAX_OBJECT_NAME - 1])
        self.rank, self.size = self.comm.Get_rank(), self.comm.Get_size()
        try:
            self.processes = exchange_processes(self.comm, config)
            # A library has only some thousand communicators.
            node_comm = self.comm if on_one_node(self.comm) else PrivateComm(
                self.comm.Split_type(MPI.COMM_TYPE_SHARED, key=self.rank))
        except (ArgumentError, MPI.Exception):  # on all ranks; a new attempt would leak another one
            self.comm.Free()
            raise
        self.compiled = executor(config) == COMPILED
        around = discover(self.comm, node_comm, config.levels, config.network, self.compiled,
                          is_in_use(), gpu_island)
        self.config, self.topology = config, topology or around.topology
        self.timeouts = Timeouts(config.timeout, config.report)
        self.limits = OVERSUBSCRIBED if around.oversubscribed else DEDICATED
        if around.compiled and node_comm is self.comm:
            self.limits = self.limits.without_large_segments()
        if around.devices:
            self.limits = self.limits.on_devices("staged")
            NODE_ANSWERS.connect(node_comm)
        self.remote = MpiEndpoint(self.comm)
        self.endpoint: Endpoint = self.remote
        # Nonblocking calls cycle through one half of the tags; persistent ones use the other half.
        turns = self.remote.tags.turns // TAGS_PER_CALL // 2
        self._calls, self._persistent, self._turns = 0, 0, turns
        self._persistent_tags = range(FIRST_TAG, FIRST_TAG + 2 * turns * TAGS_PER_CALL,
                                      TAGS_PER_CALL)[turns:]
        #: Tags whose requests this rank has freed, and those that all ranks may use again.
        self._released: set[int] = set()
        self._unused: list[int] = []
        self.node: SharedNode | None = None
        if config.shared_memory:
            self.node = SharedNode(
                self.comm, node_comm, self.limits.cell_bytes,
                (OBJECTS_TAG, LANE_TAG, *self._persistent_tags[:MOST_PERSISTENT]), channel_class())
            if self.node.local:
                self.endpoint = SharedEndpoint(self.node, self.remote)
        elif node_comm is not self.comm:
            node_comm.Free()
        if config.checksums:
            self.endpoint = CheckedEndpoint(self.endpoint)
        one_node = self.node is not None and len(self.node.local) == self.size - 1
        self.place = Place(one_node, around.oversubscribed, self.topology.order is None,
                           around.fabric, around.compiled and config.shared_memory,
                           self.size == 2 and one_node and not around.oversubscribed
                           and share_a_cache(node_comm))
        self.request_queue = new_queue() if one_node and self.node and around.compiled and (
            LANE_TAG in self.node.tags) else None
        self.plans = BoundedDict[Hashable, Plan](MOST_KEPT)
        self.compiled_plans = BoundedDict[Hashable, BoundPlan](MOST_KEPT)
        self.batches = BoundedDict[Hashable, RunBatches](
            MOST_PREPARED, RunBatches.free, lambda found: max(found.messages, LEAST_WEIGHT))
        self.prepared = BoundedDict[Hashable, Execution](
            MOST_PREPARED, Execution.free,
            lambda execution: max(execution.plan.messages, LEAST_WEIGHT))
        self.seen = BoundedDict[Hashable, bool](MOST_KEPT)
        self.abandoned: list[Any] = []
        self.compiled_operations: weakref.WeakSet[Any] = weakref.WeakSet()
        self.registered: Any = None
        self.scratch_bytes, self.freed = 0, False
        self.moments = Moments() if config.trace and config.trace_phases else None
        self.guard: GuardProtocol | None = None
        self.call_guard: Any = nullcontext()
        CONTEXTS.add(self)
        self._services: dict[type, Any] = {}
        self._scratch = numpy.empty(0, numpy.uint8)
        self._large: Callable[[], numpy.ndarray | None] = lambda: None

    def service(self, kind: type[S]) -> S:
        """Return the service of a class; the first call creates it."""
        service: S | None = self._services.get(kind)
        if service is None:
            service = self._services[kind] = kind(self)
        return service

    def use_registered(self) -> None:
        """Plan later calls for registered device memory, which all ranks have from now on."""
        from hpccoll.cuda import SCRATCH_BYTES
        self.limits = self.limits.on_devices("ipc")
        self.scratch_bytes = SCRATCH_BYTES
        self.plans.clear()

    def wait_timer(self, title: str) -> WaitTimer:
        """Return the timer of a wait for all ranks; ``title`` names the wait in messages."""
        return WaitTimer(Meeting(self.comm, title), *self.timeouts, self.limits.spins)

    def scratch(self, nbytes: int) -> numpy.ndarray:
        """Return memory for one blocking call; the next blocking call reuses it."""
        if nbytes > KEPT_SCRATCH:
            large = self._large()
            if large is None or large.nbytes < nbytes:
                # A power of two: calls of growing sizes must not each hold their own memory.
                large = numpy.empty(1 << (nbytes - 1).bit_length(), numpy.uint8)
                self._large = weakref.ref(large)
            return large[:nbytes]
        if self._scratch.nbytes < nbytes:
            # Prepared calls hold views of the old memory, which keep it alive.
            self._scratch = numpy.empty(max(nbytes, 64 << 10), numpy.uint8)
        return self._scratch[:nbytes]

    def next_tag(self) -> int:
        """Return the first tag of the next nonblocking call; the same on every rank."""
        self._calls = (self._calls + 1) % self._turns
        return FIRST_TAG + self._calls * TAGS_PER_CALL

    def persistent_tag(self) -> int:
        """Allocate the first tag of a persistent collective; collective. See :meth:`release_tag`.

        Raises:
            RequestError: all tags are in use.
        """
        if self._unused:
            return self._unused.pop()
        if self._persistent < self._turns:
            self._persistent += 1
            return self._persistent_tags[self._persistent - 1]
        self._reclaim_tags()
        return self._unused.pop()

    def release_tag(self, tag: int) -> None:
        """Record that this rank has freed the request of a tag."""
        self._released.add(tag)

    def _reclaim_tags(self) -> None:
        """Reclaim the tags whose requests all ranks have freed, so that no message uses them.

        Raises:
            RequestError: no tag is free; raised on every rank.
            CollectiveTimeout, BrokenCommunicatorError: a rank does not make this call.
        """
        tags, title = self._persistent_tags, "comparison of freed requests"
        mine = numpy.array([tag in self._released for tag in tags], numpy.uint8)
        freed = numpy.empty_like(mine)
        request = self.comm.Iallreduce(mine, freed, MPI.MIN)
        try:
            Meeting(self.comm, title).wait(request, *self.timeouts)
        except BaseException as error:
            self.abandoned.append((request, mine, freed))  # the library may still use the memory
            raise self.fail(error, title) from cause_of(error)
        self._unused = [tag for tag, free in zip(tags, freed) if free][::-1]
        self._released.difference_update(self._unused)
        if not self._unused:
            raise RequestError(f"all {self._turns} persistent collectives of "
                               f"{self.comm.Get_name()} are in use; call Free on requests that are "
                               "not needed, or Dup on the communicator")

    def request_segment(self, facts: CallFacts, tag: int) -> int:
        """Return the bytes per segment of a long nonblocking call in the compiled executor.

        The same on every rank; 0 for calls that are not segmented.
        """
        cut = (self.place.compiled and self.place.one_node and self.node is not None
               and tag in self.node.tags and facts.has_plan and facts.nbytes is not None
               and LANE_BYTES < facts.nbytes <= CUT_BYTES)
        wanted = self.config.segment_bytes or OTHER_CELL_BYTES
        return wanted if cut and wanted <= OTHER_CELL_BYTES else 0

    @property
    def has_channels(self) -> bool:
        """Return True if the next persistent collective has channels; the same on every rank."""
        tags = self._unused[-1:] or self._persistent_tags[self._persistent:self._persistent + 1]
        return self.node is not None and any(tag in self.node.tags for tag in tags)

    def run(self, execution: Execution) -> None:
        """Run a prepared execution; see :meth:`abandon`."""
        try:
            run_prepared(execution, self.timeouts)
        except BaseException as error:
            self.abandon(execution, error)
            raise

    def abandon(self, execution: Execution, error: BaseException) -> None:
        """Keep a failed execution alive: its messages may still be in flight.

        Raises:
            ContractError, BrokenCommunicatorError: another rank caused the failure.
        """
        self.abandoned.append(execution)
        execution.program = None  # a lookup by its arrays must not start it again
        for key in [k for k, kept in self.prepared.entries.items() if kept is execution]:
            self.prepared.drop(key)
        diagnosis = self.fail(error, execution.title, execution.plan, execution.tag)
        if diagnosis is not error:
            raise diagnosis from cause_of(error)

    def fail(self, error: BaseException, title: str, plan: Plan | None = None, tag: int = 0
             ) -> BaseException:
        """Record that a call with this tag failed here; return the exception to raise."""
        if self.guard is not None:
            error = self.guard.fail(error, title, plan.description if plan else None,
                                    split(tag)[0])
        log_error(self.rank, error)
        return error

    def stop_starts(self) -> None:
        """Make every restart of a prepared request check first that it is allowed."""
        for operation in self.compiled_operations:
            operation.idle = False

    def revoke(self) -> None:
        """Revoke the communicators, so that pending native calls of all ranks end; needs ULFM."""
        node_comm = [self.node.comm] if self.node is not None and self.node.owned else []
        for comm in (self.user, self.comm, *node_comm):
            comm.Revoke()

    def free(self) -> None:
        """Free the duplicate and all prepared calls."""
        if not self.freed:
            self.freed = True
            self.prepared.clear()
            self.batches.clear()
            self.compiled_plans.clear()
            self.stop_starts()
            for service in self._services.values():
                service.free()
            if self.node is not None:
                self.node.free()
            # Messages of a failed call may never be received. The library reuses the number of a
            # freed communicator, and the next communicator would receive them.
            if self.guard is None or self.guard.failure is None:
                self.comm.Free()


def context_of(user: MPI.Intracomm, config: Config, topology: Topology | None) -> Context:
    """Return the context of a communicator; the first call on it is collective.

    Raises:
        ArgumentError: the layout has another number of ranks, or differs from the context's; a
            setting differs between ranks.
    """
    context = existing_context(user)
    if context is None:
        chosen = topology or config.topology
        if chosen is not None:
            chosen = Topology.parse(chosen, user.Get_size())
        context = Context(user, config, chosen)
        user.Set_attr(keyval(), context)
    elif topology is not None and Topology.parse(topology, user.Get_size()) != context.topology:
        raise ArgumentError("layout", f"got {topology}, but this communicator already has "
                                      f"{context.topology}",
                            "pass it to the first hpccoll.Comm of a communicator, or use a Dup")
    return context
