"""Choices of resolved calls, as a communicator makes them: in the words of these tests."""

from __future__ import annotations

import numpy
from mpi4py import MPI

from hpccoll.calls import resolve
from hpccoll.calls.facts import facts_of
from hpccoll.ir.topology import Topology
from hpccoll.machine.discovery import Place
from hpccoll.tune import choose as choosing
from hpccoll.tune.choose import Conditions
from hpccoll.tune.cost_model import Model, terms
from hpccoll.tune.describe import describe as describe_under
from hpccoll.tune.loading import JobTimes
from hpccoll.tune.table import Candidate


def choose(call, size, preference=None, from_environment=True, tuned=None, determinism="none",
           place=None, **more):
    """The choice for a call; where the place is unknown, as if no rule held there."""
    facts = facts_of(call)
    conditions = Conditions(size, preference, from_environment, tuned, determinism, **more)
    return (choosing.choose(facts, conditions, place)
            or choosing.fallback(facts, conditions))


def asks_for_the_place(call, size):
    """Tell whether the choice needs to know where the job runs."""
    return choosing.choose(facts_of(call), Conditions(size)) is None


def objection(choice, call, size):
    return choosing.objection(choice, facts_of(call), size)


def describe(collective, nbytes, size, preference, from_environment, topology, tuned=None,
             determinism="none", place=None, detail=False):
    return describe_under(collective, nbytes, Conditions(
        size, preference, from_environment, tuned, determinism), topology, place, detail)


# -- calls and times that the tests share -------------------------------------------------------
SIZE = 4
HERE = Place(one_node=True, oversubscribed=True)
SMALL, LARGE = numpy.zeros(2), numpy.zeros(1 << 20)


def allreduce(array=LARGE, op=MPI.SUM):
    return resolve.allreduce(SIZE, 0, array, array.copy(), op)


NATIVE, RING, MULTIPLYING = Candidate("native"), Candidate("ring", (), 4096), Candidate(
    "recursive_multiplying", (("k", 2),))


def tuned(**times):
    """Times in seconds of candidates for an allreduce of any size."""
    candidates = {"native": NATIVE, "ring": RING, "multiplying": MULTIPLYING,
                  "census": Candidate("census")}
    return JobTimes({("allreduce", True): ((8, {candidates[name]: seconds
                                                for name, seconds in times.items()}),)}, "t.json")


MODEL = Model((1e-7, 1e-6, 1e-9, 0.0))
KNOWN = ("ring", "recursive_doubling")


def probed(native, names=KNOWN, factors=(1.0,)):
    """What a probe tells where the model holds, up to factors; native takes so many times ring."""
    points = []
    for nbytes in (64, 4096, 1 << 18):
        times = {Candidate(name): factor * MODEL.seconds(
            terms("allreduce", Candidate(name), SIZE, nbytes))
            for name, factor in zip(names, [*factors, 1.0, 1.0, 1.0, 1.0])}
        points.append((nbytes, times | {NATIVE: native * times[Candidate("ring")]}))
    return JobTimes(source="t.json", probed={("allreduce", True): tuple(points)},
                    topology=Topology(SIZE))


#: A call of every kind, on so many ranks.
KINDS = {
    "allreduce": lambda size, buffer: resolve.allreduce(size, 0, buffer, buffer.copy(), MPI.SUM),
    "reduce": lambda size, buffer: resolve.reduce(size, 0, buffer, buffer.copy(), MPI.SUM, 0),
    "bcast": lambda size, buffer: resolve.bcast(size, 0, buffer, 0),
    "alltoall": lambda size, buffer: resolve.alltoall(size, 0, buffer, buffer.copy()),
    "allgather": lambda size, buffer: resolve.allgather(size, 0, buffer[:buffer.size // size],
                                                      buffer.copy()),
    "reduce_scatter": lambda size, buffer: resolve.reduce_scatter_block(
        size, 0, buffer, buffer[:buffer.size // size].copy(), MPI.SUM),
    "gather": lambda size, buffer: resolve.gather(size, 0, buffer[:buffer.size // size],
                                                buffer.copy(), 0),
    "scatter": lambda size, buffer: resolve.scatter(size, 0, buffer,
                                                  buffer[:buffer.size // size].copy(), 0),
    "scan": lambda size, buffer: resolve.scan(size, 0, buffer, buffer.copy(), MPI.SUM),
    "exscan": lambda size, buffer: resolve.exscan(size, 0, buffer, buffer.copy(), MPI.SUM)}
