"""One private duplicate per user communicator, freed with it.

User traffic and ours never mix: all our messages travel over a duplicate that is cached as
an MPI attribute of the user's communicator, so every ``hpccoll.Comm`` that wraps the same
communicator shares it.

    user's communicator --attribute--> Context --owns--> duplicate, scratch, plans, executions

The attribute's delete callback runs when the user frees the communicator - a collective
call, so that freeing the duplicate inside it is safe. It is never freed by garbage
collection, which runs at different moments on different ranks and would deadlock.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Sequence
from contextlib import nullcontext
from typing import Any, Protocol, TypeVar, cast

import numpy
from mpi4py import MPI

from hpccoll.calls.facts import CallFacts
from hpccoll.config import COMPILED, Config
from hpccoll.cuda import gpu_island
from hpccoll.errors import ArgumentError, cause_of
from hpccoll.errors.mpi import RequestError
from hpccoll.errors.waits import RankStates
from hpccoll.ir.topology import Topology
from hpccoll.machine.discovery import Place, discover
from hpccoll.machine.limits import DEDICATED, OVERSUBSCRIBED
from hpccoll.runtime.bounded import BoundedDict
from hpccoll.runtime.events.logger import tell_error
from hpccoll.runtime.events.moments import Moments
from hpccoll.runtime.execution.compiled import Bound, channel_class, executor, new_lane
from hpccoll.runtime.execution.executor import Bounds, Execution
from hpccoll.runtime.execution.remote import RunBatches
from hpccoll.runtime.planning.agreement import exchange_processes
from hpccoll.runtime.planning.binding import Action
from hpccoll.runtime.planning.description import Description
from hpccoll.runtime.planning.plan import Plan
from hpccoll.runtime.progress.waiting import Meeting, Watch
from hpccoll.transport import Endpoint
from hpccoll.transport.checked import CheckedEndpoint
from hpccoll.transport.mpi import FIRST_TAG, MpiEndpoint
from hpccoll.transport.shm.caches import share_a_cache
from hpccoll.transport.shm.channels import OTHER_CELL_BYTES, SharedNode
from hpccoll.transport.shm.endpoint import SharedEndpoint
from hpccoll.transport.stamps import split

#: Tags 0-15 are for blocking collectives; two from here on are a lane of nonblocking ones, and two
#: carry objects.
LANE_TAG, OBJECTS_TAG = 12, 14
#: Says that a rank has given up, and what it knows.
ALARM_TAG = 11
#: Bytes of a nonblocking call that goes through a lane, and of one that does so in segments.
LANE_BYTES, CUT_BYTES = 64 << 10, 64 << 20
#: Nonblocking and persistent collectives use those from FIRST_TAG on, so many each.
TAGS_PER_CALL = 8
#: Persistent collectives of a communicator whose messages may go through shared memory.
MOST_PERSISTENT = 64
#: Scratch kept between calls, in bytes. What is larger lives as long as a prepared call needs it.
KEPT_SCRATCH = 16 << 20
#: Plans and places of earlier calls kept per communicator.
MOST_KEPT = 256
#: Prepared calls kept per communicator: messages in all, where a call counts as at least 32.
MOST_PREPARED, LEAST_WEIGHT = 8192, 32

_keyvals: list[int] = []
#: All that were made, as long as somebody has them.
_contexts: weakref.WeakSet[Context] = weakref.WeakSet()


class Guarding(Protocol):
    """What sees to it that all ranks make the same calls, and none after one has failed.

    Attributes:
        log, alarm: addresses of this rank's log of calls, 0 where it keeps none, and of the word
            that says that a rank has given up.
        untold: what has failed here, seen by a thread, and raised by no call yet.
    """

    untold: BaseException | None
    log: int
    alarm: int

    @property
    def failure(self) -> BaseException | None:
        """Why every call is refused, once one has failed here."""

    @property
    def number(self) -> int:
        """Number of this rank's last blocking call."""

    def stamp(self, description: Description) -> int:
        """The stamp of a call's messages."""

    def opening(self, stamp: int, tag: int) -> Action | None:
        """What is to be called when a plan starts."""

    def closing(self, stamp: int, tag: int) -> Action | None:
        """What is to be called when a plan has ended."""

    def heard(self) -> None:
        """Raise an error if another rank has given up."""

    def fail(self, error: BaseException, title: str, description: Description | None, tag: int
             ) -> BaseException:
        """Take note that a call failed here; return what the caller is to get."""

    def revoke(self) -> None:
        """End the calls of ranks that wait in shared memory, and refuse later ones here."""

    def native(self, method: Callable[..., Any], name: str, call: Any) -> Callable[..., Any]:
        """A blocking method of the MPI library's as it is to be called."""

    def beginning(self, method: Callable[..., Any], name: str, call: Any) -> Callable[..., Any]:
        """A nonblocking method of the MPI library's as it is to be called."""

    def lasting(self, request: MPI.Prequest, name: str) -> MPI.Prequest:
        """A persistent request of the MPI library's, whose waits are bounded."""

    def objects(self, method: Callable[..., Any], description: Description) -> Callable[..., Any]:
        """A lower-case method of mpi4py's as it is to be called."""

    def unsent(self) -> None:
        """Take the last call back, a lower-case one of mpi4py's, which has sent nothing."""

    def attended(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function of all ranks as it is to be called, so that it does not hang for ever."""

    def check_ranks(self, peers: Sequence[int]) -> RankStates:
        """Where the ranks are; raise an error if one has died or has ended its program."""

    def together(self, function: Callable[..., Any], description: Description
                 ) -> Callable[..., Any]:
        """A function in which all ranks make something, to be called once all have come to it."""

    def begin_duplicate(self, begin: Callable[..., Any], *args: Any) -> tuple[Any, MPI.Request]:
        """Begin to duplicate the communicator; who waits for the request has bounds."""

    def compare(self, description: Description | None, title: str = "") -> None:
        """Raise an error unless all ranks are about to make the same call; collective."""


class Service(Protocol):
    """Something of a room above that lives as long as a context."""

    def __init__(self, context: Context): ...

    def free(self) -> None:
        """Give resources back; the private duplicate is freed next."""


S = TypeVar("S", bound=Service)


class Context:
    """Everything hpccoll keeps about one communicator on this rank; making one is collective.

    Args:
        user: the communicator.
        config: the settings it was first used with.
        topology: the layout to go by; discovered if ``None``.

    Attributes:
        user: the communicator that it was made for.
        comm, rank, size: the private duplicate.
        processes: of all ranks.
        topology: nodes and ranks.
        place: what rules may know of where it runs.
        limits: sizes and patience for ranks with, or without, a processor each.
        remote, endpoint: messages through MPI only, and through shared memory where possible,
            with checksums where these were asked for.
        node: ranks that share memory with this one; ``None`` where that is switched off.
        compiled: the compiled executor runs here what it can.
        plans: by call and choice.
        lane: of nonblocking collectives whose messages are small; ``None`` where ranks do not all
            share memory and have the compiled executor.
        tapes: of plans, for the compiled executor.
        batches: messages of tapes to other nodes, by tape and addresses.
        taped: operations that are tapes.
        prepared: executions, by signature and addresses.
        seen: signatures and addresses that were served once, and are prepared the next time.
        registered: what it has registered of device memory, where somebody wanted some.
        moments: of its blocking calls, where somebody wants to know.
        guard, entrance: what watches over the calls, and lets one go at a time; whoever makes a
            communicator's context sets them.
    """

    def __init__(self, user: MPI.Intracomm, config: Config, topology: Topology | None):
        self.user = MPI.Intracomm(user)
        self.comm = self.user.Dup()  # native, whatever class the user's object has
        self.comm.Set_name(f"hpccoll private of {user.Get_name()}"[:MPI.MAX_OBJECT_NAME - 1])
        self.rank, self.size = self.comm.Get_rank(), self.comm.Get_size()
        try:
            self.processes = exchange_processes(self.comm, config)
        except ArgumentError:  # on all ranks; each new attempt would use up a communicator
            self.comm.Free()
            raise
        near = MPI.Intracomm(self.comm.Split_type(MPI.COMM_TYPE_SHARED, key=self.rank))
        self.compiled = executor(config) == COMPILED
        around = discover(self.comm, near, config.levels, config.network, self.compiled,
                          gpu_island)
        self.config, self.topology = config, topology or around.topology
        self.bounds = Bounds(config.timeout, config.report)
        self.limits = OVERSUBSCRIBED if around.oversubscribed else DEDICATED
        self.remote = MpiEndpoint(self.comm)
        self.endpoint: Endpoint = self.remote
        # One half of the tags is for nonblocking calls, in turn, the other for persistent ones.
        turns = self.remote.tags.turns // TAGS_PER_CALL // 2
        self._calls, self._persistent, self._turns = 0, 0, turns
        self._persistent_tags = range(FIRST_TAG, FIRST_TAG + 2 * turns * TAGS_PER_CALL,
                                      TAGS_PER_CALL)[turns:]
        #: Tags whose requests this rank has freed, and those that all ranks may use again.
        self._released: set[int] = set()
        self._unused: list[int] = []
        self.node: SharedNode | None = None
        if config.shared_memory:
            self.node = SharedNode(self.comm, near, self.limits.cell_bytes,
                                   self.limits.eager_bytes,
                                   (OBJECTS_TAG, LANE_TAG,
                                    *self._persistent_tags[:MOST_PERSISTENT]),
                                   channel_class())
            if self.node.local:
                self.endpoint = SharedEndpoint(self.node, self.remote)
        else:
            near.Free()
        if config.checksums:
            self.endpoint = CheckedEndpoint(self.endpoint)
        one_node = self.node is not None and len(self.node.local) == self.size - 1
        self.place = Place(one_node, around.oversubscribed, self.topology.order is None,
                           around.fabric, around.compiled and config.shared_memory,
                           self.size == 2 and one_node and not around.oversubscribed
                           and share_a_cache(near))
        self.lane = new_lane() if one_node and self.node and around.compiled and (
            LANE_TAG in self.node.tags) else None
        self.plans = BoundedDict[Hashable, Plan](MOST_KEPT)
        self.tapes = BoundedDict[Hashable, Bound](MOST_KEPT)
        self.batches = BoundedDict[Hashable, RunBatches](
            MOST_PREPARED, RunBatches.free, lambda found: max(found.messages, LEAST_WEIGHT))
        self.prepared = BoundedDict[Hashable, Execution](
            MOST_PREPARED, Execution.free,
            lambda execution: max(execution.plan.messages, LEAST_WEIGHT))
        self.seen = BoundedDict[Hashable, bool](MOST_KEPT)
        self.abandoned: list[Any] = []
        self.taped: weakref.WeakSet[Any] = weakref.WeakSet()
        self.registered: Any = None
        self.moments = Moments() if config.trace and config.trace_phases else None
        self.guard: Guarding | None = None
        self.entrance: Any = nullcontext()
        self.freed = False
        _contexts.add(self)
        self._services: dict[type, Any] = {}
        self._scratch = numpy.empty(0, numpy.uint8)
        self._large: Callable[[], numpy.ndarray | None] = lambda: None

    def service(self, kind: type[S]) -> S:
        """The service of a kind, made when somebody asks for it first."""
        service: S | None = self._services.get(kind)
        if service is None:
            service = self._services[kind] = kind(self)
        return service

    def watch(self, title: str) -> Watch:
        """The clock of a wait for all ranks, with a title for messages to people."""
        return Watch(Meeting(self.comm, title), *self.bounds, self.limits.spins)

    def scratch(self, nbytes: int) -> numpy.ndarray:
        """Memory for one blocking call; the next blocking call gets the same memory."""
        if nbytes > KEPT_SCRATCH:
            large = self._large()
            if large is None or large.nbytes < nbytes:
                # A power of two: calls that need more and more must not all keep memory of their
                # own. What is never touched costs nothing.
                large = numpy.empty(1 << (nbytes - 1).bit_length(), numpy.uint8)
                self._large = weakref.ref(large)
            return large[:nbytes]
        if self._scratch.nbytes < nbytes:
            # Prepared calls hold views of the old memory and keep it alive while they need it.
            self._scratch = numpy.empty(max(nbytes, 64 << 10), numpy.uint8)
        return self._scratch[:nbytes]

    def next_tag(self) -> int:
        """The first tag of the next nonblocking call; the same on every rank."""
        self._calls = (self._calls + 1) % self._turns
        return FIRST_TAG + self._calls * TAGS_PER_CALL

    def persistent_tag(self) -> int:
        """The first tag of a persistent collective, until :meth:`release_tag`; collective.

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
        """Note that this rank has freed the request of a tag."""
        self._released.add(tag)

    def _reclaim_tags(self) -> None:
        """Find the tags whose requests all ranks have freed, so that no message has them.

        Raises:
            RequestError: there are none; on every rank.
            CollectiveTimeout, BrokenCommunicatorError: a rank does not come.
        """
        tags, title = self._persistent_tags, "comparison of freed requests"
        mine = numpy.array([tag in self._released for tag in tags], numpy.uint8)
        freed = numpy.empty_like(mine)
        request = self.comm.Iallreduce(mine, freed, MPI.MIN)
        try:
            Meeting(self.comm, title).wait(request, *self.bounds)
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
        """Bytes of the segments in which the compiled executor runs a request of a long call.

        The same on every rank; 0 for calls that are not cut for it.
        """
        cut = (self.place.compiled and self.place.one_node and self.node is not None
               and tag in self.node.tags and facts.has_tape and facts.nbytes is not None
               and LANE_BYTES < facts.nbytes <= CUT_BYTES)
        wanted = self.config.segment_bytes or OTHER_CELL_BYTES
        return wanted if cut and wanted <= OTHER_CELL_BYTES else 0

    @property
    def has_channels(self) -> bool:
        """Tell whether the next persistent collective has channels; the same on every rank."""
        tags = self._unused[-1:] or self._persistent_tags[self._persistent:self._persistent + 1]
        return self.node is not None and any(tag in self.node.tags for tag in tags)

    def abandon(self, execution: Execution, error: BaseException) -> None:
        """Keep an execution that failed half-way: its messages may still be in flight.

        Raises:
            ContractError, BrokenCommunicatorError: it failed because of what another rank did.
        """
        self.abandoned.append(execution)
        execution.program = None  # who finds it by its arrays does not start it again
        for key in [k for k, kept in self.prepared.entries.items() if kept is execution]:
            self.prepared.drop(key)
        verdict = self.fail(error, execution.title, execution.plan, execution.tag)
        if verdict is not error:
            raise verdict from cause_of(error)

    def fail(self, error: BaseException, title: str, plan: Plan | None = None, tag: int = 0
             ) -> BaseException:
        """Take note that a call failed here, with the tag it had; return what is to be raised."""
        if self.guard is not None:
            error = self.guard.fail(error, title, plan.description if plan else None,
                                    split(tag)[0])
        tell_error(self.rank, error)
        return error

    def stop_starts(self) -> None:
        """See to it that who starts a prepared request again looks whether that may be."""
        for operation in self.taped:
            operation.idle = False

    def revoke(self) -> None:
        """End all that any rank waits for in the MPI library, which must be able to."""
        near = [self.node.comm] if self.node is not None else []
        for comm in (self.user, self.comm, *near):
            comm.Revoke()

    def free(self) -> None:
        """Free the duplicate and everything prepared on it."""
        if not self.freed:
            self.freed = True
            self.prepared.clear()
            self.batches.clear()
            self.tapes.clear()
            self.stop_starts()
            for service in self._services.values():
                service.free()
            if self.node is not None:
                self.node.free()
            # Messages of a call that failed may never be received. The library gives the number
            # of a freed communicator to the next one, which would receive them.
            if self.guard is None or self.guard.failure is None:
                self.comm.Free()


def context_of(user: MPI.Intracomm, config: Config, topology: Topology | None) -> Context:
    """The state of a communicator; the first call on it is collective.

    Raises:
        ArgumentError: the layout is not one of so many ranks, or not the one it has already; a
            setting differs between ranks.
    """
    context = existing(user)
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


def existing(user: MPI.Intracomm) -> Context | None:
    """The state of a communicator, if there is one; never communicates."""
    return cast("Context | None", user.Get_attr(_keyvals[0])) if _keyvals else None


def stop_all_starts() -> None:
    """The same for all communicators, in a process that was forked from a rank."""
    for context in list(_contexts):
        context.stop_starts()


def keyval() -> int:
    """The attribute key, made on first use (not inherited by ``Dup``)."""
    if not _keyvals:
        _keyvals.append(MPI.Comm.Create_keyval(
            delete_fn=lambda comm, key, context: None if MPI.Is_finalized() else context.free()))
    return _keyvals[0]
