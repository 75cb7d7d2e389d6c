"""Solve Poisson's equation on a square by conjugate gradients, with the rows dealt to the ranks.

A plain mpi4py program: nothing in it knows hpccoll. To run it on hpccoll's collectives:

    mpiexec -n 4 python -m hpccoll run examples/poisson.py

Every rank owns a band of grid rows. Applying the Laplacian takes one row from each neighbour
(Sendrecv), the dot products take a number from every rank (Allreduce). Rank 0 collects the
answer (Gatherv) and compares it with a dense serial solve.
"""
import sys

import numpy
from mpi4py import MPI

N = 32  # interior grid points per side
comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()
rows = [N // size + (r < N % size) for r in range(size)]
first = sum(rows[:rank])
above = rank - 1 if rank > 0 else MPI.PROC_NULL
below = rank + 1 if rank < size - 1 else MPI.PROC_NULL


def laplacian(u):
    """Apply the five-point stencil to this rank's rows; outside the square everything is 0."""
    grid = numpy.zeros((len(u) + 2, N + 2))
    grid[1:-1, 1:-1] = u
    comm.Sendrecv(grid[1], above, recvbuf=grid[-1], source=below)
    comm.Sendrecv(grid[-2], below, recvbuf=grid[0], source=above)
    return 4 * u - grid[:-2, 1:-1] - grid[2:, 1:-1] - grid[1:-1, :-2] - grid[1:-1, 2:]


def dot(a, b):
    """Multiply two vectors whose parts lie on all ranks."""
    total = numpy.array(numpy.vdot(a, b))
    comm.Allreduce(MPI.IN_PLACE, total, op=MPI.SUM)
    return float(total)


def conjugate_gradients(source):
    """Solve ``laplacian(u) = source``; return this rank's rows and the number of iterations."""
    u, residual = numpy.zeros_like(source), source.copy()
    direction, norm = residual.copy(), dot(residual, residual)
    for iteration in range(10 * N):
        if norm < 1e-20:
            return u, iteration
        image = laplacian(direction)
        step = norm / dot(direction, image)
        u += step * direction
        residual -= step * image
        norm, before = dot(residual, residual), norm
        direction = residual + norm / before * direction
    sys.exit(f"no convergence: the residual is still {norm ** 0.5:.1e}")


def serial(source):
    """Solve the same equation with one dense matrix."""
    one, line = numpy.eye(N), 2 * numpy.eye(N) - numpy.eye(N, k=1) - numpy.eye(N, k=-1)
    matrix = numpy.kron(line, one) + numpy.kron(one, line)
    return numpy.linalg.solve(matrix, source.ravel()).reshape(N, N)


source = numpy.random.default_rng(seed=1).random((N, N))  # the same on every rank
mine, iterations = conjugate_gradients(source[first:first + rows[rank]])
whole = numpy.empty((N, N)) if rank == 0 else None
comm.Gatherv(mine, [whole, [n * N for n in rows]] if rank == 0 else None, root=0)
if rank == 0:
    error = abs(whole - serial(source)).max()
    print(f"{size} rank{'s' * (size > 1)}, "
          f"{N}x{N} points: {iterations} iterations, error {error:.1e}")
    if not error < 1e-9:
        sys.exit("wrong answer")
