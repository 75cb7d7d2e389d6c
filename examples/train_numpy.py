"""Train a small network on handwritten digits, on several ranks, with NumPy only.

    mpiexec -n 2 python examples/train_numpy.py

Every rank computes the gradients of its own digits; the exchange averages them while the next ones
are computed. The digits are those that scikit-learn ships. All ranks end with the same weights.
Needs pip install scikit-learn.
"""
import sys

import numpy
from mpi4py import MPI
from sklearn.datasets import load_digits

from hpccoll.training import Exchange

EPOCHS, BATCH, RATE, HIDDEN = 30, 96, 0.3, 64
comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()

digits = load_digits()
pixels, labels = digits.data / 16 - 0.5, digits.target
order = numpy.random.default_rng(seed=1).permutation(len(labels))  # the same on every rank
train, test = order[:-360], order[-360:]
steps, batch = len(train) // BATCH, -(-BATCH // size)

random = numpy.random.default_rng(seed=rank)
weights = [random.standard_normal((64, HIDDEN)) / 8, numpy.zeros(HIDDEN),
           random.standard_normal((HIDDEN, 10)) / 8, numpy.zeros(10)]


def predict(x):
    """The hidden layer, and the probability of each digit."""
    hidden = numpy.maximum(x @ weights[0] + weights[1], 0)
    scores = hidden @ weights[2] + weights[3]
    odds = numpy.exp(scores - scores.max(axis=1, keepdims=True))
    return hidden, odds / odds.sum(axis=1, keepdims=True)


with Exchange(comm, weights) as exchange:
    exchange.broadcast(weights)
    for epoch in range(EPOCHS):
        shuffled = numpy.random.default_rng(seed=epoch).permutation(train)
        for step in range(steps):
            mine = shuffled[step * BATCH:][rank * batch:(rank + 1) * batch]
            hidden, error = predict(pixels[mine])
            error[numpy.arange(len(mine)), labels[mine]] -= 1
            error /= max(len(mine), 1)
            exchange.ready(2, hidden.T @ error)
            exchange.ready(3, error.sum(axis=0))
            back = (error @ weights[2].T) * (hidden > 0)
            exchange.ready(0, pixels[mine].T @ back)
            exchange.ready(1, back.sum(axis=0))
            for weight, gradient in zip(weights, exchange.wait(), strict=True):
                weight -= RATE * gradient

accuracy = (predict(pixels[test])[1].argmax(axis=1) == labels[test]).mean()
if rank == 0:
    print(f"{size} rank{'s' * (size > 1)}: {accuracy:.1%} of the test digits are right")
if not accuracy >= 0.95:
    sys.exit(f"rank {rank}: only {accuracy:.1%} of the test digits are right")
