"""The upper-case collectives of threads: hpccoll's own schedules, plans and executions.

Only choices, and the transport, are others than in a job: bandwidth-optimal algorithms, whose
traffic has a closed form, and loopback.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy
from mpi4py import MPI

from hpccoll.algorithms.table import reproducible
from hpccoll.calls import resolve
from hpccoll.calls.call import Call
from hpccoll.calls.native import NativeOnly
from hpccoll.config import AUTO, LAYOUT, NATIVE, SIZE, Config
from hpccoll.ir.topology import Topology
from hpccoll.machine.limits import OVERSUBSCRIBED
from hpccoll.runtime.bounded import BoundedDict
from hpccoll.runtime.context import Context
from hpccoll.runtime.planning import planner
from hpccoll.runtime.planning.choice import Choice
from hpccoll.runtime.planning.plan import Plan
from hpccoll.runtime.ranks import TAGS_PER_CALL
from hpccoll.transport import Batch, Endpoint, MessageSpec
from support.no_guard import NoGuard
from support.threads.requests import CollectiveRequest, ThreadRequest
from support.threads.world import ThreadRank

#: Which algorithm serves a collective unless somebody asks for another.
DEFAULTS = {
    "allreduce": "ring", "reduce_scatter": "ring", "allgather": "ring", "alltoall": "pairwise",
    "bcast": "chain", "reduce": "chain", "gather": "linear", "scatter": "linear",
    "scan": "linear", "exscan": "linear", "barrier": "dissemination"}
#: What arguments are where they are left out.
OMITTED = {"op": MPI.SUM, "root": 0, "recvcounts": None}
#: Plans kept per communicator.
MOST_PLANS = 256


class CountedEndpoint:
    """One thread's side of a loopback world: locked, and its bytes counted."""

    def __init__(self, endpoint: Endpoint, here: ThreadRank):
        self.endpoint, self.here = endpoint, here
        self.rank, self.size, self.offers = endpoint.rank, endpoint.size, endpoint.offers

    def direct(self, peers: Sequence[int], tag: int) -> bool:
        """Loopback delivers into the receiver's memory, never in place."""
        return False

    def batch(self, postings: Sequence[MessageSpec], tag: int, repeated: bool) -> Batch:
        """Prepare messages; see :class:`hpccoll.transport.Endpoint`."""
        leaving = sum(one.array.nbytes for one in postings if one.sends)
        return _CountedBatch(self.endpoint.batch(postings, tag, repeated), self.here, leaving)


class _CountedBatch:
    """Messages of one round."""

    def __init__(self, batch: Batch, here: ThreadRank, leaving: int):
        self.batch, self.here, self.leaving = batch, here, leaving

    def start(self) -> None:
        # Starting matches and copies on both sides; testing only looks.
        with self.here.world.changed:
            self.batch.start()
            self.here.sent_bytes += self.leaving
            self.here.world.moved()

    def test(self, tries: int = 1) -> bool:
        return self.batch.test(tries)

    def free(self) -> None:
        self.batch.free()


class Planning:
    """What the planner asks of a :class:`~hpccoll.runtime.context.Context`, for a thread."""

    def __init__(self, comm: Any, endpoint: Endpoint, topology: Topology):
        self.comm, self.endpoint, self.topology = comm, endpoint, topology
        self.guard, self.phases = NoGuard(), None
        self.rank, self.size = endpoint.rank, endpoint.size
        self.config, self.limits = Config(), OVERSUBSCRIBED
        self.plans, self.scratch_bytes = BoundedDict[Any, Plan](MOST_PLANS), 0

    def scratch(self, nbytes: int) -> numpy.ndarray:
        """Memory for one call; several may be under way."""
        return numpy.empty(nbytes, "u1")


#: A blocking method, and its nonblocking form.
Forms = tuple[Callable[..., None], Callable[..., ThreadRequest]]


def forms(resolver: Callable[..., Call]) -> Forms:
    """Make the two methods of a collective, whose arguments a function of ``calls`` resolves."""
    names = list(inspect.signature(resolver).parameters)[2:]
    omitted = {name: OMITTED[name] for name in names if name in OMITTED}

    def call(self: Collectives, args: tuple[Any, ...], options: dict[str, Any]) -> Call:
        given = {**omitted, **dict(zip(names, args)), **options}
        try:
            return resolver(self.size, self.rank, **given)
        except NativeOnly as error:
            raise NotImplementedError(f"threads cannot serve this {resolver.__name__}, which only "
                                      f"an MPI library does: {error}") from None

    def finish(self: Collectives, *args: Any, **options: Any) -> None:
        self._begin(call(self, args, options)).Wait()

    def begin(self: Collectives, *args: Any, **options: Any) -> ThreadRequest:
        return self._begin(call(self, args, options), "i")

    finish.__doc__ = (resolver.__doc__ or "").replace("Resolve", "Serve", 1)
    begin.__doc__ = finish.__doc__ + " Nonblocking."
    return finish, begin


class Collectives:
    """The upper-case collective methods of a communicator."""

    rank: int
    size: int
    here: ThreadRank
    planning: Planning
    determinism: str
    _preferences: Mapping[str, Choice]
    _calls: int

    Barrier, Ibarrier = forms(resolve.barrier)
    Bcast, Ibcast = forms(resolve.bcast)
    Reduce, Ireduce = forms(resolve.reduce)
    Allreduce, Iallreduce = forms(resolve.allreduce)
    Scan, Iscan = forms(resolve.scan)
    Exscan, Iexscan = forms(resolve.exscan)
    Reduce_scatter_block, Ireduce_scatter_block = forms(resolve.reduce_scatter_block)
    Reduce_scatter, Ireduce_scatter = forms(resolve.reduce_scatter)
    Allgather, Iallgather = forms(resolve.allgather)
    Allgatherv, Iallgatherv = forms(resolve.allgatherv)
    Gather, Igather = forms(resolve.gather)
    Gatherv, Igatherv = forms(resolve.gatherv)
    Scatter, Iscatter = forms(resolve.scatter)
    Scatterv, Iscatterv = forms(resolve.scatterv)
    Alltoall, Ialltoall = forms(resolve.alltoall)
    Alltoallv, Ialltoallv = forms(resolve.alltoallv)
    Alltoallw, Ialltoallw = forms(resolve.alltoallw)

    def check_alive(self) -> None:
        """Raise a ``CommunicatorError`` if the communicator was freed."""
        raise NotImplementedError

    def _begin(self, call: Call, form: str = "") -> ThreadRequest:
        self.check_alive()
        context = cast(Context, self.planning)
        self._calls += 1
        plan = planner.plan_for(context, call, self._choice(call, form))
        execution = planner.prepare(context, call, plan, self._calls * TAGS_PER_CALL)
        title = f"{form}{call.name}, call {self._calls} of its communicator"
        return CollectiveRequest(self.here, title, execution,
                                 call.sink.store if call.sink else None)

    def _choice(self, call: Call, form: str) -> Choice:
        for name in form + call.name, call.name, call.collective:
            preference = self._preferences.get(name)
            if preference is not None and preference.name not in (AUTO, NATIVE):
                return preference
        ordered = call.op is not None and (self.determinism in (SIZE, LAYOUT)
                                           or not call.op.Is_commutative())
        return Choice(reproducible(call.collective)[-1] if ordered else DEFAULTS[call.collective])
