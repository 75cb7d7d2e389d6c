"""What jobs on several hosts run: allreduces with every kind of algorithm, checked on every rank.

Rank 0 prints the number of ranks, the discovered layout, and "right" when all ranks found so.
"""

import numpy
from mpi4py import MPI

import hpccoll

comm = hpccoll.Comm(MPI.COMM_WORLD)
rank, size = comm.rank, comm.size
right = True
for count in (1, 1000, 100_003):
    mine = numpy.arange(count, dtype="i8") * (rank + 1) + rank
    expected = numpy.arange(count) * (size * (size + 1) // 2) + size * (size - 1) // 2
    for algorithm in ("native", "auto", "ring", "recursive_doubling", "leader", "rails"):
        out = numpy.full(count, -1, dtype="i8")
        with comm.using(allreduce=algorithm):
            comm.Allreduce(mine, out)
        right &= bool((out == expected).all())
right = comm.allreduce(right, MPI.LAND)
if rank == 0:
    print(f"{size} ranks, layout {comm.layout}, {'right' if right else 'WRONG'}", flush=True)
