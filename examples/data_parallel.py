"""Train a small network on data that is divided over the ranks: one sum of gradients a step.

    mpiexec -n 4 python examples/data_parallel.py
    mpiexec -n 4 python -m hpccoll run examples/data_parallel.py

A plain mpi4py program. Each rank computes the gradients of its examples, all ranks average them
(Allreduce of all parameters), and every rank takes the same step. In the end all ranks have the
same parameters, and the network knows the function.
"""
import sys

import numpy
from mpi4py import MPI

STEPS, HIDDEN, EXAMPLES, RATE = 600, 64, 480, 0.05
comm = MPI.COMM_WORLD
random = numpy.random.default_rng(seed=3)  # the same on every rank
inputs = random.uniform(-1, 1, (EXAMPLES, 2))
targets = numpy.sin(3 * inputs[:, :1]) * inputs[:, 1:]
mine = slice(comm.rank, EXAMPLES, comm.size)

# All parameters in one vector, so that one call averages all gradients.
shapes = [(2, HIDDEN), (1, HIDDEN), (HIDDEN, 1), (1, 1)]
ends = numpy.cumsum([rows * columns for rows, columns in shapes])
parameters, gradients = random.normal(0, 0.7, ends[-1]), numpy.empty(ends[-1])


def views(vector):
    """Return the matrices in a vector of all parameters."""
    return [part.reshape(shape)
            for part, shape in zip(numpy.split(vector, ends[:-1]), shapes, strict=True)]


def loss_and_gradients(x, y):
    """Return the squared error of examples; write the gradients, summed over them."""
    first, bias, second, last = views(parameters)
    hidden = numpy.tanh(x @ first + bias)
    error = hidden @ second + last - y
    back = error @ second.T * (1 - hidden ** 2)
    for view, value in zip(views(gradients), (
            x.T @ back, back.sum(0, keepdims=True), hidden.T @ error,
            error.sum(0, keepdims=True)), strict=True):
        view[:] = value
    return float((error ** 2).sum())


start, momentum = MPI.Wtime(), numpy.zeros_like(parameters)
for _ in range(STEPS):
    loss = comm.allreduce(loss_and_gradients(inputs[mine], targets[mine])) / EXAMPLES
    comm.Allreduce(MPI.IN_PLACE, gradients)
    momentum = 0.9 * momentum + gradients / EXAMPLES
    parameters -= RATE * momentum

least, most = parameters.copy(), parameters.copy()
comm.Allreduce(MPI.IN_PLACE, least, op=MPI.MIN)
comm.Allreduce(MPI.IN_PLACE, most, op=MPI.MAX)
if comm.rank == 0:
    print(f"{comm.size} rank{'s' * (comm.size > 1)}: {STEPS} steps in {MPI.Wtime() - start:.2f} s, "
          f"mean squared error {loss:.4f}")
if not loss < 0.02 or (least != most).any():
    sys.exit(f"rank {comm.rank}: loss {loss:.4f}, or parameters that differ")
