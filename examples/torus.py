"""Allreduce on a 3-D torus, both ways round every ring at once: an algorithm of your own.

    mpiexec -n 4 python examples/torus.py
    hpccoll verify examples/torus.py:TORUS --size 8 -p x=2 -p y=2 -p z=2
    mpiexec -n 4 hpccoll bench examples/torus.py:TORUS -p x=2 -p y=2 -p z=1

docs/write-your-own-algorithm.md goes through it. Rank (i, j, k) of an x-by-y-by-z torus has the
number i + x(j + yk). Along x, then y, then z the ranks of a ring reduce-scatter what they hold, and
allgather it in the opposite order; one half of the vector goes right, the other half left. Source:
Jain and Sabharwal, "Optimal bucket algorithms for large MPI collectives on torus interconnects",
ICS 2010, here with both directions of a ring at once, one dimension at a time.
"""
import sys

from hpccoll import Algorithm
from hpccoll.lang import IN, LEFT, OUT, Program, at, copy, recv, send


def torus(rank, size, x, y, z):
    """Reduce-scatter along each dimension both ways round, then allgather back."""
    def part(held, n, i):                   # part i of n of a range of blocks
        width = (held[1] - held[0]) // n
        return held[0] + i % n * width, held[0] + (i % n + 1) * width

    def moves(shift, **reduce):             # one hop of both halves, each its own way
        return [move for (a, b), (way, to, frm) in zip(halves, ways) for move in (
            send(to, at(OUT, *part((a, b), n, me - way * shift))),
            recv(frm, at(OUT, *part((a, b), n, me - way * (shift + 1))), **reduce))]

    rounds, back, stride = [[copy(at(OUT, 0, 2 * size), at(IN, 0, 2 * size))]], [], 1
    halves = [(0, size), (size, 2 * size)]
    for n in (x, y, z):
        me = rank // stride % n
        right, left = (rank + ((me + step) % n - me) * stride for step in (1, -1))
        ways = [(1, right, left), (-1, left, right)]            # each half: way, to whom, from whom
        rounds += [moves(hop, reduce=LEFT) for hop in range(1, n)]
        back = [moves(hop) for hop in range(n - 1)] + back
        halves, stride = [part(held, n, me) for held in halves], stride * n
    return Program(tuple(map(tuple, rounds + back)))


TORUS = Algorithm(
    torus, "allreduce",
    blocks=lambda size, x, y, z: 2 * size,                      # each rank owns one of each half
    fits=lambda size, x, y, z: x * y * z == size,
    rounds=lambda size, x, y, z: 2 * (x + y + z - 3),           # every proof confirms these two
    sent=lambda size, x, y, z: 4 * (size - 1))


if __name__ == "__main__":
    import numpy
    from mpi4py import MPI

    import hpccoll

    comm = hpccoll.Comm(MPI.COMM_WORLD)
    x = max(n for n in range(1, comm.size + 1) if comm.size % n == 0 and n * n <= comm.size)
    shape = {"x": comm.size // x, "y": x, "z": 1}
    mine, total = numpy.arange(1000.0) + comm.rank, numpy.empty(1000)
    with comm.using(allreduce=(TORUS, shape)):                  # proved on first use
        comm.Allreduce(mine, total)
    if (total != comm.size * numpy.arange(1000.0) + sum(range(comm.size))).any():
        sys.exit(f"rank {comm.rank}: wrong answer {total}")
    if comm.rank == 0:
        print(f"the torus {shape} added the vectors of {comm.size} rank{'s' * (comm.size > 1)}")
