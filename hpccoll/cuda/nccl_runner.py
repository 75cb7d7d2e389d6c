"""Runs calls on GPU arrays by NCCL, on request.

    comm.using(allreduce="nccl")          NCCL, between all ranks
    comm.using(allreduce="nccl+rails")    reduce-scatter by NCCL inside each node, allreduce of each
                                          rank's part across nodes by hpccoll, allgather by NCCL
    comm.using(allreduce="nccl+leader")   reduce by NCCL to the first rank of each node, allreduce
                                          across nodes by hpccoll, broadcast by NCCL

The first such call creates NCCL's communicators, on all ranks or on none (:class:`Nccl`); on
failure all ranks get the same reason. A call is queued on the caller's stream. The host waits only
for the part across nodes, as for every MPI message. A rank does not know if other ranks' arrays are
on a GPU, so hpccoll chooses NCCL itself only for ``hpccoll.Comm(comm, device="cuda")``.

Guards, contexts and communicators belong to higher layers and are passed as arguments.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from mpi4py import MPI

from hpccoll.config import NCCL, NCCL_LEADER, NCCL_RAILS
from hpccoll.cuda.nccl import introduce, takes_turns
from hpccoll.cuda.nccl_group import NcclGroup, join
from hpccoll.cuda.staging import has_completed
from hpccoll.cuda.stream_ordered import Queue
from hpccoll.ir.topology import Topology
from hpccoll.transport.private_comm import PrivateComm

#: Seconds that queued work may take when a communicator is freed.
LAST = 10.0


class AcrossNodes(NamedTuple):
    """Allreduce of the parts between nodes.

    Attributes:
        wrap: creates an ``hpccoll.Comm``.
        algorithm: returns the algorithm for a part of a call, given bytes and number of nodes.
    """

    wrap: Callable[[MPI.Intracomm], Any]
    algorithm: Callable[[Any, int, int], str]


class NcclRunner:
    """Runs calls by NCCL, alone or with hpccoll's messages across nodes.

    Args:
        guard: the guard of the communicator.
        name: the algorithm: ``nccl``, ``nccl+rails``, ``nccl+leader``.
        group: this rank's NCCL group: all ranks, or those of its node.
        cross: a communicator of the ranks with the same index on their nodes; ``None`` if NCCL runs
            the whole call.
        algorithm: see :class:`AcrossNodes`.
        owned: communicators to free with it.
    """

    def __init__(self, library: Any, name: str, group: NcclGroup, cross: Any,
                 algorithm: Callable[[Any, int, int], str], owned: Sequence[MPI.Intracomm]):
        self.library, self.name, self.group = library, name, group
        self.cross, self.owned, self.leader = cross, owned, name == NCCL_LEADER
        self.algorithm = algorithm
        self.queued = library.stream_monitor(
            group.check, group.abort, group.device,
            partial(has_completed, importlib.import_module("cupy")))

    def run(self, call: Any, where: Queue, description: Any) -> None:
        """Queue a call that this rank can run; ``description`` is for the guard.

        Raises:
            BrokenCommunicatorError: it or an earlier queued call has failed.
        """
        self.queued.raise_if_broken()
        with self.queued.abort_on_error(description), self._report_failures():
            part = self.library.watch_queued(self._begin, description)(call, where, description)
            if self.cross is not None:
                self._combine_across(self.cross, call, where, part)
                self.queued.raise_if_broken()
                # A rank of this node whose part across nodes failed never joins: the watchdog must
                # see this.
                self.library.watch_blocking(self.group.gather_parts, call.name)(
                    call, where.stream, self.leader)
                self.queued.add(description, where.mark(), call)

    def finish(self, where: Queue) -> None:
        """Wait for the queued calls, for a caller that may use the results on any stream.

        Raises:
            BrokenCommunicatorError: they were aborted.
        """
        with where.device:
            where.stream.synchronize()
        self.queued.raise_if_broken()

    @contextmanager
    def _report_failures(self) -> Iterator[None]:
        """Report failures inside to the ranks that wait for this one's part across nodes."""
        try:
            yield
        except BaseException as error:
            known = self.cross._context if self.cross is not None else None
            if known is not None:
                # The failure belongs to the next call: others may still be in the last one, and can
                # complete it.
                known.guard.fail(error, f"a part of {self.name}", None, 0,
                                 number=known.guard.number + 1)
            raise

    def _begin(self, call: Any, where: Queue, description: Any) -> range:
        """Queue a call, or its part before the messages; return the elements to combine."""
        part = range(0)
        if self.cross is None:
            self.group.queue(call, where.stream)
        else:
            part = self.group.scatter_sum(call, where.stream, self.leader)
        self.queued.add(description, where.mark(), call)
        return part

    def _combine_across(self, cross: Any, call: Any, where: Queue, part: range) -> None:
        """Allreduce this rank's part with the ranks of the same index on other nodes."""
        if not part:
            return
        with where.device:  # the null stream belongs to the current device
            where.stream.synchronize()
        self.queued.raise_if_broken()
        if call.sink is None or call.op is None or cross.Get_size() == 1:
            return
        first = call.sink.displs[0]
        piece = call.sink.array[first + part.start:first + part.stop]
        name = self.algorithm(call, cross.Get_size(), piece.nbytes)
        with where.device, where.stream, cross.using(allreduce=name):
            cross.Allreduce(MPI.IN_PLACE, piece, call.op)

    def free(self) -> None:
        """Free all resources; collective."""
        self.queued.close(LAST, self.group.free)
        for comm in self.owned:
            comm.Free()


class Nccl:
    """NCCL of one communicator; a service of its context.

    Attributes:
        reasons: errors of failed set-ups, by algorithm; the same on all ranks.
        shared_in_turns: True if ranks share a GPU without MPS; ``None`` before the exchange.
    """

    def __init__(self, context: Any):
        self.context = context
        self.made: dict[str, NcclRunner] = {}
        self.reasons: dict[str, str] = {}
        self.shared_in_turns: bool | None = None

    def ranks(self, name: str, device: Any, across: AcrossNodes) -> NcclRunner | str:
        """Return the runner of an algorithm; the first call is collective.

        Args:
            name: the algorithm.
            device: the GPU of this rank.
            across: creates the communicator for hpccoll's collectives across nodes.

        Returns:
            The runner; or an error text, the same on all ranks.
        """
        if name not in self.made and name not in self.reasons:
            made = self.context.library.watch_blocking(self._make)(name, device, across)
            if isinstance(made, str):
                self.reasons[name] = made
            else:
                self.made[name] = made
        return self.made.get(name) or self.reasons[name]

    def takes_turns(self, device: Any) -> bool:
        """Return True if ranks share a GPU without MPS; the first call is collective."""
        if self.shared_in_turns is None:
            exchange = self.context.library.watch_blocking(self.context.comm.allgather)
            self.shared_in_turns = takes_turns(exchange(introduce(device)))
        return self.shared_in_turns

    def _make(self, name: str, device: Any, across: AcrossNodes) -> NcclRunner | str:
        context = self.context
        if name == NCCL:
            group = join(context.comm, context.comm, device, self._meet)
            return group if isinstance(group, str) else NcclRunner(
                context.library, name, group, None, across.algorithm, ())
        nodes = groups_of(context.topology)
        if name == NCCL_RAILS and len(set(map(len, nodes))) > 1:
            return (f"the nodes of the layout {context.topology} have different numbers of ranks, "
                    f"which {NCCL_LEADER} allows")
        number = next(n for n, node in enumerate(nodes) if context.rank in node)
        local = nodes[number].index(context.rank)
        node = PrivateComm(context.comm.Split(number, local))
        group = join(context.comm, node, device, self._meet)
        if isinstance(group, str):
            node.Free()
            return group
        cross = across.wrap(MPI.Intracomm(context.comm.Split(local, number)))
        cross._private()  # now, so that a failing rank can notify the others there
        return NcclRunner(context.library, name, group, cross, across.algorithm, (node, cross))

    def _meet(self, failed: bool) -> None:
        """Wait until all ranks have connected or failed.

        Args:
            failed: True if this rank has failed, so that no other one can connect.

        Raises:
            CollectiveTimeout: a rank has not within the timeout. It is blocked in NCCL, which waits
                for a failed rank; the alarm that this sets ends its process.
        """
        timeouts = self.context.timeouts
        self.context.library.wait(
            self.context.comm.Ibarrier(), "set-up of NCCL",
            timeout=min(timeouts.timeout, timeouts.report) if failed else timeouts.timeout)

    def free(self) -> None:
        """Free all resources; collective."""
        for ranks in self.made.values():
            ranks.free()
        self.made.clear()


def groups_of(topology: Topology) -> list[list[int]]:
    """Return the ranks of each innermost group of a layout; one group if it is flat.

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
