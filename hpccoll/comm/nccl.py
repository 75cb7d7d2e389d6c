"""Calls on arrays of GPUs that NCCL serves, because somebody asked for it.

    comm.using(allreduce="nccl")          NCCL, between all ranks
    comm.using(allreduce="nccl+rails")    reduce-scatter by NCCL inside each node, allreduce of each
                                          rank's part across nodes by us, allgather by NCCL
    comm.using(allreduce="nccl+leader")   reduce by NCCL to the first rank of each node, allreduce
                                          across nodes by us, broadcast by NCCL

The first such call makes NCCL's communicators, on all ranks or on none (:class:`Nccl`); why none,
all ranks know. A call is queued on the caller's stream; only the part across nodes is waited for by
the host, as every message of MPI is. Whether arrays are on a GPU is known to no other rank, so no
choice of hpccoll's own is ever NCCL.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from hpccoll.arrays.resident import Queue, Resident, queue_of, resident
from hpccoll.arrays.staging import happened
from hpccoll.calls.call import Call
from hpccoll.calls.facts import CallFacts, facts_of
from hpccoll.calls.native import NativeOnly
from hpccoll.comm.methods import Method
from hpccoll.config import AUTO, NCCL, NCCL_LEADER, NCCL_RAILS
from hpccoll.errors import ArgumentError
from hpccoll.guard.board import called
from hpccoll.guard.guard import Guard
from hpccoll.guard.queued import Queued
from hpccoll.ir.topology import Topology
from hpccoll.runtime.bounded import BoundedDict
from hpccoll.runtime.context import MOST_KEPT, Context, existing
from hpccoll.runtime.events.log import NUMBER
from hpccoll.runtime.execution.nccl import NcclGroup, join
from hpccoll.runtime.planning.choice import Choice
from hpccoll.runtime.planning.description import Description, describe_native
from hpccoll.tune.choose import Conditions, choose, instead_of_native, obstacle

if TYPE_CHECKING:
    from hpccoll.comm.base import Base
    from hpccoll.comm.communicator import Comm

#: Makes an ``hpccoll.Comm``.
Wrap = Callable[[MPI.Intracomm], "Comm"]
#: Seconds for what is queued to happen, when a communicator is freed.
LAST = 10.0


class Ranks:
    """Ranks that serve calls by NCCL, alone or with messages of ours across nodes.

    Args:
        context: of the communicator.
        name: what they serve: ``nccl``, ``nccl+rails``, ``nccl+leader``.
        group: NCCL's side of this rank: of all ranks, or of those of its node.
        cross: the ranks that have this one's number on their nodes; ``None`` where NCCL does all.
        owned: communicators to free with it.
    """

    def __init__(self, context: Context, name: str, group: NcclGroup, cross: Comm | None,
                 owned: Sequence[MPI.Intracomm]):
        self.context, self.name, self.group = context, name, group
        self.cross, self.owned, self.leader = cross, owned, name == NCCL_LEADER
        self.guard = context.service(Guard)
        self.queued = Queued(self.guard, group.check, group.abort, group.device,
                             partial(happened, importlib.import_module("cupy")))
        self.across = BoundedDict[int, str](MOST_KEPT)

    def run(self, call: Call, where: Queue) -> None:
        """Serve a call that this rank can make.

        Raises:
            BrokenCommunicatorError: it has failed, or one that was queued before has.
        """
        description = describe_native(call, call.name)._replace(algorithm=self.name)
        self.queued.refuse()
        with self.queued.failing(called(description), description), self._telling():
            part = self.guard.queueing(self._begin, description)(call, where, description)
            if self.cross is not None:
                self._combine_across(self.cross, call, where, part)
                self.queued.refuse()
                # A rank of this node that failed across never comes: the watcher has to see that.
                self.guard.attended(self.group.gather_parts, call.name)(
                    call, where.stream, self.leader)
                self.queued.add(description, where.mark(), call)

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """What fails in here is told to the ranks that wait for this one's part across nodes."""
        try:
            yield
        except BaseException as error:
            known = existing(self.cross) if self.cross is not None else None
            if known is not None:
                guard = known.service(Guard)
                # Of the next call there: others may be in the last one still, and can end it.
                guard.fail(error, f"a part of {self.name}", None, 0,
                           number=guard.logs.mine.words[NUMBER] + 1)
            raise

    def _begin(self, call: Call, where: Queue, description: Description) -> range:
        """Queue a call, or its part before the messages; which elements those are to combine."""
        part = range(0)
        if self.cross is None:
            self.group.queue(call, where.stream)
        else:
            part = self.group.scatter_sum(call, where.stream, self.leader)
        self.queued.add(description, where.mark(), call)
        return part

    def _combine_across(self, cross: Comm, call: Call, where: Queue, part: range) -> None:
        """Allreduce this rank's part with the ranks of its number on the other nodes."""
        if not part:
            return
        with where.device:  # the null stream is that of the current device
            where.stream.synchronize()
        self.queued.refuse()
        if call.sink is None or call.op is None or cross.Get_size() == 1:
            return
        first = call.sink.displs[0]
        piece = call.sink.array[first + part.start:first + part.stop]
        name = self.across.get(piece.nbytes)
        if name is None:
            name = self.across.keep(piece.nbytes, across(facts_of(call), cross.Get_size(),
                                                         piece.nbytes))
        with where.device, where.stream, cross.using(allreduce=name):
            cross.Allreduce(MPI.IN_PLACE, piece, call.op)

    def free(self) -> None:
        """Give everything back; collective."""
        self.queued.close(LAST, self.group.free)
        for comm in self.owned:
            comm.Free()


def across(facts: CallFacts, size: int, nbytes: int) -> str:
    """The algorithm for a part of an allreduce, across so many nodes."""
    choice = instead_of_native(facts._replace(nbytes=nbytes), Conditions(size),
                               "it goes between nodes")
    return choice.name if choice is not None else AUTO


class Nccl:
    """NCCL on one communicator; a service of its context.

    Attributes:
        reasons: why there are none, by what was asked for; the same on all ranks.
    """

    def __init__(self, context: Context):
        self.context = context
        self.made: dict[str, Ranks] = {}
        self.reasons: dict[str, str] = {}

    def ranks(self, name: str, device: Any, wrap: Wrap) -> Ranks | str:
        """The ranks that serve a choice; the first question is collective.

        Args:
            name: of the choice.
            device: the GPU of this rank.
            wrap: makes the communicator whose collectives are ours, across nodes.

        Returns:
            Them; or why there are none, the same on all ranks.
        """
        if name not in self.made and name not in self.reasons:
            made = self.context.service(Guard).attended(self._make)(name, device, wrap)
            if isinstance(made, str):
                self.reasons[name] = made
            else:
                self.made[name] = made
        return self.made.get(name) or self.reasons[name]

    def _make(self, name: str, device: Any, wrap: Wrap) -> Ranks | str:
        context = self.context
        if name == NCCL:
            group = join(context.comm, context.comm, device, self._meet)
            return group if isinstance(group, str) else Ranks(context, name, group, None, ())
        nodes = groups_of(context.topology)
        if name == NCCL_RAILS and len(set(map(len, nodes))) > 1:
            return (f"the nodes of the layout {context.topology} have unlike numbers of ranks, "
                    f"which {NCCL_LEADER} allows")
        number = next(n for n, node in enumerate(nodes) if context.rank in node)
        local = nodes[number].index(context.rank)
        node = MPI.Intracomm(context.comm.Split(number, local))
        group = join(context.comm, node, device, self._meet)
        if isinstance(group, str):
            node.Free()
            return group
        cross = wrap(MPI.Intracomm(context.comm.Split(local, number)))
        cross._private()  # now, so that a rank that fails can tell the others there
        return Ranks(context, name, group, cross, (node, cross))

    def _meet(self, failed: bool) -> None:
        """Wait for all ranks to have connected, or to have failed.

        Args:
            failed: this rank has, so that no other one can connect any more.

        Raises:
            CollectiveTimeout: one has not for too long. It sits in NCCL, which waits for a rank
                that has failed; the alarm that this raises there ends its process.
        """
        bounds = self.context.bounds
        self.context.service(Guard).natives.waited(
            self.context.comm.Ibarrier(), "set-up of NCCL",
            timeout=min(bounds.timeout, bounds.report) if failed else bounds.timeout)

    def free(self) -> None:
        """Give everything back; collective."""
        for ranks in self.made.values():
            ranks.free()
        self.made.clear()


def groups_of(topology: Topology) -> list[list[int]]:
    """The ranks of each smallest group of a layout; all together where it is flat.

    >>> groups_of(Topology.parse("2x2")), groups_of(Topology.parse("3"))
    ([[0, 1], [2, 3]], [[0, 1, 2]])
    """
    def leaves(tree: Any) -> list[int]:
        return [tree] if isinstance(tree, int) else [n for one in tree for n in leaves(one)]

    found, ranks = [], list(topology.ranks)
    for number in leaves(topology.tree):
        found.append(ranks[:number])
        ranks = ranks[number:]
    return found


def serve(comm: Base, method: Method, args: tuple[Any, ...], wish: Choice, gives_way: bool
          ) -> str:
    """Serve a blocking call that NCCL was asked for; ``gives_way`` if by the environment.

    Returns:
        Why it was not served, for who serves it instead; empty where it was.

    Raises:
        ArgumentError: ``comm.using`` asked for it, and it cannot serve the call.
    """
    specs, elsewhere = [resident(arg) for arg in args], (
        f"rank {comm.Get_rank()} passes no memory of a GPU that CuPy knows")
    if not any(isinstance(part, Resident) for spec in specs
               for part in (spec if isinstance(spec, list) else [spec])):
        return elsewhere
    try:
        call = method.resolve(comm.Get_size(), comm.Get_rank(), *specs)
    except NativeOnly as error:
        if gives_way:
            return str(error)
        raise ArgumentError("algorithm", f"{wish.name} cannot serve this {method.title} on rank "
                                         f"{comm.Get_rank()}: {error}", "choose another one"
                            ) from error
    where, facts = queue_of(specs), facts_of(call)
    if where is None:
        return elsewhere
    conditions = comm._conditions(method)
    choice = choose(facts, conditions, comm._known_place())
    if choice is None or not choice.is_queued:
        return obstacle(wish, facts, conditions)  # the environment asked for it: it gives way
    ranks = comm._private().service(Nccl).ranks(wish.name, where.device, comm._for_part)
    if isinstance(ranks, str):
        return ranks
    if where.device.id != ranks.group.device.id:
        raise ArgumentError("sendbuf", f"is on GPU {where.device.id}, and NCCL serves this "
                                       f"communicator on GPU {ranks.group.device.id}",
                            "use one GPU for all calls of a communicator")
    comm._tell(method, call, wish)
    if comm._always:
        comm._compare(describe_native(call, method.name)._replace(algorithm=wish.name))
    ranks.run(call, where)
    return ""


def reason_of(comm: MPI.Intracomm, name: str) -> str:
    """Why ranks are known not to be served by NCCL; empty where nobody knows."""
    context = existing(comm)
    return context.service(Nccl).reasons.get(name, "") if context is not None else ""
