"""Wrap the communicator, change nothing else: ``mpiexec -n 4 python examples/drop_in.py``."""
import numpy
from mpi4py import MPI

import hpccoll

comm = hpccoll.Comm(MPI.COMM_WORLD)
x = numpy.full(1_000_000, comm.rank + 1.0)
comm.Allreduce(MPI.IN_PLACE, x, op=MPI.SUM)
if (x != comm.size * (comm.size + 1) / 2).any():
    raise SystemExit(f"rank {comm.rank}: wrong sum")
if comm.rank == 0:
    print(f"{comm.size} rank{'s' * (comm.size > 1)}: every element of the sum is {x[0]:g}")
