"""Trivance, an allreduce of 2026 for rings whose links go both ways.

    mpiexec -n 3 python examples/trivance.py
    hpccoll verify examples/trivance.py:LATENCY --ranks 1-81
    hpccoll explain examples/trivance.py:BANDWIDTH --size 9 --draw nine.png

A. Juerss, V. Addanki, S. Schmid, "Trivance: latency-optimal allreduce by shortcutting multiport
networks", arXiv:2602.17254. In step k every rank exchanges with both ranks at distance 3^k, and
adds what comes from both sides to what it has: after log3(n) steps it has everything. ``LATENCY``
sends whole vectors; ``BANDWIDTH`` a third of what is left, and gathers results on the way back.
"""
import sys

from hpccoll import Algorithm
from hpccoll.lang import IN, LEFT, OUT, Program, at, copy, recv, send


def steps(size):
    """How often 3 divides into size, a power of three."""
    return 0 if size < 3 else 1 + steps(size // 3)


def latency(rank, size):
    """Whole vectors, to both sides at once, three times as far in every step."""
    rounds = [(copy(at(OUT, 0), at(IN, 0)),)]
    for k in range(steps(size)):
        right, left = (rank + 3 ** k) % size, (rank - 3 ** k) % size
        rounds.append((send(right, at(OUT, 0)), send(left, at(OUT, 0)),
                       recv(left, at(OUT, 0), reduce=LEFT), recv(right, at(OUT, 0), reduce=LEFT)))
    return Program(tuple(rounds))


def bandwidth(rank, size):
    """Reduce-scatter from near to far, allgather from far to near."""
    def blocks(peer, k):        # what a rank is left with after step k, as slots of the vector
        return [at(OUT, b) for b in range(size) if (b - peer) % 3 ** (k + 1) == 0]

    down, back = [], []
    for k in range(steps(size)):
        right, left = (rank + 3 ** k) % size, (rank - 3 ** k) % size
        mine, to_right, to_left = (blocks(peer, k) for peer in (rank, right, left))
        down.append((send(right, *to_right), send(left, *to_left),
                     recv(left, *mine, reduce=LEFT), recv(right, *mine, reduce=LEFT)))
        back.insert(0, (send(right, *mine), send(left, *mine),
                        recv(left, *to_left), recv(right, *to_right)))
    return Program(((copy(at(OUT, 0, size), at(IN, 0, size)),), *down, *back))


def power_of_three(size):
    """Return True if ``size`` is a power of three."""
    return 3 ** steps(size) == size


LATENCY = Algorithm(latency, "allreduce", fits=power_of_three, rounds=steps,
                    sent=lambda size: 2 * steps(size),
                    exact_only=True)                # each rank adds in an order of its own
BANDWIDTH = Algorithm(bandwidth, "allreduce", blocks=lambda size: size, fits=power_of_three,
                      rounds=lambda size: 2 * steps(size), sent=lambda size: 2 * (size - 1))


if __name__ == "__main__":
    import numpy
    from mpi4py import MPI

    import hpccoll

    world = MPI.COMM_WORLD
    members = 3 ** steps(world.size)                # as many as there may be
    comm = hpccoll.Comm(world.Split(world.rank < members))
    if world.rank < members:
        for entry in (LATENCY, BANDWIDTH):
            total = numpy.empty(1000, "i8")
            with comm.using(allreduce=entry):       # proved on first use
                comm.Allreduce(numpy.arange(1000) + comm.rank, total)
            if (total != comm.size * numpy.arange(1000) + sum(range(comm.size))).any():
                sys.exit(f"rank {comm.rank}: wrong answer {total}")
        if comm.rank == 0:
            print(f"{world.size} rank{'s' * (world.size > 1)}: Trivance added {comm.size} vectors")
    comm.Free()
