"""``hpccoll.Comm``: an ``MPI.Intracomm`` with the collectives of hpccoll.

It shares the handle of the communicator that it wraps, and works wherever an ``MPI.Intracomm``
does. The MPI library runs the first eight collectives; the next one duplicates the communicator.
Derived communicators are ``hpccoll.Comm`` too; those with a topology are also ``MPI.Cartcomm`` and
so on, and keep the native neighbour collectives. They do not inherit choices of ``using``.

    Comm --handle--> MPI communicator --attributes--> Lifetime (freed?), Context (private duplicate)

Garbage collection never frees a communicator; ``Free`` does, for all its wrappers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from hpccoll import config
from hpccoll.comm.blocking import BlockingMixin
from hpccoll.comm.cache import CallCache
from hpccoll.comm.creation import Creation
from hpccoll.comm.devices import DeviceMessages, DeviceWays, nccl_problem
from hpccoll.comm.first_calls import precedes_setup
from hpccoll.comm.lifetime import Lifetime
from hpccoll.comm.nonblocking import NonblockingMixin
from hpccoll.comm.objects.methods import Objects
from hpccoll.comm.persistent import PersistentMixin
from hpccoll.comm.probes import Probes
from hpccoll.comm.reproducible import Numbers
from hpccoll.comm.ulfm import Recovery
from hpccoll.errors import ArgumentError, CommunicatorError
from hpccoll.machine.limits import FIRST_CALLS
from hpccoll.runtime.attributes import existing_context, keyval
from hpccoll.runtime.execution.built import executor
from hpccoll.runtime.progress.engine import PROGRESS

if TYPE_CHECKING:
    from hpccoll.comm.preferences import PreferenceScope
    from hpccoll.ir.topology import Topology
    from hpccoll.measure.profiling.profile import Profile
    from hpccoll.tune.loading import JobTimes


class Comm(BlockingMixin, NonblockingMixin, PersistentMixin, Objects, Numbers, Creation, Recovery,
           Probes, DeviceMessages, DeviceWays):
    """Communicator with proved, automatically chosen and explainable collectives.

    A communicator with a Cartesian, graph or distributed-graph topology becomes an instance
    of the subclass for it.

    Args:
        comm: an intracommunicator; the handle is shared, not duplicated.
        layout: nodes and ranks to assume, such as ``"2x4"``; discovered if omitted.
        determinism: reproducibility of rounded results: ``"none"``, or independence of the
            ``"run"``, also of the message ``"size"``, also of the ``"layout"``, also of the number
            of ranks (``"any-p"``, sums only); the environment's if omitted.
        progress: progress of nonblocking and persistent collectives that hpccoll runs: also in a
            ``"thread"``, or only in ``"calls"`` of ``Test`` and ``Wait``; the environment's if
            omitted.
        tuning: source of measured times, in the form of ``HPCCOLL_TUNING``, which is the default;
            fixed for all wrappers by the first collective on a communicator.
        contract: comparison of calls between ranks, in the form of ``HPCCOLL_CONTRACT``, which is
            the default; the first collective that hpccoll runs on a communicator fixes for all
            wrappers whether messages carry call hashes. The same on every rank.
        checksums: add a checksum to every message of hpccoll, in the form of ``HPCCOLL_CHECKSUMS``,
            which is the default; fixed for all wrappers by the first collective that hpccoll runs
            on a communicator. The same on every rank.
        timeout: seconds without progress until a collective fails, or ``"off"``, in the form of
            ``HPCCOLL_TIMEOUT``, which is the default; fixed for all wrappers by the first
            collective on a communicator.
        device: ``"cuda"`` promises that all ranks pass arrays of GPUs in all collectives of
            buffers: then ``auto`` selects a data path by rules, NCCL included. Host memory raises.

    These options, like ``using``, apply to this object. Derived communicators do not inherit them.

    Raises:
        CommunicatorError: not an intracommunicator.
        ArgumentError: invalid layout, determinism, progress, contract, timeout, device or
            environment variable; a device without CuPy.
    """

    #: Value of ``Get_topology`` of communicators that this class can wrap; any if ``None``.
    _kind: int | None = None

    def __new__(cls, comm: MPI.Comm | None = None, layout: str | Topology | None = None,
                determinism: str | None = None, progress: str | None = None,
                tuning: str | None = None, contract: str | None = None,
                checksums: bool | None = None, timeout: float | str | None = None,
                device: str | None = None) -> Comm:
        if not MPI.Is_initialized() or MPI.Is_finalized():
            raise CommunicatorError(
                f"MPI has {'not been initialised' if not MPI.Is_initialized() else 'ended'}; "
                "create communicators between MPI.Init and MPI.Finalize")
        null = comm is None or isinstance(comm, MPI.Comm) and comm == MPI.COMM_NULL
        if not null and not isinstance(comm, MPI.Intracomm):
            raise CommunicatorError(f"expected an MPI.Intracomm, got {type(comm).__name__}")
        if cls is Comm:
            cls = next((ours for native, ours in KINDS if isinstance(comm, native)), Comm)
        elif (cls._kind is not None and isinstance(comm, MPI.Intracomm) and not null
              and comm.Get_topology() != cls._kind):
            raise CommunicatorError(f"the communicator does not have a {cls.__name__} topology")
        settings = config.load()
        if settings.profile or settings.trace:
            cls = _recording_class(cls)
        self = MPI.Intracomm.__new__(cls, comm)
        self._config = settings.override(
            determinism=determinism, progress=progress, tuning=tuning, contract=contract,
            checksums=checksums, timeout=timeout)
        if device is not None:
            from hpccoll.comm.promise import device_promise
            self._device = device_promise(device)
        if self._config.log:
            from hpccoll.runtime.events.logger import start
            start(self._config.log)
        self._cache = CallCache()
        self._caches = {(): self._cache}
        executor(self._config)  # raises now if the executor was not built
        self._calls = self._cache.calls if self._remembers else None
        if not null:
            self._lifetime = Lifetime.of(self)
        if layout is not None:
            self._layout = _layout(layout, self.Get_size())
        return self

    @property
    def layout(self) -> Topology:
        """Nodes and ranks of this communicator; the first access is collective.

        mpi4py's ``topology`` is another property: the kind of process topology.
        """
        self._check_alive()
        return self._private().topology

    @property
    def determinism(self) -> str:
        """Requested reproducibility of rounded results."""
        return self._config.determinism

    def explain(self, collective: str, nbytes: int | str, detail: bool = False) -> str:
        """Explain which algorithm runs for a message size, and why.

        Not collective. The rules depend on the layout: before the first collective that hpccoll
        runs, or the first access to ``layout``, their choice is not known.

        Args:
            collective: its name, as ``allreduce``, or as MPI spells it.
            nbytes: bytes of this rank's larger buffer: a number, or ``"1M"``.
            detail: add every candidate with its costs and times, and the schedule in words.

        Raises:
            ArgumentError: unknown collective, or an invalid number of bytes.
        """
        from hpccoll.ir.collectives import collective_named
        from hpccoll.runtime.planning.choice import Choice
        from hpccoll.tune.choose import Conditions
        from hpccoll.tune.describe import describe
        collective = collective_named(collective)
        preference, environment = self._preferences.get(collective), False
        if preference is None and collective in self._config.algorithm:
            preference = Choice(*self._config.algorithm[collective], reason="HPCCOLL_ALGORITHM")
            environment = True
        context = existing_context(self)
        conditions = Conditions(self.Get_size(), preference, environment, self.tuned,
                                self._config.determinism, device=self._device_place)
        if preference is not None and preference.is_queued and context is not None:
            conditions = conditions._replace(barred=nccl_problem(self, preference.name))
        first = (f"\nThe MPI library runs the first {FIRST_CALLS} calls; the next one sets the "
                 "communicator up." if preference is None and precedes_setup(self) else "")
        return describe(collective, nbytes, conditions,
                        context.topology if context else self._layout,
                        context.place if context else None, detail) + self._known_ways() + first

    @property
    def tuned(self) -> JobTimes | None:
        """Measured times behind the choices; ``None`` before the set-up."""
        return self._lifetime.tuned if self._lifetime else None

    def using(self, *, segment_bytes: int | str = 0, **algorithms: Any) -> PreferenceScope[Comm]:
        """Choose algorithms inside a ``with`` block; use the same choices on every rank.

        The choices are validated immediately. Without ``with`` they have no effect, and a
        ``RuntimeWarning`` reports that.

        Args:
            segment_bytes: bytes of one block per message: a number, or ``"64K"``.
            algorithms: a choice per collective (``allgather``), or for one of its methods only
                (``allgatherv``, ``iallgather``, ``allgather_init``): a name of
                ``hpccoll.algorithm_names()``, ``"native"``, ``"auto"``, ``"nccl"``,
                ``"nccl+rails"`` or ``"nccl+leader"`` for arrays of GPUs, ``(name, {"k": 4})``,
                a builder ``build(rank, size[, root]) -> Program`` or a finished ``Schedule``.

        Raises:
            ArgumentError: unknown collective or algorithm; the message lists the valid ones.
        """
        from hpccoll.comm.preferences import PreferenceScope, choices_of
        return PreferenceScope(self, choices_of(algorithms, segment_bytes))

    def choose(self, *, segment_bytes: int | str = 0, **algorithms: Any) -> None:
        """Choose algorithms from now on, the same on every rank; ``"auto"`` removes a choice.

        Args:
            segment_bytes, algorithms: as for :meth:`using`.

        Raises:
            ArgumentError: unknown collective or algorithm; the message lists valid ones.
        """
        from hpccoll.comm.preferences import choices_of
        self._want({**self._preferences, **choices_of(algorithms, segment_bytes)})

    def stats(self, all_ranks: bool = False) -> Profile:
        """Return statistics of this communicator's collectives: ``print(comm.stats())``.

        Args:
            all_ranks: include all ranks, and how long each waited for others; collective.

        Raises:
            ArgumentError: statistics are not enabled.
        """
        from hpccoll.measure.profiling.observer import stats  # imported only in observed programs
        return stats(self, self._check_alive().observed, all_ranks)

    def dump(self, folder: str = "") -> str:
        """Write the last calls of this rank's communicators, for ``hpccoll trace diagnose``.

        Not collective, and thread-safe.

        Args:
            folder: the target; if omitted, that of ``HPCCOLL_TRACE``, else ``hpccoll-trace``.

        Returns:
            The file's path; empty if it cannot be written, which is reported.
        """
        from hpccoll.guard.flight_record import RECORDER
        return RECORDER.dump("comm.dump()", folder)

    def _unobserved_class(self) -> Any:
        return Comm

    # -- communicators from others -----------------------------------------------------------
    def Create(self, group: MPI.Group) -> Comm:
        """Create a communicator of a group of this one's ranks."""
        return wrap(self._create_after_meeting(super().Create, group))

    def Create_group(self, group: MPI.Group, tag: int = 0) -> Comm:
        """Create a communicator of a group; only its members call."""
        from hpccoll.guard.setup import SetupCall
        self._check_alive()
        with SetupCall(group, "create_group", self._config):
            return wrap(super().Create_group(group, tag))

    def Split(self, color: int = 0, key: int = 0) -> Comm:
        """Split into one communicator per color; null for ``MPI.UNDEFINED``."""
        return wrap(self._create_after_meeting(super().Split, color, key))

    def Split_type(self, split_type: int, key: int = 0, info: MPI.Info = MPI.INFO_NULL) -> Comm:
        """Split by a shared resource, such as a node."""
        return wrap(self._create_after_meeting(super().Split_type, split_type, key, info))

    def Create_cart(self, dims: Sequence[int], periods: Sequence[bool] | None = None,
                    reorder: bool = False) -> Cart:
        """Create a communicator with a Cartesian topology."""
        return wrap(self._create_after_meeting(super().Create_cart, dims, periods, reorder))

    def Create_graph(self, index: Sequence[int], edges: Sequence[int],
                     reorder: bool = False) -> Graph:
        """Create a communicator with a graph topology."""
        return wrap(self._create_after_meeting(super().Create_graph, index, edges, reorder))

    def Create_dist_graph_adjacent(self, sources: Sequence[int], destinations: Sequence[int],
                                   sourceweights: Sequence[int] | None = None,
                                   destweights: Sequence[int] | None = None,
                                   info: MPI.Info = MPI.INFO_NULL,
                                   reorder: bool = False) -> Distgraph:
        """Create a communicator with a graph topology; each rank passes its neighbours."""
        return wrap(self._create_after_meeting(
            super().Create_dist_graph_adjacent, sources, destinations, sourceweights, destweights,
            info, reorder))

    def Create_dist_graph(self, sources: Sequence[int], degrees: Sequence[int],
                          destinations: Sequence[int], weights: Sequence[int] | None = None,
                          info: MPI.Info = MPI.INFO_NULL, reorder: bool = False) -> Distgraph:
        """Create a communicator with a graph topology; any rank passes any edges."""
        return wrap(self._create_after_meeting(
            super().Create_dist_graph, sources, degrees, destinations, weights, info, reorder))

    def Shrink(self) -> Comm:
        """Create a communicator without the failed ranks; collective over the others."""
        self._check_alive()
        shrunk = wrap(super().Shrink())
        self._let_go()
        return shrunk

    @classmethod
    def Create_from_group(cls, group: MPI.Group, stringtag: str = "org.mpi4py",
                          info: MPI.Info = MPI.INFO_NULL,
                          errhandler: MPI.Errhandler | None = None) -> Comm:
        """Create a communicator of a group, without a parent."""
        from hpccoll.guard.setup import SetupCall
        with SetupCall(group, "create_from_group", config.load()):
            return wrap(super().Create_from_group(group, stringtag, info, errhandler))

    @classmethod
    def fromhandle(cls, handle: int) -> MPI.Comm:
        """Wrap an MPI handle."""
        return wrap(super().fromhandle(handle))

    @classmethod
    def fromint(cls, arg: int) -> MPI.Comm:
        """Wrap a handle of MPI's standard ABI."""
        return wrap(super().fromint(arg))

    @classmethod
    def f2py(cls, arg: int) -> MPI.Comm:
        """Wrap a Fortran handle."""
        return wrap(super().f2py(arg))

    # -- the end -----------------------------------------------------------------------------
    def Free(self) -> None:
        """Free the communicator and its hpccoll resources, after its pending collectives.

        Raises:
            HpccollError: a call has failed and no later call has raised that. All is freed.
        """
        unraised = self._finish()
        super().Free()
        if unraised is not None:
            raise unraised

    def free(self) -> None:
        """Free the communicator, unless it is null or ``MPI.COMM_WORLD`` or ``MPI.COMM_SELF``."""
        # mpi4py leaves its own objects alone, but ``hpccoll run`` has put others in their place.
        if self is not MPI.COMM_WORLD and self is not MPI.COMM_SELF:
            super().free()

    def Disconnect(self) -> None:
        """Free the communicator after all its communication; raises like :meth:`Free`."""
        unraised = self._finish()
        super().Disconnect()
        if unraised is not None:
            raise unraised

    def _finish(self) -> BaseException | None:
        """Release hpccoll's resources; return a failure that has not been raised yet."""
        self._check_alive()
        context = existing_context(self)
        if context is not None:
            PROGRESS.finish(context)
        if self == MPI.COMM_WORLD or self == MPI.COMM_SELF:
            return None  # predefined communicators are not freed
        # hpccoll's attributes are deleted first: MPICH may free the topology before the attributes,
        # and mpi4py queries the topology whenever it calls a delete callback.
        if context is not None:
            self.Delete_attr(keyval())
        self.Delete_attr(Lifetime._keyvals[0])
        return context.guard.unraised if context is not None else None


class Cart(Comm, MPI.Cartcomm):
    """Communicator with a Cartesian topology."""

    _kind = MPI.CART

    def Sub(self, remain_dims: Sequence[bool]) -> Cart:
        """Create the communicators of a subgrid."""
        return wrap(self._create_after_meeting(super().Sub, remain_dims))


class Graph(Comm, MPI.Graphcomm):
    """Communicator with a graph topology."""

    _kind = MPI.GRAPH


class Distgraph(Comm, MPI.Distgraphcomm):
    """Communicator with a distributed graph topology."""

    _kind = MPI.DIST_GRAPH


#: Kinds of communicators with a topology: mpi4py's class and hpccoll's.
KINDS = (MPI.Cartcomm, Cart), (MPI.Graphcomm, Graph), (MPI.Distgraphcomm, Distgraph)


def wrap(comm: MPI.Comm) -> Any:
    """Wrap an intracommunicator as ``hpccoll.Comm`` or a subclass; pass others unchanged."""
    return Comm(comm) if isinstance(comm, MPI.Intracomm) else comm


def _recording_class(cls: type[Comm]) -> type[Comm]:
    """Return the class, or a subclass with recorded calls if the program is observed."""
    from hpccoll.comm.profiled import profiled_class
    from hpccoll.measure.profiling.observer import OBSERVER  # imported only in observed programs
    found: type[Comm] = cls if OBSERVER.paused else profiled_class(cls)
    return found


def _layout(text: str | Topology, size: int) -> Topology:
    from hpccoll.ir.topology import Topology
    try:
        return Topology.parse(text, size)
    except ArgumentError as error:
        raise ArgumentError("layout", str(error).removeprefix(f"{error.argument}: ")) from None
