"""Schedules of what the table does not use: lanes, and operations of the network.

Some of each kind, for the tools that want every kind of step, as the table is for all others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from hpccoll.algorithms import schedule
from hpccoll.ir.collectives import COLLECTIVES, IN, OUT, TMP
from hpccoll.ir.in_network import in_network, multicast
from hpccoll.ir.order import lanes
from hpccoll.ir.schedule import LEFT, Program, Round, Schedule, at, copy, recv, send
from support.mutations.waits import relaxed

#: Algorithms of the table whose rounds are taken as lanes, by collective.
IN_LANES = (("allreduce", "ring"), ("allgather", "bruck"), ("bcast", "chain"),
            ("reduce", "binomial"), ("alltoall", "pairwise"), ("scan", "recursive_doubling"))


def extra_schedules(size: int, roots: range | None = None) -> Iterator[Schedule]:
    """Some schedules with lanes, or with operations of the network, for so many ranks."""
    for collective, name in IN_LANES:
        rooted = COLLECTIVES[collective].rooted
        for root in (range(size) if roots is None else roots) if rooted else (0,):
            made = schedule(collective, name, size, root=root)
            yield replace(made, build=partial(_relaxed, made), algorithm=f"{name}-in-lanes",
                          rounds=None, sent=None)
    if size < 2:
        return
    for collective, build, nblocks in NETWORKS:
        rooted = COLLECTIVES[collective].rooted
        for root in (range(size) if roots is None else roots) if rooted else (0,):
            yield Schedule(COLLECTIVES[collective], build.__name__.strip("_"), size,
                           partial(build, size=size, root=root), root, nblocks or size)


def _relaxed(made: Schedule, rank: int) -> Program:
    return relaxed(made.program(rank))


def _summed(rank: int, size: int, root: int) -> Program:
    """An allreduce in one operation, whose result replaces what was given."""
    everybody = in_network(range(size), range(size))
    return Program(((copy(at(OUT, 0, 2), at(IN, 0, 2)),),
                    (send(everybody, at(OUT, 0, 2)), recv(everybody, at(OUT, 0, 2)))))


def _gathered(rank: int, size: int, root: int) -> Program:
    """An allgather of multicasts, each in a lane of its own."""
    take = (copy(at(OUT, rank), at(IN, 0)),)
    return lanes(*([_one(rank, other, size)] for other in range(size)), before=[take])


def _one(rank: int, root: int, size: int) -> Round:
    network = multicast(root, range(size))
    return ((send if rank == root else recv)(network, at(OUT, root)),)


def _spread(rank: int, size: int, root: int) -> Program:
    """A broadcast of two multicasts, one after the other."""
    network = multicast(root, range(size))
    return Program(tuple(((send if rank == root else recv)(network, at(OUT, block)),)
                         for block in range(2)))


def _collected(rank: int, size: int, root: int) -> Program:
    """A reduction: the network adds up the others' vectors, and the root adds its own."""
    network = multicast(root, range(size)).backwards
    if rank != root:
        return Program(((send(network, at(IN, 0)),),))
    return Program(((copy(at(OUT, 0), at(IN, 0)),), (recv(network, at(OUT, 0), reduce=LEFT),)))


def _dealt(rank: int, size: int, root: int) -> Program:
    """A reduce-scatter: one operation for each block, into scratch."""
    steps = [send(in_network(range(size), [block]), at(IN, block)) for block in range(size)]
    steps.append(recv(in_network(range(size), [rank]), at(TMP, 0)))
    return Program((tuple(steps), (copy(at(OUT, 0), at(TMP, 0)),)), (rank,))


def _entered(rank: int, size: int, root: int) -> Program:
    """A barrier: an operation without data."""
    everybody = in_network(range(size), range(size))
    return Program(((send(everybody), recv(everybody)),))


#: Collectives, builders, and blocks of their vectors; 0 for one a rank.
NETWORKS = (("allreduce", _summed, 2), ("allgather", _gathered, 0), ("bcast", _spread, 2),
            ("reduce", _collected, 1), ("reduce_scatter", _dealt, 0), ("barrier", _entered, 0))
