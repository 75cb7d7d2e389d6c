"""Write an algorithm, prove it, look at it, run it.

    mpiexec -n 4 python examples/custom_algorithm.py

An algorithm is a function that says what one rank does. Nothing has to be registered: the
function itself is handed to hpccoll.schedule and to comm.using.
"""
import sys

import numpy
from mpi4py import MPI

import hpccoll
from hpccoll.lang import IN, OUT, Program, at, copy, recv, send


def two_way_ring(rank, size):
    """Allgather: blocks travel both ways round the ring, half the rounds of a plain ring."""
    left, right = (rank - 1) % size, (rank + 1) % size
    rounds = [[copy(at(OUT, rank), at(IN, 0))]]
    for hop in range(size // 2):
        rounds.append([send(right, at(OUT, (rank - hop) % size)),
                       recv(left, at(OUT, (rank - hop - 1) % size))])
        if 2 * hop + 2 < size:  # opposite blocks meet: one of the ways is enough
            rounds[-1] += [send(left, at(OUT, (rank + hop) % size)),
                           recv(right, at(OUT, (rank + hop + 1) % size))]
    return Program(tuple(map(tuple, rounds)))


def careless_ring(rank, size):
    """The same with a slip: every rank leaves the last round out."""
    return Program(two_way_ring(rank, size).rounds[:-1])


comm = hpccoll.Comm(MPI.COMM_WORLD)
for size in range(1, 17):
    proof = hpccoll.verify(hpccoll.schedule("allgather", two_way_ring, size))
    if proof.rounds != size // 2:
        sys.exit(f"expected {size // 2} rounds on {size} ranks, not {proof.rounds}")
try:
    hpccoll.verify(hpccoll.schedule("allgather", careless_ring, 4))
    sys.exit("careless_ring was accepted")
except hpccoll.HpccollError as error:
    rejection = error

if comm.rank == 0:
    print("two_way_ring is proved for 1 to 16 ranks. On 4 ranks:")
    print(hpccoll.schedule("allgather", two_way_ring, 4))
    print(f"careless_ring is rejected: {rejection}")

mine = numpy.array([comm.rank, comm.rank ** 2])
everybody = numpy.full((comm.size, 2), -1)
with comm.using(allgather=two_way_ring):
    comm.Allgather(mine, everybody)
if everybody.tolist() != [[rank, rank ** 2] for rank in range(comm.size)]:
    sys.exit(f"rank {comm.rank}: wrong answer {everybody.tolist()}")
if comm.rank == 0:
    print(f"two_way_ring gathered the blocks of {comm.size} rank{'s' * (comm.size > 1)}")
