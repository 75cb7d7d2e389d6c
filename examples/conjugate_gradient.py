"""Solve Poisson's equation with conjugate gradients: many small sums over all ranks.

    mpiexec -n 4 python examples/conjugate_gradient.py
    mpiexec -n 4 python -m hpccoll run examples/conjugate_gradient.py

A plain mpi4py program. Each rank owns rows of a square grid. An iteration exchanges rows with two
neighbors (Sendrecv) and adds up two scalar products (Allreduce of one number each), for which all
ranks wait.
"""
import sys

import numpy
from mpi4py import MPI

N = 120
comm = MPI.COMM_WORLD
size, rank = comm.size, comm.rank
up = rank - 1 if rank > 0 else MPI.PROC_NULL
down = rank + 1 if rank < size - 1 else MPI.PROC_NULL
rows = N // size + (rank < N % size)
first = rank * (N // size) + min(rank, N % size)

# The solution is known; it is zero on the border.
x, y = numpy.meshgrid(numpy.linspace(0, 1, N + 2), numpy.linspace(0, 1, N + 2))
exact = numpy.zeros((N + 2, N + 2))
exact[1:-1, 1:-1] = (x * (1 - x) * numpy.sin(3 * y))[1:-1, 1:-1]


def apply(padded):
    """Apply the operator to rows of this rank; the first and last are those of neighbors."""
    comm.Sendrecv(padded[1], up, recvbuf=padded[-1], source=down)
    comm.Sendrecv(padded[-2], down, recvbuf=padded[0], source=up)
    return (4 * padded[1:-1, 1:-1] - padded[:-2, 1:-1] - padded[2:, 1:-1]
            - padded[1:-1, :-2] - padded[1:-1, 2:])


def product(a, b):
    """Return the scalar product of all ranks."""
    result = numpy.array(numpy.vdot(a, b))
    comm.Allreduce(MPI.IN_PLACE, result)
    return float(result)


def padded():
    """Return zeros for the rows of this rank and their neighbors."""
    return numpy.zeros((rows + 2, N + 2))


known = padded()
known[1:-1] = exact[first + 1:first + rows + 1]
right, solution, direction = apply(known), padded(), padded()
residual = right.copy()
direction[1:-1, 1:-1] = residual
norm = start = product(residual, residual)
iterations, began = 0, MPI.Wtime()
while norm > 1e-24 * start and iterations < 1000:
    image = apply(direction)
    step = norm / product(direction[1:-1, 1:-1], image)
    solution[1:-1, 1:-1] += step * direction[1:-1, 1:-1]
    residual -= step * image
    norm, before = product(residual, residual), norm
    direction[1:-1, 1:-1] = residual + norm / before * direction[1:-1, 1:-1]
    iterations += 1
error = comm.allreduce(float(abs(solution - known)[1:-1].max()), op=MPI.MAX)

if rank == 0:
    print(f"{size} rank{'s' * (size > 1)}: {iterations} iterations in {MPI.Wtime() - began:.2f} s, "
          f"error {error:.1e}")
if not error < 1e-9:
    sys.exit(f"rank {rank}: wrong solution")
