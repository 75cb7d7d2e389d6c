"""Move particles between ranks that own slabs of a box: counts change in each step.

    mpiexec -n 4 python examples/particles.py
    mpiexec -n 4 python -m hpccoll run examples/particles.py

A plain mpi4py program. In each step every rank moves its particles, sends those that left its slab
to their new owners (Alltoall of counts, Alltoallv of particles), and all ranks sum the energy
(Allreduce). No particle is lost, and the energy stays the same.
"""
import sys

import numpy
from mpi4py import MPI

STEPS, PARTICLES, DT = 200, 2000, 0.02
comm = MPI.COMM_WORLD
size, rank = comm.size, comm.rank

# Columns: position in [0, 1), velocity, number of the particle.
random = numpy.random.default_rng(seed=rank)
mine = numpy.empty((PARTICLES, 3))
mine[:, 0] = (rank + random.random(PARTICLES)) / size
mine[:, 1] = random.normal(0.5, 1.0, PARTICLES)
mine[:, 2] = numpy.arange(PARTICLES) + rank * PARTICLES


def exchange(particles):
    """Send each particle to the rank that owns its position; return those of this rank."""
    owners = numpy.minimum((particles[:, 0] * size).astype(int), size - 1)
    sent = numpy.bincount(owners, minlength=size)
    received = numpy.empty_like(sent)
    comm.Alltoall(sent, received)
    outgoing = particles[numpy.argsort(owners, kind="stable")]
    incoming = numpy.empty((received.sum(), 3))
    comm.Alltoallv([outgoing, 3 * sent], [incoming, 3 * received])
    return incoming


def total(values):
    """Sum over all particles of all ranks."""
    result = numpy.array(values.sum())
    comm.Allreduce(MPI.IN_PLACE, result)
    return float(result)


before = total(mine[:, 1] ** 2)
most, start = 0, MPI.Wtime()
for _ in range(STEPS):
    mine[:, 0] = (mine[:, 0] + DT * mine[:, 1]) % 1.0
    mine = exchange(mine)
    energy = total(mine[:, 1] ** 2)
    most = max(most, len(mine))
seconds = MPI.Wtime() - start

everything = size * PARTICLES
if rank == 0:
    print(f"{size} rank{'s' * (size > 1)}: {STEPS} steps of {everything} particles in "
          f"{seconds:.2f} s, at most {most} on rank 0")
if total(mine[:, 2]) != everything * (everything - 1) / 2 or abs(energy - before) > 1e-9 * before:
    sys.exit(f"rank {rank}: particles were lost, or the energy changed")
