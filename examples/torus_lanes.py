"""The torus allreduce on all links at once: a lane for each dimension that comes first.

    mpiexec -n 4 python examples/torus_lanes.py
    hpccoll verify examples/torus_lanes.py:ALL_LINKS --size 27 -p x=3 -p y=3 -p z=3

examples/torus.py keeps two of six links busy. Here the vector is cut into three, and each third
goes the dimensions in another order, in a lane of its own. Source: N. Jain, Y. Sabharwal, "Optimal
bucket algorithms for large MPI collectives on torus interconnects", ICS 2010.
docs/write-your-own-algorithm.md has it beside what the paper says.
"""
import sys

from hpccoll import Algorithm
from hpccoll.lang import IN, LEFT, OUT, at, copy, lanes, recv, send


def bucket(rank, size, first, dimensions):
    """The rounds of examples/torus.py on the blocks from ``first`` on, dimension by dimension."""
    def part(held, n, i):
        width = (held[1] - held[0]) // n
        return held[0] + i % n * width, held[0] + (i % n + 1) * width

    def moves(shift, **reduce):
        return tuple(move for (a, b), (way, to, frm) in zip(halves, ways) for move in (
            send(to, at(OUT, *part((a, b), n, me - way * shift))),
            recv(frm, at(OUT, *part((a, b), n, me - way * (shift + 1))), **reduce)))

    rounds, back = [], []
    halves = [(first, first + size), (first + size, first + 2 * size)]
    for n, stride in dimensions:
        me = rank // stride % n
        right, left = (rank + ((me + step) % n - me) * stride for step in (1, -1))
        ways = [(1, right, left), (-1, left, right)]
        rounds += [moves(hop, reduce=LEFT) for hop in range(1, n)]
        back = [moves(hop) for hop in range(n - 1)] + back
        halves = [part(held, n, me) for held in halves]
    return rounds + back


def all_links(rank, size, x, y, z):
    """A lane for each order of the dimensions: xyz, yzx, zxy."""
    order = [(x, 1), (y, x), (z, x * y)]
    return lanes(*(bucket(rank, size, 2 * size * k, order[k:] + order[:k]) for k in range(3)),
                 before=[(copy(at(OUT, 0, 6 * size), at(IN, 0, 6 * size)),)])


ALL_LINKS = Algorithm(all_links, "allreduce", blocks=lambda size, x, y, z: 6 * size,
                      fits=lambda size, x, y, z: x * y * z == size,
                      sent=lambda size, x, y, z: 12 * (size - 1))


if __name__ == "__main__":
    import numpy
    from mpi4py import MPI

    import hpccoll

    comm = hpccoll.Comm(MPI.COMM_WORLD)
    x = max(n for n in range(1, comm.size + 1) if comm.size % n == 0 and n * n <= comm.size)
    total = numpy.empty(1000)
    with comm.using(allreduce=(ALL_LINKS, {"x": comm.size // x, "y": x, "z": 1})):
        comm.Allreduce(numpy.arange(1000.0) + comm.rank, total)     # proved on first use
    if (total != comm.size * numpy.arange(1000.0) + sum(range(comm.size))).any():
        sys.exit(f"rank {comm.rank}: wrong answer {total}")
    if comm.rank == 0:
        print(f"{comm.size} rank{'s' * (comm.size > 1)} of a torus added vectors in three lanes")
