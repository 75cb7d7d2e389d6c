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
from typing import Any, Protocol, TypeVar, cast

import numpy
from mpi4py import MPI

from hpccoll.calls.facts import CallFacts
from hpccoll.errors import cause_of
from hpccoll.errors.mpi import RequestError
from hpccoll.errors.waits import RankStates
from hpccoll.runtime.bounded import BoundedDict
from hpccoll.runtime.events.logger import log_error
from hpccoll.runtime.events.phase_events import Phases
from hpccoll.runtime.execution.executor import Execution, RunBatches, Timeouts
from hpccoll.runtime.planning.binding import Action
from hpccoll.runtime.planning.description import Description
from hpccoll.runtime.planning.plan import BoundPlan, Plan
from hpccoll.runtime.progress.waiting import Meeting, WaitTimer
from hpccoll.runtime.ranks import TAGS_PER_CALL, Ranks
from hpccoll.transport import Endpoint
from hpccoll.transport.call_hashes import split
from hpccoll.transport.checked import CheckedEndpoint
from hpccoll.transport.mpi import FIRST_TAG, MpiEndpoint
from hpccoll.transport.shm.channels import OTHER_CELL_BYTES
from hpccoll.transport.shm.endpoint import SharedEndpoint

#: Largest bytes of a nonblocking call in a queue, and of one in a queue and in segments.
LANE_BYTES, CUT_BYTES = 64 << 10, 64 << 20
#: Scratch cached between calls, in bytes. Larger scratch lives as long as its prepared calls.
KEPT_SCRATCH = 16 << 20
#: Cached plans and buffer locations per communicator.
MOST_KEPT = 256
#: Cached prepared calls per communicator, in messages; a call counts as at least 32.
MOST_PREPARED, LEAST_WEIGHT = 8192, 32


class GuardProtocol(Protocol):
    """Guard that checks that all ranks make the same calls, and rejects calls after a failure.

    Attributes:
        timeouts: limits of all waits.
        abandoned: memory and requests of failed calls, which the library may still use.
        log, alarm: addresses of this rank's log of calls, 0 if it has none, and of the word that is
            set when a rank has failed.
        unraised: a failure that a thread detected here and that no call has raised yet.
    """

    timeouts: Timeouts
    abandoned: list[Any]
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

    def use_timeout(self, seconds: float) -> None:
        """Set the time-out of later waits."""

    def fail(self, error: BaseException, title: str, description: Description | None, tag: int
             ) -> BaseException:
        """Record that a call failed here; return the exception for the caller."""

    def revoke(self) -> None:
        """End the calls of ranks that wait in shared memory, and reject later calls here."""

    def check_ranks(self, peers: Sequence[int]) -> RankStates:
        """Return the states of the ranks; raise an error if one has died or exited."""

    def compare(self, description: Description | None, title: str = "") -> None:
        """Raise an error unless all ranks are about to make the same call; collective."""


class LibraryProtocol(Protocol):
    """The MPI library's own calls on the communicator, recorded and monitored."""

    def check_after(self, number: int) -> None:
        """Follow the next call from a number on by a check."""

    def method(self, native: Callable[..., Any], name: str, call: Any,
               check: Callable[..., None] | None = None) -> Callable[..., Any]:
        """Return a wrapper of a blocking method."""

    def watch_nonblocking(self, native: Callable[..., Any], name: str, call: Any
                          ) -> Callable[..., Any]:
        """Return a wrapper of a nonblocking method."""

    def watch_persistent(self, request: MPI.Prequest, buffers: object, name: str) -> MPI.Prequest:
        """Return a persistent request whose waits have a timeout."""

    def objects(self, native: Callable[..., Any], description: Description) -> Callable[..., Any]:
        """Return a wrapper of a lower-case mpi4py method."""

    def unsent(self) -> None:
        """Withdraw the last call, a lower-case one of mpi4py that has sent nothing."""

    def watch_blocking(self, function: Callable[..., Any], name: str = "set-up"
                       ) -> Callable[..., Any]:
        """Return a wrapper of a collective function, which cannot hang forever."""

    def run_after_meeting(self, function: Callable[..., Any], description: Description
                          ) -> Callable[..., Any]:
        """Return a wrapper that calls a collective constructor after all ranks have entered it."""

    def begin_duplicate(self, begin: Callable[..., Any], *args: Any) -> tuple[Any, MPI.Request]:
        """Start to duplicate the communicator; waits for the request have a timeout."""

    def free(self) -> None:
        """End the monitoring."""


class Service(Protocol):
    """Resource of a higher layer with the lifetime of a context."""

    def __init__(self, context: Context): ...

    def free(self) -> None:
        """Release resources; the private duplicate is freed next."""


S = TypeVar("S", bound=Service)


class Context:
    """State of one communicator on this rank.

    Args:
        ranks: who they are; the context frees them.
        guard, library: of the calls, and of the library's own calls.
        call_guard: the lock that admits one thread at a time.

    Attributes:
        user, comm, rank, size, config, topology, place, node, compiled: see :class:`Ranks`.
        abandoned: see :class:`GuardProtocol`.
        limits: message sizes and spin counts; others once device memory is registered.
        remote, endpoint: messages through MPI only, and through shared memory where possible,
            with checksums if the configuration enables them.
        plans: cached plans, by call and choice.
        request_queue: the queue of nonblocking collectives with small messages, if there is one.
        compiled_plans: cached, for the compiled executor.
        batches: cached messages of compiled plans to other nodes, by compiled plan and addresses.
        compiled_operations: cached operations that run compiled plans.
        seen: compiled plans and addresses of calls made once; their messages to other nodes are
            kept from the next time on.
        scratch_bytes: registered scratch memory of every rank; 0 if nothing is registered.
        phases: the recorded phases of its blocking calls; ``None`` if they are not traced.
    """

    def __init__(self, ranks: Ranks, guard: GuardProtocol, library: LibraryProtocol,
                 call_guard: Any):
        self.ranks, self.guard, self.library, self.call_guard = ranks, guard, library, call_guard
        self.user, self.comm, self.rank, self.size = ranks.user, ranks.comm, ranks.rank, ranks.size
        self.config, self.topology, self.place = ranks.config, ranks.topology, ranks.place
        self.node, self.compiled, self.limits = ranks.node, ranks.compiled, ranks.limits
        self.abandoned = guard.abandoned
        self.remote = MpiEndpoint(self.comm, guard.on_alarm)
        self.endpoint: Endpoint = self.remote
        if self.node is not None and self.node.local:
            self.endpoint = SharedEndpoint(self.node, self.remote, guard.on_alarm)
        if self.config.checksums:
            self.endpoint = CheckedEndpoint(self.endpoint)
        self._calls, self._persistent, self._turns = 0, 0, len(ranks.persistent_tags)
        #: Tags whose requests this rank has freed, and those that all ranks may use again.
        self._released: set[int] = set()
        self._unused: list[int] = []
        self.request_queue = ranks.new_queue()
        self.plans = BoundedDict[Hashable, Plan](MOST_KEPT)
        self.compiled_plans = BoundedDict[Hashable, BoundPlan](MOST_KEPT)
        self.batches = BoundedDict[Hashable, RunBatches](
            MOST_PREPARED, RunBatches.free, lambda found: max(found.messages, LEAST_WEIGHT))
        self.seen = BoundedDict[Hashable, bool](MOST_KEPT)
        self.compiled_operations: weakref.WeakSet[Any] = weakref.WeakSet()
        self.scratch_bytes, self.freed = 0, False
        self.phases = Phases() if self.config.trace and self.config.trace_phases else None
        self._services: dict[type, Service] = {}
        self._scratch = numpy.empty(0, numpy.uint8)
        self._large: Callable[[], numpy.ndarray | None] = lambda: None

    @property
    def timeouts(self) -> Timeouts:
        """Limits of all waits."""
        return self.guard.timeouts

    def service(self, kind: type[S]) -> S:
        """Return the service of a class; the first call creates it."""
        service = self.existing_service(kind)
        if service is None:
            service = self._services[kind] = kind(self)
        return service

    def existing_service(self, kind: type[S]) -> S | None:
        """Return the service of a class, or ``None`` before its first use."""
        return cast("S | None", self._services.get(kind))

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
            return self.ranks.persistent_tags[self._persistent - 1]
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
        tags, title = self.ranks.persistent_tags, "comparison of freed requests"
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
        later = self.ranks.persistent_tags[self._persistent:self._persistent + 1]
        tags = self._unused[-1:] or later
        return self.node is not None and any(tag in self.node.tags for tag in tags)

    def abandon(self, execution: Execution, error: BaseException) -> None:
        """Keep a failed execution alive: its messages may still be in flight.

        Raises:
            ContractError, BrokenCommunicatorError: another rank caused the failure.
        """
        self.abandoned.append(execution)
        diagnosis = self.fail(error, execution.title, execution.plan, execution.tag)
        if diagnosis is not error:
            raise diagnosis from cause_of(error)

    def fail(self, error: BaseException, title: str, plan: Plan | None = None, tag: int = 0
             ) -> BaseException:
        """Record that a call with this tag failed here; return the exception to raise."""
        error = self.guard.fail(error, title, plan.description if plan else None, split(tag)[0])
        log_error(self.rank, error)
        return error

    def stop_starts(self) -> None:
        """Make every restart of a prepared request check first that it is allowed."""
        for operation in self.compiled_operations:
            operation.idle = False

    def free(self) -> None:
        """Free the duplicate and all cached messages."""
        if not self.freed:
            self.freed = True
            self.batches.clear()
            self.compiled_plans.clear()
            self.stop_starts()
            for service in self._services.values():
                service.free()
            self.library.free()
            # Messages of a failed call may never be received. The library reuses the number of a
            # freed communicator, and the next communicator would receive them.
            self.ranks.free(keep_duplicate=self.guard.failure is not None)
