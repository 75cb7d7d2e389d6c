"""Find the largest eigenvalue of a matrix whose rows are spread unevenly over the ranks.

    mpiexec -n 4 python examples/power_iteration.py

Every rank multiplies its rows with the vector, then all collect the pieces of the product
(Allgatherv) and agree on its length (Allreduce). The algorithms are chosen by name; the result
is compared with the serial answer of NumPy.
"""
import sys

import numpy
from mpi4py import MPI

import hpccoll

N = 200
comm = hpccoll.Comm(MPI.COMM_WORLD)

# Later ranks own more rows than earlier ones.
ends = [N * (r + 1) * (r + 2) // (comm.size * (comm.size + 1)) for r in range(comm.size)]
starts = [0, *ends[:-1]]
counts = [end - start for start, end in zip(starts, ends, strict=True)]
mine = slice(starts[comm.rank], ends[comm.rank])

random = numpy.random.default_rng(seed=2).random((N, N))  # the same on every rank
matrix = random + random.T
rows = matrix[mine]


def power_iteration():
    """Multiply, normalise, repeat; return the eigenvalue and the number of iterations."""
    vector, eigenvalue = numpy.full(N, N ** -0.5), 0.0
    for iteration in range(1, 200):
        piece = rows @ vector
        sums = numpy.array([piece @ piece, piece @ vector[mine]])
        comm.Allreduce(MPI.IN_PLACE, sums, op=MPI.SUM)
        length, before, eigenvalue = sums[0] ** 0.5, eigenvalue, sums[1]
        comm.Allgatherv(piece / length, [vector, counts])
        if abs(eigenvalue - before) < 1e-13 * eigenvalue:
            return eigenvalue, iteration
    sys.exit("no convergence")


with comm.using(allreduce="recursive_doubling", allgather="neighbor_exchange"):
    eigenvalue, iterations = power_iteration()

expected = numpy.linalg.eigvalsh(matrix)[-1]
error = abs(eigenvalue - expected) / expected
if comm.rank == 0:
    print(f"{comm.size} rank{'s' * (comm.size > 1)}: "
          f"{eigenvalue:.10f} after {iterations} iterations, "
          f"relative error {error:.1e}")
if not error < 1e-12:
    sys.exit(f"rank {comm.rank}: wrong answer, expected {expected:.10f}")
