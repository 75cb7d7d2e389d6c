"""Conjugate gradients that survive the death of a rank: shrink, and go on from a checkpoint.

    mpirun --with-ft ulfm -n 4 python examples/survive.py --kill 2@25

Every rank owns rows of a tridiagonal matrix, and all keep every tenth solution. When one dies, the
others shrink, and go on from the newest that all have. Without ULFM (Open MPI 5), just a solver.
"""
import os
import signal
import sys

import numpy
from mpi4py import MPI

import hpccoll

N, EVERY = 3000, 10
victim, moment = map(int, sys.argv[2].split("@")) if sys.argv[1:2] == ["--kill"] else (-1, -1)


def matrix_times(u, before, after):
    """Rows of the matrix times a vector, of which one element more on either side is given."""
    wide = numpy.concatenate(([before], u, [after]))
    return 2.001 * u - wide[:-2] - wide[2:]


def conjugate_gradients(comm, source, saved):
    """Solve ``matrix * u = source`` from the newest checkpoint; return u and the iterations."""
    counts = [N // comm.size + (r < N % comm.size) for r in range(comm.size)]
    first, end = sum(counts[:comm.rank]), sum(counts[:comm.rank + 1])
    start = comm.allreduce(max(saved), op=MPI.MIN)
    u, whole = saved[start][first:end].copy(), saved[start].copy()

    def image(part):
        comm.Allgatherv(part, [whole, counts])
        return matrix_times(part, whole[first - 1] if first else 0, whole[end] if end < N else 0)

    residual = source[first:end] - image(u)
    direction, norm = residual.copy(), comm.allreduce(float(residual @ residual))
    for iteration in range(start, 10 * N):
        if iteration % EVERY == 0:
            comm.Allgatherv(u, [whole, counts])
            saved[iteration] = whole.copy()
            saved.pop(iteration - 2 * EVERY, None)  # ranks are one checkpoint apart at most
        if norm < 1e-20:
            comm.Allgatherv(u, [whole, counts])
            return whole, iteration
        if iteration == moment and MPI.COMM_WORLD.rank == victim:
            os.kill(os.getpid(), signal.SIGKILL)
        step = norm / comm.allreduce(float(direction @ (along := image(direction))))
        u += step * direction
        residual -= step * along
        norm, before = comm.allreduce(float(residual @ residual)), norm
        direction = residual + norm / before * direction
    sys.exit("no convergence")


comm, saved = hpccoll.Comm(MPI.COMM_WORLD), {0: numpy.zeros(N)}
source = numpy.random.default_rng(seed=1).random(N)  # the same on every rank
while True:
    try:
        solution, iterations = conjugate_gradients(comm, source, saved)
    except (hpccoll.HpccollError, MPI.Exception) as error:
        print(f"rank {comm.rank}: {error}", flush=True)
        comm.revoke()  # other ranks may still wait
        solution = None
    if comm.agree(solution is not None):  # a rank that is done must not leave the others
        break
    comm = comm.shrink()
    if comm.rank == 0:
        print(f"{comm.size} ranks go on from iteration {max(saved)}", flush=True)
error = abs(matrix_times(solution, 0, 0) - source).max()
if comm.rank == 0:
    ranks = f"{comm.size} rank{'s' * (comm.size > 1)}"
    print(f"{ranks}: {iterations} iterations, error {error:.1e}", flush=True)
if not error < 1e-9:
    sys.exit("the solution is wrong")
if comm.size < MPI.COMM_WORLD.size:
    os._exit(0)  # MPI_Finalize of Open MPI 5.0 may wait for the dead
