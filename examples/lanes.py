"""Rounds that do not wait for each other: lanes, and messages that are passed on as they come.

    mpiexec -n 3 python examples/lanes.py
    hpccoll verify examples/lanes.py:TWO_WAYS --ranks 1-8
    hpccoll explain examples/lanes.py:PIPELINE --size 4

docs/write-your-own-algorithm.md explains it. ``TWO_WAYS`` is a ring allreduce in two lanes: one
half of the vector goes round to the right, the other half to the left, and neither waits for the
other. ``PIPELINE`` is a chain in which each rank passes a block on when it is there, while the next
ones are still on their way.
"""
import sys

from hpccoll import Algorithm
from hpccoll.lang import IN, LEFT, OUT, Program, at, copy, lanes, recv, send


def two_ways(rank, size):
    """A ring allreduce: one half of the vector each way round, each in a lane of its own."""
    def lane(first, way):
        to, frm = (rank + way) % size, (rank - way) % size

        def block(hop):
            return at(OUT, first + (rank * way - hop) % size)
        down = [(send(to, block(hop)), recv(frm, block(hop + 1), reduce=LEFT))
                for hop in range(size - 1)]
        return down + [(send(to, block(hop - 1)), recv(frm, block(hop))) for hop in range(size - 1)]
    take = (copy(at(OUT, 0, 2 * size), at(IN, 0, 2 * size)),)
    return lanes(lane(0, 1), lane(size, -1), before=[take])


TWO_WAYS = Algorithm(
    two_ways, "allreduce", blocks=lambda size: 2 * size,
    rounds=lambda size: 2 * (size - 1) if size != 2 else 4,     # two ranks have only one link
    sent=lambda size: 4 * (size - 1))


def pipeline(rank, size, root, n=3):
    """A chain of ranks, along which n blocks go."""
    rounds, after = [], []
    place = (rank - root) % size
    for block in range(n if place else 0):
        rounds.append((recv((rank - 1) % size, at(OUT, block)),))
        after.append(())                                        # all of them may come at once
    for block in range(n if place < size - 1 else 0):
        rounds.append((send((rank + 1) % size, at(OUT, block)),))
        after.append((block,) if place else ())                 # what has arrived goes on
    return Program(tuple(rounds), (), tuple(after))


PIPELINE = Algorithm(pipeline, "bcast", blocks=lambda size, n=3: n,
                     rounds=lambda size, n=3: size - 2 + n if size > 1 else 0)


if __name__ == "__main__":
    import numpy
    from mpi4py import MPI

    import hpccoll

    comm = hpccoll.Comm(MPI.COMM_WORLD)
    mine, total = numpy.arange(1000.0) + comm.rank, numpy.empty(1000)
    with comm.using(allreduce=TWO_WAYS, bcast=(PIPELINE, {"n": 4})):    # proved on first use
        comm.Allreduce(mine, total)
        comm.Bcast(mine, root=0)
    if (total != comm.size * numpy.arange(1000.0) + sum(range(comm.size))).any():
        sys.exit(f"rank {comm.rank}: wrong sum {total}")
    if (mine != numpy.arange(1000.0)).any():
        sys.exit(f"rank {comm.rank}: wrong vector {mine}")
    if comm.rank == 0:
        print(f"{comm.size} rank{'s' * (comm.size > 1)} added and passed on vectors in lanes")
